/* A Gate replaces a method of a client. It calls the method itself while no guard applies, otherwise the wrapper of
 * the adapter. The check reads one number; a Python function would cost a call and repack all keyword arguments.
 * fast_paths.c skips the wrapper for common requests. */
#include "network/network.h"

#include <structmember.h>

typedef struct {
    PyObject_HEAD vectorcallfunc call;
    PyObject *original, *wrapper, *attributes, *past, *given;
    FastPath fast_path; /* its objects are kept by `given` */
} Gate;

/* An object with the attribute `past` was checked before. Code that sets it itself only loses the early refusal. */
static bool goes_past(const Gate *gate, PyObject *const *args, size_t nargs)
{
    if (gate->past == Py_None || PyVectorcall_NARGS(nargs) == 0) {
        return false;
    }
    PyObject *mark = own_attribute(args[0], gate->past);
    Py_XDECREF(mark);
    return mark != NULL;
}

static PyObject *gate_call(PyObject *self, PyObject *const *args, size_t nargs, PyObject *names)
{
    Gate *gate = (Gate *)self;
    if (state_guarding() == NULL && !gate->fast_path.everyone) {
        return PyObject_Vectorcall(gate->original, args, nargs, names);
    }
    if (goes_past(gate, args, nargs)) {
        return PyObject_Vectorcall(gate->original, args, nargs, names);
    }
    if (gate->fast_path.way != NULL) {
        PyObject *result = gate->fast_path.way(&gate->fast_path, args, nargs, names);
        if (LIKELY(result != NULL) || PyErr_Occurred()) {
            return result;
        }
    }
    return PyObject_Vectorcall(gate->wrapper, args, nargs, names);
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
    Py_VISIT(((Gate *)self)->given);
    return 0;
}

static void gate_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    Py_XDECREF(((Gate *)self)->original);
    Py_XDECREF(((Gate *)self)->wrapper);
    Py_XDECREF(((Gate *)self)->attributes);
    Py_XDECREF(((Gate *)self)->past);
    Py_XDECREF(((Gate *)self)->given);
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

/* gate(original, wrapper, attributes, past, fast_path) */
PyObject *core_gate(PyObject *module, PyObject *args)
{
    PyObject *original, *wrapper, *attributes, *past, *given;
    FastPath fast_path;
    if (!PyArg_ParseTuple(args, "OOO!OO", &original, &wrapper, &PyDict_Type, &attributes, &past, &given) ||
        fast_path_read(given, original, &fast_path) < 0 || PyType_Ready(&Gate_Type) < 0) {
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
    gate->given = Py_NewRef(given);
    gate->fast_path = fast_path;
    PyObject_GC_Track((PyObject *)gate);
    return (PyObject *)gate;
}
