/* Awaitables: a coroutine or generator whose every step is guarded, and one that is done at once. */
#include "core.h"

/* An awaitable that is done at once: async with enters and leaves in the caller's own frame. */
typedef struct {
    PyObject_HEAD PyObject *value;
} Ready;

PyObject *ready_new(PyObject *value)
{
    Ready *ready = PyObject_New(Ready, &Ready_Type);
    if (ready != NULL) {
        ready->value = Py_NewRef(value);
    }
    return (PyObject *)ready;
}

static void stop_with(PyObject *value)
{
    PyObject *stop = PyObject_CallOneArg(PyExc_StopIteration, value);
    if (stop != NULL) {
        PyErr_SetObject(PyExc_StopIteration, stop);
        Py_DECREF(stop);
    }
}

static PyObject *ready_next(PyObject *self)
{
    stop_with(((Ready *)self)->value);
    return NULL;
}

static void ready_dealloc(PyObject *self)
{
    Py_XDECREF(((Ready *)self)->value);
    PyObject_Free(self);
}

static PyAsyncMethods ready_async = {.am_await = Py_NewRef};

PyTypeObject Ready_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "democrai_sandbox.guard._core.Ready",
    .tp_basicsize = sizeof(Ready),
    .tp_dealloc = ready_dealloc,
    .tp_as_async = &ready_async,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = ready_next,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
};

/* A coroutine or generator whose every step runs under one state. */
typedef struct {
    PyObject_HEAD PyObject *inner;
    State *state;
    PyObject *served;
} Steps;

PyObject *steps_new(State *state, PyObject *inner)
{
    Steps *steps = PyObject_GC_New(Steps, &Steps_Type);
    if (steps == NULL) {
        return NULL;
    }
    steps->inner = Py_NewRef(inner);
    steps->state = (State *)Py_NewRef(state);
    steps->served = served_save();
    PyObject_GC_Track(steps);
    return (PyObject *)steps;
}

static PySendResult steps_send_result(PyObject *self, PyObject *value, PyObject **result)
{
    Steps *steps = (Steps *)self;
    Entered entered;
    *result = NULL;
    if (state_enter(steps->state, &entered) < 0) {
        return PYGEN_ERROR;
    }
    PySendResult kind = PyIter_Send(steps->inner, value, result);
    state_leave(&entered);
    if (kind != PYGEN_NEXT) { /* in between nobody but the loop goes on in this context */
        served_restore(Py_XNewRef(steps->served));
    }
    return kind;
}

static PyObject *steps_send(PyObject *self, PyObject *value)
{
    PyObject *result;
    PySendResult kind = steps_send_result(self, value, &result);
    if (kind == PYGEN_RETURN) {
        stop_with(result);
        Py_DECREF(result);
        return NULL;
    }
    return result;
}

static PyObject *steps_next(PyObject *self)
{
    return steps_send(self, Py_None);
}

static PyObject *steps_call(PyObject *self, const char *name, PyObject *args)
{
    Steps *steps = (Steps *)self;
    PyObject *method = PyObject_GetAttrString(steps->inner, name), *result = NULL;
    Entered entered;
    if (method != NULL && state_enter(steps->state, &entered) == 0) {
        result = PyObject_Call(method, args, NULL);
        state_leave(&entered);
        served_restore(Py_XNewRef(steps->served));
    }
    Py_XDECREF(method);
    return result;
}

static PyObject *steps_throw(PyObject *self, PyObject *args)
{
    return steps_call(self, "throw", args);
}

static PyObject *steps_close(PyObject *self, PyObject *unused)
{
    PyObject *none = PyTuple_New(0);
    PyObject *result = none ? steps_call(self, "close", none) : NULL;
    Py_XDECREF(none);
    return result;
}

static int steps_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Steps *)self)->inner);
    return 0;
}

/* Dropping an unfinished coroutine runs its finally blocks: under its guard, not as whoever dropped it. */
static int steps_clear(PyObject *self)
{
    Steps *steps = (Steps *)self;
    Entered entered;
    if (steps->inner == NULL || state_enter(steps->state, &entered) < 0) {
        PyErr_Clear();
        return 0;
    }
    Py_CLEAR(steps->inner);
    state_leave(&entered);
    return 0;
}

static void steps_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    steps_clear(self);
    Py_CLEAR(((Steps *)self)->state);
    Py_CLEAR(((Steps *)self)->served);
    PyObject_GC_Del(self);
}

static PyMethodDef steps_methods[] = {
    {"send", steps_send, METH_O, NULL},
    {"throw", steps_throw, METH_VARARGS, NULL},
    {"close", steps_close, METH_NOARGS, NULL},
    {NULL},
};

static PyAsyncMethods steps_async = {.am_await = Py_NewRef, .am_send = steps_send_result};

PyTypeObject Steps_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "democrai_sandbox.guard._core.Steps",
    .tp_basicsize = sizeof(Steps),
    .tp_dealloc = steps_dealloc,
    .tp_as_async = &steps_async,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = steps_next,
    .tp_traverse = steps_traverse,
    .tp_clear = steps_clear,
    .tp_methods = steps_methods,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
};
