/* Raises the denial that a client has wrapped in its own error, for calls and for coroutines. */
#include "network/network.h"

/* Replaces the current error by the denial that it refers to. `lets_out` is raise_denial of the adapters. */
void let_denial_out(PyObject *lets_out)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value != NULL && PyObject_TypeCheck(value, (PyTypeObject *)PyExc_Exception)) {
        if (trace != NULL) {
            PyException_SetTraceback(value, trace);
        }
        PyObject *nothing = PyObject_CallOneArg(lets_out, value);
        if (nothing == NULL) {
            Py_XDECREF(type);
            Py_XDECREF(value);
            Py_XDECREF(trace);
            return;
        }
        Py_DECREF(nothing);
    }
    PyErr_Restore(type, value, trace);
}

/* An awaitable around the coroutine of a client that raises the wrapped denial. */
typedef struct {
    PyObject_HEAD PyObject *inner, *lets_out;
} Outlet;

/* Steals `inner`; returns NULL for NULL. */
PyObject *outlet_new(PyObject *inner, PyObject *lets_out)
{
    Outlet *outlet = inner ? PyObject_GC_New(Outlet, &Outlet_Type) : NULL;
    if (outlet == NULL) {
        Py_XDECREF(inner);
        return NULL;
    }
    outlet->inner = inner;
    outlet->lets_out = Py_NewRef(lets_out);
    PyObject_GC_Track(outlet);
    return (PyObject *)outlet;
}

static void let_os_error_out(Outlet *outlet)
{
    if (PyErr_ExceptionMatches(PyExc_OSError)) {
        let_denial_out(outlet->lets_out);
    }
}

static PySendResult outlet_send_result(PyObject *self, PyObject *value, PyObject **result)
{
    Outlet *outlet = (Outlet *)self;
    PySendResult sent = PyIter_Send(outlet->inner, value, result);
    if (sent == PYGEN_ERROR) {
        let_os_error_out(outlet);
    }
    return sent;
}

static PyObject *outlet_send(PyObject *self, PyObject *value)
{
    PyObject *result = NULL;
    if (outlet_send_result(self, value, &result) == PYGEN_RETURN) {
        stop_with(result);
        Py_CLEAR(result);
    }
    return result;
}

static PyObject *outlet_next(PyObject *self)
{
    return outlet_send(self, Py_None);
}

static PyObject *outlet_throw(PyObject *self, PyObject *args)
{
    PyObject *method = PyObject_GetAttrString(((Outlet *)self)->inner, "throw");
    PyObject *result = method ? PyObject_Call(method, args, NULL) : NULL;
    Py_XDECREF(method);
    if (result == NULL) {
        let_os_error_out((Outlet *)self);
    }
    return result;
}

static PyObject *outlet_close(PyObject *self, PyObject *unused)
{
    return PyObject_CallMethod(((Outlet *)self)->inner, "close", NULL);
}

static int outlet_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Outlet *)self)->inner);
    Py_VISIT(((Outlet *)self)->lets_out);
    return 0;
}

static int outlet_clear(PyObject *self)
{
    Py_CLEAR(((Outlet *)self)->inner);
    Py_CLEAR(((Outlet *)self)->lets_out);
    return 0;
}

static void outlet_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    outlet_clear(self);
    PyObject_GC_Del(self);
}

static PyMethodDef outlet_methods[] = {
    {"send", outlet_send, METH_O, NULL},
    {"throw", outlet_throw, METH_VARARGS, NULL},
    {"close", outlet_close, METH_NOARGS, NULL},
    {NULL},
};

static PyAsyncMethods outlet_async = {.am_await = Py_NewRef, .am_send = outlet_send_result};

PyTypeObject Outlet_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "democrai_sandbox.guard._core.Outlet",
    .tp_basicsize = sizeof(Outlet),
    .tp_dealloc = outlet_dealloc,
    .tp_as_async = &outlet_async,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = outlet_next,
    .tp_traverse = outlet_traverse,
    .tp_clear = outlet_clear,
    .tp_methods = outlet_methods,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
};
