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
    PyObject *context; /* of its own, if the host asked for one: what it sets there is not set for the host */
    bool abandoned;    /* by the host: it goes no further, whatever it makes of its cancellation */
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
    steps->abandoned = false;
    steps->context = NULL;
    PyObject_GC_Track(steps);
    return (PyObject *)steps;
}

static int begin_step(Steps *steps, Entered *entered)
{
    if (steps->context != NULL && PyContext_Enter(steps->context) < 0) {
        return -1;
    }
    int result = state_enter(steps->state, entered);
    if (result < 0 && steps->context != NULL) {
        PyContext_Exit(steps->context);
    }
    return result;
}

/* Whatever is being raised goes on being raised. */
static void end_step(Steps *steps, Entered *entered)
{
    PyObject *type, *value, *trace;
    state_leave(entered);
    if (steps->context != NULL) {
        PyErr_Fetch(&type, &value, &trace);
        if (PyContext_Exit(steps->context) < 0) {
            PyErr_WriteUnraisable(NULL);
        }
        PyErr_Restore(type, value, trace);
    }
}

static PyObject *steps_call(PyObject *self, const char *name, PyObject *args);

/* Ends what was abandoned and tells whoever awaits it that it was cancelled. */
static PyObject *end_abandoned(Steps *steps)
{
    PyObject *none = PyTuple_New(0);
    steps->abandoned = false;
    PyObject *closed = none ? steps_call((PyObject *)steps, "close", none) : NULL;
    Py_XDECREF(none);
    Py_XDECREF(closed);
    PyErr_Clear(); /* it did not want to end: it is not stepped any more all the same */
    PyObject *module = PyImport_ImportModule("asyncio.exceptions");
    PyObject *type = module ? PyObject_GetAttrString(module, "CancelledError") : NULL;
    if (type != NULL) {
        PyErr_SetNone(type);
    }
    Py_XDECREF(type);
    Py_XDECREF(module);
    return NULL;
}

static PySendResult steps_send_result(PyObject *self, PyObject *value, PyObject **result)
{
    Steps *steps = (Steps *)self;
    Entered entered;
    *result = NULL;
    if (UNLIKELY(steps->abandoned)) {
        end_abandoned(steps);
        return PYGEN_ERROR;
    }
    if (begin_step(steps, &entered) < 0) {
        return PYGEN_ERROR;
    }
    PySendResult kind = PyIter_Send(steps->inner, value, result);
    end_step(steps, &entered);
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
    if (method != NULL && begin_step(steps, &entered) == 0) {
        result = PyObject_Call(method, args, NULL);
        end_step(steps, &entered);
        served_restore(Py_XNewRef(steps->served));
    }
    Py_XDECREF(method);
    return result;
}

static PyObject *steps_throw(PyObject *self, PyObject *args)
{
    return ((Steps *)self)->abandoned ? end_abandoned((Steps *)self) : steps_call(self, "throw", args);
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
    if (steps->inner == NULL || begin_step(steps, &entered) < 0) {
        PyErr_Clear();
        return 0;
    }
    Py_CLEAR(steps->inner);
    end_step(steps, &entered);
    return 0;
}

static void steps_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    steps_clear(self);
    Py_CLEAR(((Steps *)self)->state);
    Py_CLEAR(((Steps *)self)->served);
    Py_CLEAR(((Steps *)self)->context);
    PyObject_GC_Del(self);
}

/* Gives steps a context of their own, as a task has; anything else is left as it is. NULL passes. */
int steps_isolate(PyObject *result)
{
    if (result == NULL || !Py_IS_TYPE(result, &Steps_Type)) {
        return 0;
    }
    PyObject *context = PyContext_CopyCurrent();
    if (context != NULL) {
        Py_XSETREF(((Steps *)result)->context, context);
    }
    return context ? 0 : -1;
}

/* isolated() -> itself, with a context of its own. For the host's own code. */
static PyObject *steps_isolated(PyObject *self, PyObject *unused)
{
    State *state = state_guarding();
    if (state != NULL) {
        return deny_text(state, DENY_TAMPER, "isolated");
    }
    return steps_isolate(self) < 0 ? NULL : Py_NewRef(self);
}

static PyObject *steps_abandon(PyObject *self, PyObject *unused)
{
    State *state = state_guarding();
    if (state != NULL) {
        return deny_text(state, DENY_TAMPER, "abandon");
    }
    ((Steps *)self)->abandoned = true;
    Py_RETURN_NONE;
}

static PyMethodDef steps_methods[] = {
    {"isolated", steps_isolated, METH_NOARGS, "Step it in a context of its own. For the host's own code."},
    {"abandon", steps_abandon, METH_NOARGS, "End it at its next step, whatever it does. For the host's own code."},
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
