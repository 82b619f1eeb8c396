/* The view of an awaited future that code outside the guard gets.
 *
 * A guarded coroutine that awaits passes its future to the task that runs it, through all frames in between. Outside
 * the guard, code could read the loop of the future, add callbacks, or set a result. Therefore a Wake leaves the
 * guard instead of the future: it only says when to continue. The coroutine gets the result or the error from the
 * future itself. */
#include "core/core.h"

typedef struct {
    PyObject_HEAD PyObject *future, *loop;
    PyObject *callbacks; /* [(callback, context)] of those outside */
    State *state;        /* in which the future is */
    bool blocking, done;
} Wake;

static PyObject *wake_done(PyObject *self, PyObject *unused);
static PyMethodDef done_definition = {"wake", wake_done, METH_O, NULL};

/* ---- making one --------------------------------------------------------------------------------- */

static int watch(Wake *wake)
{
    PyObject *callback = PyCFunction_New(&done_definition, (PyObject *)wake);
    PyObject *added = callback ? PyObject_CallMethod(wake->future, "add_done_callback", "O", callback) : NULL;
    Py_XDECREF(callback);
    Py_XDECREF(added);
    return added ? 0 : -1;
}

/* Called inside the guard, with a future that has only the methods of its class. */
PyObject *wake_new(State *state, PyObject *future)
{
    Wake *wake = PyObject_GC_New(Wake, &Wake_Type);
    if (wake == NULL) {
        return NULL;
    }
    wake->future = Py_NewRef(future);
    wake->state = (State *)Py_NewRef(state);
    wake->callbacks = PyList_New(0);
    wake->blocking = true;
    wake->done = false;
    wake->loop = PyObject_CallMethod(future, "get_loop", NULL);
    /* as a task would do: mark the future as awaited */
    int set = wake->loop ? PyObject_SetAttrString(future, "_asyncio_future_blocking", Py_False) : -1;
    PyObject_GC_Track(wake);
    if (wake->callbacks == NULL || set < 0 || watch(wake) < 0) {
        Py_DECREF(wake);
        return NULL;
    }
    return (PyObject *)wake;
}

static int wake_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Wake *)self)->future);
    Py_VISIT(((Wake *)self)->loop);
    Py_VISIT(((Wake *)self)->callbacks);
    return 0;
}

static int wake_clear(PyObject *self)
{
    Py_CLEAR(((Wake *)self)->future);
    Py_CLEAR(((Wake *)self)->loop);
    Py_CLEAR(((Wake *)self)->callbacks);
    return 0;
}

static void wake_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    wake_clear(self);
    Py_CLEAR(((Wake *)self)->state);
    PyObject_GC_Del(self);
}

/* ---- waking ------------------------------------------------------------------------------------- */

static int schedule(Wake *wake, PyObject *callback, PyObject *context)
{
    PyObject *method = PyObject_GetAttrString(wake->loop, "call_soon");
    PyObject *args = method ? PyTuple_Pack(2, callback, (PyObject *)wake) : NULL;
    PyObject *keywords = args ? Py_BuildValue("{sO}", "context", context) : NULL;
    PyObject *handle = keywords ? PyObject_Call(method, args, keywords) : NULL;
    Py_XDECREF(method);
    Py_XDECREF(args);
    Py_XDECREF(keywords);
    Py_XDECREF(handle);
    return handle ? 0 : -1;
}

/* The future is done. This callback runs inside the guard; callbacks of outside code run under their own states. */
static PyObject *wake_done(PyObject *self, PyObject *unused)
{
    Wake *wake = (Wake *)self;
    Entered entered;
    PyObject *waiting = wake->callbacks;
    if (wake->done || waiting == NULL || state_enter(NULL, &entered) < 0) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    wake->done = true;
    wake->callbacks = NULL;
    int result = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(waiting) && result == 0; i++) {
        PyObject *pair = PyList_GET_ITEM(waiting, i);
        result = schedule(wake, PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1));
    }
    state_leave(&entered);
    Py_DECREF(waiting);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}

/* ---- what a task asks of a future --------------------------------------------------------------- */

static PyObject *wake_get_loop(PyObject *self, PyObject *unused)
{
    return Py_XNewRef(((Wake *)self)->loop);
}

static PyObject *wake_add(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fn", "context", NULL};
    PyObject *callback, *context = Py_None;
    Wake *wake = (Wake *)self;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$O", names, &callback, &context)) {
        return NULL;
    }
    if (wake->done || wake->callbacks == NULL) {
        return schedule(wake, callback, context) < 0 ? NULL : Py_NewRef(Py_None);
    }
    PyObject *pair = PyTuple_Pack(2, callback, context);
    int result = pair ? PyList_Append(wake->callbacks, pair) : -1;
    Py_XDECREF(pair);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *wake_remove(PyObject *self, PyObject *callback)
{
    Wake *wake = (Wake *)self;
    long removed = 0;
    for (Py_ssize_t i = wake->callbacks ? PyList_GET_SIZE(wake->callbacks) - 1 : -1; i >= 0; i--) {
        int same = PyObject_RichCompareBool(PyTuple_GET_ITEM(PyList_GET_ITEM(wake->callbacks, i), 0), callback, Py_EQ);
        if (same < 0 || (same && PyList_SetSlice(wake->callbacks, i, i + 1, NULL) < 0)) {
            return NULL;
        }
        removed += same;
    }
    return PyLong_FromLong(removed);
}

/* Calls on the future run inside its guard, because it may be a task of the subject. */
static PyObject *ask_inside(Wake *wake, const char *name, PyObject *args)
{
    PyObject *result = NULL;
    Entered entered;
    if (wake->future == NULL || state_enter(wake->state, &entered) < 0) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_False);
    }
    PyObject *method = PyObject_GetAttrString(wake->future, name);
    result = method ? PyObject_Call(method, args, NULL) : NULL;
    Py_XDECREF(method);
    state_leave(&entered);
    return result;
}

static PyObject *truth(PyObject *answer)
{
    bool yes = answer == Py_True;
    Py_XDECREF(answer);
    return answer ? PyBool_FromLong(yes) : NULL;
}

static PyObject *wake_cancel(PyObject *self, PyObject *args, PyObject *kwargs)
{
    PyObject *none = PyTuple_New(0);
    PyObject *answer = none ? ask_inside((Wake *)self, "cancel", none) : NULL;
    Py_XDECREF(none);
    return truth(answer);
}

static PyObject *wake_is_done(PyObject *self, PyObject *unused)
{
    return PyBool_FromLong(((Wake *)self)->done);
}

static PyObject *wake_nothing(PyObject *self, PyObject *unused)
{
    Py_RETURN_NONE;
}

static PyObject *wake_cancelled(PyObject *self, PyObject *unused)
{
    Py_RETURN_FALSE;
}

static PyObject *get_blocking(PyObject *self, void *unused)
{
    return PyBool_FromLong(((Wake *)self)->blocking);
}

static int set_blocking(PyObject *self, PyObject *value, void *unused)
{
    ((Wake *)self)->blocking = value == Py_True;
    return 0;
}

static PyMethodDef wake_methods[] = {
    {"get_loop", wake_get_loop, METH_NOARGS, NULL},
    {"add_done_callback", (PyCFunction)(void (*)(void))wake_add, METH_VARARGS | METH_KEYWORDS, NULL},
    {"remove_done_callback", wake_remove, METH_O, NULL},
    {"cancel", (PyCFunction)(void (*)(void))wake_cancel, METH_VARARGS | METH_KEYWORDS, NULL},
    {"done", wake_is_done, METH_NOARGS, NULL},
    {"cancelled", wake_cancelled, METH_NOARGS, NULL},
    {"result", wake_nothing, METH_NOARGS, NULL},
    {"exception", wake_nothing, METH_NOARGS, NULL},
    {NULL},
};

static PyGetSetDef wake_getset[] = {
    {"_asyncio_future_blocking", get_blocking, set_blocking, NULL, NULL},
    {NULL},
};

PyTypeObject Wake_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "democrai_sandbox.guard._core.Wake",
    .tp_basicsize = sizeof(Wake),
    .tp_dealloc = wake_dealloc,
    .tp_traverse = wake_traverse,
    .tp_clear = wake_clear,
    .tp_methods = wake_methods,
    .tp_getset = wake_getset,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
};
