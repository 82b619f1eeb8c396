/* Awaitables: coroutines and generators whose every step runs under their state, and an awaitable that is done at
 * once. */
#include "core/core.h"

#include <string.h>

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

/* Raises the StopIteration with which a coroutine returns this value. */
void stop_with(PyObject *value)
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
    PyObject *context; /* separate, if the host asked for it: its variables are not set for the host */
    bool abandoned;    /* by the host: it does not continue, even if it ignores its cancellation */
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

/* The current exception is kept. */
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

/* ---- what is waited for ----------------------------------------------------------------------- */

static PyObject *waitable[5]; /* Future, Task, _GatheringFuture, and the first two as written in Python */
static PyObject *cancelled_error = NULL;

static PyObject *future_type = NULL; /* in C */
static getter waiter_original = NULL, callbacks_original[2];

/* A new future with the same status as another one, without a link to it. */
static PyObject *future_like(PyObject *other)
{
    PyObject *done = PyObject_CallMethod(other, "done", NULL),
             *loop = done ? PyObject_GetAttrString(other, "_loop") : NULL;
    PyObject *keywords = loop ? Py_BuildValue("{sO}", "loop", loop) : NULL, *none = PyTuple_New(0);
    PyObject *future = keywords && none ? PyObject_Call(future_type, none, keywords) : NULL;
    int is_done = future ? PyObject_IsTrue(done) : -1;
    PyObject *ended = is_done == 1 ? PyObject_CallMethod(future, "cancel", NULL) : NULL;
    if (is_done < 0 || (is_done == 1 && ended == NULL)) {
        Py_CLEAR(future);
    }
    Py_XDECREF(done);
    Py_XDECREF(loop);
    Py_XDECREF(keywords);
    Py_XDECREF(none);
    Py_XDECREF(ended);
    return future;
}

/* The awaited future and the callbacks of a task lead to other tasks. Guarded code only sees whether a task waits. */
static PyObject *task_waiter(PyObject *task, void *closure)
{
    PyObject *waiter = waiter_original(task, closure);
    if (waiter != NULL && waiter != Py_None && state_guarding() != NULL) {
        Py_SETREF(waiter, future_like(waiter));
    }
    return waiter;
}

/* (callback, context) as registered; NULL without an exception if it is hidden from guarded code. */
static PyObject *callback_view(PyObject *pair, bool guarded)
{
    PyObject *callback = PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2 ? PyTuple_GET_ITEM(pair, 0) : NULL;
    if (callback != NULL && bound_is_own(callback)) {
        PyObject *function = unbound_own(Py_NewRef(callback));
        PyObject *view = PyTuple_Pack(2, function, PyTuple_GET_ITEM(pair, 1));
        Py_DECREF(function);
        return view;
    }
    return guarded ? NULL : Py_NewRef(pair);
}

/* The callbacks of a future: guarded code sees the ones that it registered, without the binding. */
static PyObject *callbacks_view(PyObject *list)
{
    if (list == NULL || !PyList_CheckExact(list)) {
        return list;
    }
    bool guarded = state_guarding() != NULL;
    PyObject *views = PyList_New(0);
    for (Py_ssize_t i = 0; views != NULL && i < PyList_GET_SIZE(list); i++) {
        PyObject *view = callback_view(PyList_GET_ITEM(list, i), guarded);
        if (PyErr_Occurred() || (view != NULL && PyList_Append(views, view) < 0)) {
            Py_CLEAR(views);
        }
        Py_XDECREF(view);
    }
    Py_DECREF(list);
    if (views != NULL && PyList_GET_SIZE(views) == 0) {
        Py_SETREF(views, Py_NewRef(Py_None));
    }
    return views;
}

static PyObject *future_callbacks(PyObject *future, void *closure)
{
    return callbacks_view(callbacks_original[0](future, closure));
}

static PyObject *task_callbacks(PyObject *task, void *closure)
{
    return callbacks_view(callbacks_original[1](task, closure));
}

static void exchange(PyObject *type, const char *name, getter view, getter *original)
{
    PyGetSetDef *entry = type && PyType_Check(type) ? ((PyTypeObject *)type)->tp_getset : NULL;
    for (; entry != NULL && entry->name != NULL; entry++) {
        if (strcmp(entry->name, name) == 0 && entry->get != view) {
            *original = entry->get;
            entry->get = view;
        }
    }
}

/* Called when the module is loaded, with or without a guard. */
void futures_patch(PyObject *module)
{
    PyObject *future = PyObject_GetAttrString(module, "Future"), *task = PyObject_GetAttrString(module, "Task");
    PyErr_Clear();
    exchange(future, "_callbacks", future_callbacks, &callbacks_original[0]);
    exchange(task, "_callbacks", task_callbacks, &callbacks_original[1]);
    if (future != NULL) {
        Py_XSETREF(future_type, Py_NewRef(future));
        exchange(task, "_fut_waiter", task_waiter, &waiter_original);
    }
    Py_XDECREF(future);
    Py_XDECREF(task);
}

/* Looked up before the first guard: later, a subject may have replaced names of asyncio. */
int steps_settle(void)
{
    static const char *const names[][2] = {{"_asyncio", "Future"},
                                           {"_asyncio", "Task"},
                                           {"asyncio.tasks", "_GatheringFuture"},
                                           {"asyncio.futures", "_PyFuture"},
                                           {"asyncio.tasks", "_PyTask"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        PyObject *module = waitable[i] ? NULL : PyDict_GetItemString(PyImport_GetModuleDict(), names[i][0]);
        PyObject *type = module ? PyObject_GetAttrString(module, names[i][1]) : NULL;
        waitable[i] = type ? type : waitable[i];
        PyErr_Clear();
    }
    PyObject *module = PyDict_GetItemString(PyImport_GetModuleDict(), "asyncio.exceptions");
    if (cancelled_error == NULL && module != NULL) {
        cancelled_error = PyObject_GetAttrString(module, "CancelledError");
        PyErr_Clear();
    }
    return 0;
}

/* Whether an object of this kind has only the methods of its class. */
static bool is_bare(PyObject *object)
{
    static const char *const used[] = {"get_loop", "add_done_callback", "remove_done_callback", "cancel", "done"};
    PyObject *dict = PyObject_GenericGetDict(object, NULL);
    bool bare = true;
    for (size_t i = 0; dict != NULL && i < sizeof used / sizeof *used; i++) {
        bare = bare && PyDict_GetItemString(dict, used[i]) == NULL;
    }
    Py_XDECREF(dict);
    PyErr_Clear();
    return bare;
}

/* The task that runs a coroutine reads the loop of the yielded future and adds a callback, after the guard was left. So
 * only futures without methods of a subject leave the guard. */
static bool may_be_waited_for(PyObject *yielded)
{
    if (yielded == Py_None || Py_IS_TYPE(yielded, &Wake_Type)) {
        return true;
    }
    for (size_t i = 0; i < sizeof waitable / sizeof *waitable; i++) {
        if (waitable[i] != NULL && (PyObject *)Py_TYPE(yielded) == waitable[i]) {
            return is_bare(yielded);
        }
    }
    return false;
}

/* Replaces a future in *result by a Wake. -1 with an exception. */
static int hide_future(Steps *steps, PyObject **result)
{
    if (*result == Py_None || Py_IS_TYPE(*result, &Wake_Type)) {
        return 0;
    }
    Py_SETREF(*result, wake_new(steps->state, *result));
    return *result ? 0 : -1;
}

static PyObject *steps_call(PyObject *self, const char *name, PyObject *args);

/* Closes an abandoned coroutine and raises CancelledError in the code that awaits it. */
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

/* Clears the current StopIteration and returns its value. */
static PyObject *returned_value(void)
{
    PyObject *type, *value, *trace, *found = NULL;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value != NULL && PyObject_TypeCheck(value, (PyTypeObject *)PyExc_StopIteration)) {
        found = Py_XNewRef(((PyStopIterationObject *)value)->value);
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return found ? found : Py_NewRef(Py_None);
}

/* Throws an exception into the coroutine; its reaction is the next step. */
static PySendResult refuse_wait(Steps *steps, PyObject **result)
{
    for (int times = 0; times < 8; times++) {
        Py_CLEAR(*result);
        PyObject *args = Py_BuildValue("(Os)", PyExc_TypeError, "an extension waits for futures and tasks of asyncio");
        PyObject *method = args ? PyObject_GetAttrString(steps->inner, "throw") : NULL;
        *result = method ? PyObject_Call(method, args, NULL) : NULL;
        Py_XDECREF(method);
        Py_XDECREF(args);
        if (*result == NULL && PyErr_ExceptionMatches(PyExc_StopIteration)) {
            *result = returned_value();
            return *result ? PYGEN_RETURN : PYGEN_ERROR;
        }
        if (*result == NULL) {
            return PYGEN_ERROR;
        }
        if (may_be_waited_for(*result)) {
            return PYGEN_NEXT;
        }
    }
    Py_CLEAR(*result);
    PyErr_SetString(PyExc_TypeError, "an extension waits for futures and tasks of asyncio");
    return PYGEN_ERROR;
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
    if (kind == PYGEN_NEXT && steps->context != NULL) {
        kind = may_be_waited_for(*result) ? kind : refuse_wait(steps, result);
        kind = kind == PYGEN_NEXT && hide_future(steps, result) < 0 ? PYGEN_ERROR : kind;
    }
    end_step(steps, &entered);
    if (kind != PYGEN_NEXT) { /* between steps only the loop runs in this context */
        served_restore(Py_XNewRef(steps->served));
    }
    return kind;
}

/* Code that runs the coroutine itself gets a Wake. An object that another subject sends is rejected. */
static PyObject *steps_send(PyObject *self, PyObject *value)
{
    PyObject *result;
    State *state = value == Py_None ? NULL : state_guarding();
    if (((Steps *)self)->context != NULL && state != NULL) {
        return deny_text(state, DENY_TAMPER, "send");
    }
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
        if (result != NULL && steps->context != NULL && strcmp(name, "throw") == 0) {
            PySendResult kind = may_be_waited_for(result) ? PYGEN_NEXT : refuse_wait(steps, &result);
            if (kind == PYGEN_RETURN) {
                stop_with(result);
                Py_CLEAR(result);
            }
            else if (kind == PYGEN_NEXT && hide_future(steps, &result) < 0) {
                Py_CLEAR(result);
            }
        }
        end_step(steps, &entered);
        served_restore(Py_XNewRef(steps->served));
    }
    Py_XDECREF(method);
    return result;
}

/* For a cancellation that passes from one subject to another, a new exception with the same text. NULL for all others.
 */
static PyObject *same_cancellation(PyObject *args)
{
    PyObject *given = PyTuple_GET_SIZE(args) > 0 ? PyTuple_GET_ITEM(args, 0) : NULL;
    if (PyTuple_GET_SIZE(args) > 1 && PyExceptionInstance_Check(PyTuple_GET_ITEM(args, 1))) {
        given = PyTuple_GET_ITEM(args, 1);
    }
    PyObject *type = given == NULL ? NULL : PyExceptionClass_Check(given) ? given : (PyObject *)Py_TYPE(given);
    if (type == NULL || (type != cancelled_error && type != PyExc_GeneratorExit)) {
        return NULL;
    }
    PyObject *said = type == given ? NULL : ((PyBaseExceptionObject *)given)->args, *text = NULL;
    if (said != NULL && PyTuple_GET_SIZE(said) == 1 && PyUnicode_CheckExact(PyTuple_GET_ITEM(said, 0))) {
        text = PyTuple_GET_ITEM(said, 0);
    }
    PyObject *error = PyObject_CallFunctionObjArgs(type, text, NULL);
    PyObject *fresh = error ? PyTuple_Pack(1, error) : NULL;
    Py_XDECREF(error);
    return fresh;
}

/* Errors of futures come from the futures. An exception that another subject throws is rejected. */
static PyObject *steps_throw(PyObject *self, PyObject *args)
{
    State *state = state_guarding();
    if (((Steps *)self)->abandoned) {
        return end_abandoned((Steps *)self);
    }
    if (((Steps *)self)->context == NULL || state == NULL) {
        return steps_call(self, "throw", args);
    }
    PyObject *fresh = same_cancellation(args);
    if (fresh == NULL) {
        return PyErr_Occurred() ? NULL : deny_text(state, DENY_TAMPER, "throw");
    }
    PyObject *result = steps_call(self, "throw", fresh);
    Py_DECREF(fresh);
    return result;
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

/* Freeing an unfinished coroutine runs its finally blocks: under its own guard. */
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

/* Gives Steps a separate context, like a task. Other objects are unchanged, and NULL is accepted. */
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

/* isolated() -> itself, with a separate context. For code of the host. */
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
    {"isolated", steps_isolated, METH_NOARGS, "Step it in a separate context. For the host's code only."},
    {"abandon", steps_abandon, METH_NOARGS, "End it at its next step unconditionally. For the host's code only."},
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
