/* Bound: a callable with the state that it belongs to. It runs under that state, independent of its caller. Also
 * calls functions of the host outside the guard. */
#include "core/core.h"

typedef struct {
    PyObject_HEAD PyObject *function, *args, *kwargs; /* args given: called with those and nothing else */
    PyObject *only;                                   /* the one argument with which it may be called as its owner */
    State *state;                                     /* NULL: handed over by unguarded code */
    PyObject *ticket;                                 /* of the request that was active when the callable was stored */
    bool handles_signals;
} Bound;

/* A signal can arrive at any time, also while code of the host works for a subject outside its guard. The handler of
 * the subject must not see those frames: it is deferred until that code returns, and gets no frame. */
static _Thread_local int outside_calls = 0;
static PyObject *put_off = NULL; /* [(handler, number)]; handlers run in the main thread only */

void bound_for_signals(PyObject *bound)
{
    if (bound != NULL && Py_IS_TYPE(bound, &Bound_Type)) {
        ((Bound *)bound)->handles_signals = true;
    }
}

bool outside_is_running(void)
{
    return outside_calls > 0;
}

/* Runs the deferred signal handlers. -1 when one of them has raised an exception. */
static int outside_end(void)
{
    if (--outside_calls > 0 || put_off == NULL || PyList_GET_SIZE(put_off) == 0) {
        return 0;
    }
    PyObject *waiting = put_off;
    int result = 0;
    put_off = NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(waiting) && result == 0; i++) {
        PyObject *pair = PyList_GET_ITEM(waiting, i);
        PyObject *said =
            PyObject_CallFunctionObjArgs(PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1), Py_None, NULL);
        result = said ? 0 : -1;
        Py_XDECREF(said);
    }
    Py_DECREF(waiting);
    return result;
}

static PyObject *put_off_signal(PyObject *bound, PyObject *args)
{
    put_off = put_off ? put_off : PyList_New(0);
    PyObject *pair = put_off ? PyTuple_Pack(2, bound, PyTuple_GET_ITEM(args, 0)) : NULL;
    int result = pair ? PyList_Append(put_off, pair) : -1;
    Py_XDECREF(pair);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *call_handler(Bound *bound, PyObject *args)
{
    return PyObject_CallFunctionObjArgs(bound->function, PyTuple_GET_ITEM(args, 0), Py_None, NULL);
}

PyObject *bound_new(State *state, PyObject *function, PyObject *args, PyObject *kwargs)
{
    Bound *bound = PyObject_GC_New(Bound, &Bound_Type);
    if (bound == NULL) {
        return NULL;
    }
    bound->function = Py_NewRef(function);
    bound->args = Py_XNewRef(args);
    bound->kwargs = Py_XNewRef(kwargs);
    bound->only = NULL;
    bound->handles_signals = false;
    bound->state = (State *)Py_XNewRef(state);
    bound->ticket = state ? ticket_carried() : NULL;
    PyObject_GC_Track(bound);
    return (PyObject *)bound;
}

/* Whether the running code, the host or the same subject, has bound it. */
bool bound_is_own(PyObject *value)
{
    const Bound *bound = Py_IS_TYPE(value, &Bound_Type) ? (Bound *)value : NULL;
    const State *state = bound ? state_guarding() : NULL;
    if (bound == NULL || bound->function == NULL || bound->args != NULL) {
        return false;
    }
    if (state == NULL || bound->state == NULL) {
        return state == bound->state;
    }
    return state->policy != NULL && bound->state->policy == state->policy;
}

/* The original callable, if the running code has bound it; otherwise the bound one. Takes the reference. */
PyObject *unbound_own(PyObject *value)
{
    if (value == NULL || !bound_is_own(value)) {
        return value;
    }
    PyObject *function = Py_NewRef(((Bound *)value)->function);
    Py_DECREF(value);
    return function;
}

static int bound_traverse(PyObject *self, visitproc visit, void *arg)
{
    Bound *bound = (Bound *)self;
    Py_VISIT(bound->function);
    Py_VISIT(bound->args);
    Py_VISIT(bound->kwargs);
    Py_VISIT(bound->only);
    return 0; /* the state is not for others to find */
}

static int bound_clear(PyObject *self)
{
    Bound *bound = (Bound *)self;
    Py_CLEAR(bound->function);
    Py_CLEAR(bound->args);
    Py_CLEAR(bound->kwargs);
    Py_CLEAR(bound->only);
    return 0;
}

static void bound_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    bound_clear(self);
    Py_CLEAR(((Bound *)self)->state);
    Py_CLEAR(((Bound *)self)->ticket);
    PyObject_GC_Del(self);
}

static PyObject *bound_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    Bound *bound = (Bound *)self;
    Entered entered;
    if (bound->function == NULL) {
        PyErr_SetString(PyExc_ReferenceError, "the callable is gone");
        return NULL;
    }
    /* a callable that the host stored in a bypass, found and called by guarded code: it stays inside the guard */
    if (bound->state != NULL && bound->state->mode == MODE_BYPASS && state_guarding() != NULL) {
        return PyObject_Call(bound->function, bound->args ? bound->args : args, bound->args ? bound->kwargs : kwargs);
    }
    bool misused = bound->only != NULL && (PyTuple_GET_SIZE(args) != 1 || PyTuple_GET_ITEM(args, 0) != bound->only);
    if (misused) {
        return PyObject_Call(bound->function, args, kwargs);
    }
    bool signal = bound->handles_signals && PyTuple_GET_SIZE(args) == 2;
    if (signal && outside_calls > 0) {
        return put_off_signal(self, args);
    }
    PyObject *carried = bound->ticket ? ticket_carry(bound->ticket) : NULL;
    if ((bound->ticket != NULL && carried == NULL) || state_enter(bound->state, &entered) < 0) {
        Py_XDECREF(carried);
        return NULL;
    }
    PyObject *served = served_save();
    PyObject *result = signal        ? call_handler(bound, args)
                       : bound->args ? PyObject_Call(bound->function, bound->args, bound->kwargs)
                                     : PyObject_Call(bound->function, args, kwargs);
    state_leave(&entered);
    served_restore(served);
    ticket_restore(carried);
    return result;
}

static PyObject *bound_get(PyObject *self, PyObject *instance, PyObject *type)
{
    return instance == NULL || instance == Py_None ? Py_NewRef(self) : PyMethod_New(self, instance);
}

/* An object for bound_equal(). */
typedef struct {
    PyObject_HEAD PyObject *function;
    State *state;
} HandedOver;

static PyObject *handed_over_compare(PyObject *self, PyObject *other, int op)
{
    const HandedOver *wanted = (HandedOver *)self;
    const Bound *bound = Py_IS_TYPE(other, &Bound_Type) ? (Bound *)other : NULL;
    if (op != Py_EQ || bound == NULL || bound->state == NULL || bound->state->policy == NULL ||
        !state_has_policy(wanted->state, bound->state->policy->id)) {
        return PyBool_FromLong(op == Py_NE);
    }
    return PyObject_RichCompare(bound->function, wanted->function, op);
}

static void handed_over_dealloc(PyObject *self)
{
    Py_DECREF(((HandedOver *)self)->function);
    Py_DECREF(((HandedOver *)self)->state);
    PyObject_Free(self);
}

static PyTypeObject HandedOver_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "democrai_sandbox.guard._core.HandedOver",
    .tp_basicsize = sizeof(HandedOver),
    .tp_dealloc = handed_over_dealloc,
    .tp_richcompare = handed_over_compare,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
};

/* An object that is equal to `function` as bound by the chain of `state`, and not to callables of other owners. */
PyObject *bound_equal(State *state, PyObject *function)
{
    HandedOver *wanted = PyType_Ready(&HandedOver_Type) == 0 ? PyObject_New(HandedOver, &HandedOver_Type) : NULL;
    if (wanted != NULL) {
        wanted->function = Py_NewRef(Py_IS_TYPE(function, &Bound_Type) ? ((Bound *)function)->function : function);
        wanted->state = (State *)Py_NewRef(state);
    }
    return (PyObject *)wanted;
}

static PyObject *bound_compare(PyObject *self, PyObject *other, int op)
{
    if (Py_IS_TYPE(other, &HandedOver_Type)) {
        Py_RETURN_NOTIMPLEMENTED; /* it compares */
    }
    PyObject *left = ((Bound *)self)->function;
    PyObject *right = Py_IS_TYPE(other, &Bound_Type) ? ((Bound *)other)->function : other;
    if ((op != Py_EQ && op != Py_NE) || left == NULL || right == NULL) {
        Py_RETURN_NOTIMPLEMENTED;
    }
    return PyObject_RichCompare(left, right, op);
}

static Py_hash_t bound_hash(PyObject *self)
{
    return PyObject_Hash(((Bound *)self)->function);
}

static PyObject *bound_getattro(PyObject *self, PyObject *name)
{
    PyObject *value = PyObject_GenericGetAttr(self, name);
    if (value == NULL && ((Bound *)self)->function != NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        value = PyObject_GetAttr(((Bound *)self)->function, name);
    }
    return value;
}

PyTypeObject Bound_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "democrai_sandbox.guard._core.Bound",
    .tp_basicsize = sizeof(Bound),
    .tp_dealloc = bound_dealloc,
    .tp_call = bound_call,
    .tp_traverse = bound_traverse,
    .tp_clear = bound_clear,
    .tp_descr_get = bound_get,
    .tp_richcompare = bound_compare,
    .tp_hash = bound_hash,
    .tp_getattro = bound_getattro,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
};

PyObject *bind_to(State *state, PyObject *function)
{
    if (Py_IS_TYPE(function, &Bound_Type) || !PyCallable_Check(function)) {
        return Py_NewRef(function);
    }
    return bound_new(state, function, NULL, NULL);
}

/* Binds the callback of a future, which may only be called with that future. */
PyObject *callback_of(State *state, PyObject *function, PyObject *future)
{
    PyObject *bound = bound_new(state, function, NULL, NULL);
    if (bound != NULL) {
        ((Bound *)bound)->only = Py_NewRef(future);
    }
    return bound;
}

/* Calls a function of the host outside the guard. NULL with an exception when it fails. */
PyObject *call_outside(State *state, PyObject *function, PyObject *args)
{
    State *outside = state_new(state, NULL, MODE_BYPASS, true, NULL);
    PyObject *result = NULL;
    Entered entered;
    if (outside != NULL && state_enter(outside, &entered) == 0) {
        outside_calls++;
        /* the user that the state was entered for; the subject may have set the variable to another one */
        PyObject *pretended = served_save();
        served_restore(Py_XNewRef(state->served));
        result = PyObject_Call(function, args, NULL);
        served_restore(pretended);
        state_leave(&entered);
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        if (outside_end() < 0) {
            Py_CLEAR(result);
            Py_XDECREF(type);
            Py_XDECREF(value);
            Py_XDECREF(trace);
        }
        else {
            PyErr_Restore(type, value, trace);
        }
    }
    Py_XDECREF(outside);
    return result;
}
