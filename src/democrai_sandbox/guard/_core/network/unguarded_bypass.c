/* A Gate replaces a method of a client. It calls the method itself while no guard applies. The check reads one number;
 * a Python function would cost a call and repack all keyword arguments.
 *
 * Under a guard there are two kinds. A gate with a wrapper calls the wrapper of the adapter. A gate with a check calls
 * the check of the adapter, holds the ticket that it returned (or None) during the call of the method, and raises the
 * denial that the client has wrapped in its own error. */
#include "network/network.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD vectorcallfunc call;
    PyObject *original, *wrapper, *attributes, *past;
    PyObject *lets_out; /* raise_denial of the adapters; NULL for a gate with a wrapper */
} Gate;

/* Whether the object itself has the attribute; __getattr__ of its class is not asked. */
static bool has_attribute(PyObject *object, PyObject *name)
{
    PyObject *value = NULL;
    if (Py_TYPE(object)->tp_getattro != PyObject_GenericGetAttr) {
        return false;
    }
#if PY_VERSION_HEX >= 0x030D0000
    int found = PyObject_GetOptionalAttr(object, name, &value);
#else
    int found = _PyObject_LookupAttr(object, name, &value);
#endif
    if (found < 0) {
        PyErr_Clear();
    }
    Py_XDECREF(value);
    return found > 0;
}

/* An object with the attribute `past` was checked before. Code that sets it itself only loses the early refusal. */
static bool goes_past(const Gate *gate, PyObject *const *args, size_t nargs)
{
    return gate->past != Py_None && PyVectorcall_NARGS(nargs) > 0 && has_attribute(args[0], gate->past);
}

/* None, or a ticket that this call holds. */
static PyObject *ticket_for(const Gate *gate, PyObject *const *args, size_t nargs, PyObject *names)
{
    PyObject *ticket =
        gate->wrapper == Py_None ? Py_NewRef(Py_None) : PyObject_Vectorcall(gate->wrapper, args, nargs, names);
    if (ticket != NULL && ticket != Py_None && !Py_IS_TYPE(ticket, &Ticket_Type)) {
        PyErr_SetString(PyExc_TypeError, "the check of an adapter returns a ticket or None");
        Py_CLEAR(ticket);
    }
    return ticket;
}

static PyObject *call_checked(const Gate *gate, PyObject *const *args, size_t nargs, PyObject *names)
{
    PyObject *ticket = ticket_for(gate, args, nargs, names), *result = NULL;
    if (ticket == NULL || ticket_begin(ticket) < 0) {
        Py_XDECREF(ticket);
        return NULL;
    }
    result = PyObject_Vectorcall(gate->original, args, nargs, names);
    if (ticket_end(ticket) < 0) {
        Py_CLEAR(result);
    }
    Py_DECREF(ticket);
    if (result == NULL) {
        let_denial_out(gate->lets_out);
    }
    return result != NULL && PyCoro_CheckExact(result) ? outlet_new(result, gate->lets_out) : result;
}

static PyObject *gate_call(PyObject *self, PyObject *const *args, size_t nargs, PyObject *names)
{
    const Gate *gate = (Gate *)self;
    if (state_guarding() == NULL || goes_past(gate, args, nargs)) {
        return PyObject_Vectorcall(gate->original, args, nargs, names);
    }
    return gate->lets_out ? call_checked(gate, args, nargs, names)
                          : PyObject_Vectorcall(gate->wrapper, args, nargs, names);
}

static PyObject *gate_get(PyObject *self, PyObject *object, PyObject *Py_UNUSED(type))
{
    return object == NULL || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
}

static int gate_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Gate *)self)->original);
    Py_VISIT(((Gate *)self)->wrapper);
    Py_VISIT(((Gate *)self)->attributes);
    Py_VISIT(((Gate *)self)->past);
    Py_VISIT(((Gate *)self)->lets_out);
    return 0;
}

static void gate_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(((Gate *)self)->original);
    Py_XDECREF(((Gate *)self)->wrapper);
    Py_XDECREF(((Gate *)self)->attributes);
    Py_XDECREF(((Gate *)self)->past);
    Py_XDECREF(((Gate *)self)->lets_out);
    PyObject_GC_Del(self);
}

PyTypeObject Gate_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "democrai_sandbox.guard._core.Gate",
    .tp_basicsize = sizeof(Gate),
    .tp_dealloc = gate_dealloc,
    .tp_traverse = gate_traverse,
    .tp_vectorcall_offset = offsetof(Gate, call),
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = gate_get,
    .tp_dictoffset = offsetof(Gate, attributes),
    .tp_getattro = PyObject_GenericGetAttr,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_HAVE_GC |
                Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
};

/* gate(original, wrapper, attributes, past, lets_out): with `lets_out`, `wrapper` is a check or None. */
PyObject *core_gate(PyObject *module, PyObject *args)
{
    PyObject *original, *wrapper, *attributes, *past, *lets_out;
    if (!PyArg_ParseTuple(args, "OOO!OO", &original, &wrapper, &PyDict_Type, &attributes, &past, &lets_out) ||
        PyType_Ready(&Gate_Type) < 0) {
        return NULL;
    }
    Gate *gate = PyObject_GC_New(Gate, &Gate_Type);
    if (gate == NULL) {
        return NULL;
    }
    gate->call = gate_call;
    gate->original = Py_NewRef(original);
    gate->wrapper = Py_NewRef(wrapper);
    gate->attributes = PyDict_Copy(attributes);
    gate->past = Py_NewRef(past);
    gate->lets_out = lets_out == Py_None ? NULL : Py_NewRef(lets_out);
    PyObject_GC_Track((PyObject *)gate);
    return (PyObject *)gate;
}
