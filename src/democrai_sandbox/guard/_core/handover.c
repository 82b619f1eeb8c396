/* Callables kept for later run under the guard that handed them over, whoever calls them and wherever. */
#include "core.h"

#include <stddef.h>

/* ---- Bound: a callable and the state it belongs to ------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *function, *args, *kwargs; /* args given: called with those and nothing else */
    State *state;                       /* NULL: handed over by unguarded code */
} Bound;

PyObject *bound_new(State *state, PyObject *function, PyObject *args, PyObject *kwargs)
{
    Bound *bound = PyObject_GC_New(Bound, &Bound_Type);
    if (bound == NULL) {
        return NULL;
    }
    bound->function = Py_NewRef(function);
    bound->args = Py_XNewRef(args);
    bound->kwargs = Py_XNewRef(kwargs);
    bound->state = (State *)Py_XNewRef(state);
    PyObject_GC_Track(bound);
    return (PyObject *)bound;
}

static int bound_traverse(PyObject *self, visitproc visit, void *arg)
{
    Bound *bound = (Bound *)self;
    Py_VISIT(bound->function);
    Py_VISIT(bound->args);
    Py_VISIT(bound->kwargs);
    return 0; /* the state is not for others to find */
}

static int bound_clear(PyObject *self)
{
    Bound *bound = (Bound *)self;
    Py_CLEAR(bound->function);
    Py_CLEAR(bound->args);
    Py_CLEAR(bound->kwargs);
    return 0;
}

static void bound_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    bound_clear(self);
    Py_CLEAR(((Bound *)self)->state);
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
    if (state_enter(bound->state, &entered) < 0) {
        return NULL;
    }
    PyObject *result = bound->args ? PyObject_Call(bound->function, bound->args, bound->kwargs)
                                   : PyObject_Call(bound->function, args, kwargs);
    state_leave(&entered);
    return result;
}

static PyObject *bound_get(PyObject *self, PyObject *instance, PyObject *type)
{
    return instance == NULL || instance == Py_None ? Py_NewRef(self) : PyMethod_New(self, instance);
}

/* atexit.unregister(function) must still find what was registered. */
static PyObject *bound_compare(PyObject *self, PyObject *other, int op)
{
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

static PyObject *bind(State *state, PyObject *function)
{
    if (state == NULL || Py_IS_TYPE(function, &Bound_Type) || !PyCallable_Check(function)) {
        return Py_NewRef(function);
    }
    return bound_new(state, function, NULL, NULL);
}

/* ---- threads, atexit, signals ---------------------------------------------------------------- */

/* _thread.start_new_thread and relatives, atexit.register */
PyObject *on_callable(State *state, Call *call)
{
    Py_ssize_t at = call_find(call, call->row->index, call->row->argument);
    if (at < 0) {
        return call_original(call);
    }
    PyObject *bound = bind(state, call->args[at]);
    PyObject *result = bound ? call_with(call, at, bound) : NULL;
    Py_XDECREF(bound);
    return result;
}

/* A handler the host installed keeps running as the host's when a subject puts it back. */
PyObject *on_signal(State *state, Call *call)
{
    enum { SIGNALS = 65 };
    static PyObject *host_handlers[SIGNALS];
    Py_ssize_t at = call_find(call, 1, "handler");
    long number = call->nargs > 0 && PyLong_Check(call->args[0]) ? PyLong_AsLong(call->args[0]) : -1;
    if (at < 0 || number < 1 || number >= SIGNALS) {
        PyErr_Clear();
        return call_original(call);
    }
    if (state == NULL) {
        Py_XSETREF(host_handlers[number], Py_NewRef(call->args[at]));
        return call_original(call);
    }
    if (call->args[at] == host_handlers[number]) {
        return call_original(call);
    }
    PyObject *bound = bind(state, call->args[at]);
    PyObject *result = bound ? call_with(call, at, bound) : NULL;
    Py_XDECREF(bound);
    if (result != NULL && host_handlers[number] == NULL && !Py_IS_TYPE(result, &Bound_Type)) {
        host_handlers[number] = Py_NewRef(result); /* set before the guard was there to see it */
    }
    return result;
}

PyObject *on_at_fork(State *state, Call *call)
{
    PyObject *argv[MAX_ARGS], *held[MAX_ARGS] = {NULL}, *result = NULL;
    Call copy;
    if (call_copy(call, argv, &copy) < 0) {
        return NULL;
    }
    Py_ssize_t total = call->nargs + (call->kwnames ? PyTuple_GET_SIZE(call->kwnames) : 0), i;
    for (i = 0; i < total; i++) {
        held[i] = argv[i] = bind(state, argv[i]);
        if (argv[i] == NULL) {
            break;
        }
    }
    if (i == total) {
        result = call_original(&copy);
    }
    for (i = 0; i < total; i++) {
        Py_XDECREF(held[i]);
    }
    return result;
}

/* ---- finalisers ------------------------------------------------------------------------------ */

PyObject *on_weak_proxy(State *state, Call *call)
{
    return on_callable(state, call);
}

static newfunc weakref_original = NULL;

static PyObject *weakref_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    State *state = state_guarding();
    if (LIKELY(state == NULL) || PyTuple_GET_SIZE(args) < 2 || !PyCallable_Check(PyTuple_GET_ITEM(args, 1))) {
        return weakref_original(type, args, kwargs);
    }
    PyObject *bound = bind(state, PyTuple_GET_ITEM(args, 1));
    PyObject *changed = bound ? PyTuple_Pack(2, PyTuple_GET_ITEM(args, 0), bound) : NULL;
    PyObject *result = changed ? weakref_original(type, changed, kwargs) : NULL;
    Py_XDECREF(bound);
    Py_XDECREF(changed);
    return result;
}

static newfunc type_new_original = NULL;
static setattrofunc type_setattro_original = NULL;
static PyObject *del_name = NULL;

/* A class made under a guard: its __del__ runs whenever the last reference goes, in whoever drops it. */
static PyObject *type_new(PyTypeObject *meta, PyObject *args, PyObject *kwargs)
{
    PyObject *made = type_new_original(meta, args, kwargs);
    State *state = made ? state_guarding() : NULL;
    if (LIKELY(state == NULL) || !PyType_Check(made)) {
        return made;
    }
    PyObject *names = PyObject_GetAttrString(made, "__dict__");
    PyObject *finaliser = names ? PyObject_GetItem(names, del_name) : NULL;
    Py_XDECREF(names);
    if (finaliser == NULL) {
        PyErr_Clear();
        return made;
    }
    PyObject *bound = bind(state, finaliser);
    Py_DECREF(finaliser);
    if (bound == NULL || type_setattro_original(made, del_name, bound) < 0) {
        Py_CLEAR(made);
    }
    Py_XDECREF(bound);
    return made;
}

static int type_setattro(PyObject *type, PyObject *name, PyObject *value)
{
    State *state = state_guarding();
    if (LIKELY(state == NULL) || value == NULL || !PyUnicode_Check(name) ||
        PyUnicode_CompareWithASCIIString(name, "__del__") != 0) {
        return type_setattro_original(type, name, value);
    }
    PyObject *bound = bind(state, value);
    int result = bound ? type_setattro_original(type, name, bound) : -1;
    Py_XDECREF(bound);
    return result;
}

/* ---- contexts -------------------------------------------------------------------------------- */

/* While something runs in a context, the floor is at least the state of who ran it, and the state that context carries if
 * that descends from it. So each step of a task has a floor, and an empty Context loses nothing. */
PyObject *on_context_run(State *unused, Call *call)
{
    State *caller = state_current();
    State *carried = state_of_context(call->self);
    State *chosen = carried != NULL && (caller == NULL || state_descends(carried, caller)) ? carried : caller;
    State *before = floor_get();
    Py_XINCREF(chosen);
    floor_set(chosen);
    PyObject *result = call_original(call);
    floor_set(before);
    Py_XDECREF(chosen);
    return result;
}

PyObject *on_context_variable(State *state, Call *call)
{
    return call->self == state_variable ? deny_text(state, DENY_TAMPER, "ContextVar") : call_original(call);
}

PyObject *on_tamper(State *state, Call *call)
{
    return deny_text(state, DENY_TAMPER, call->row->name);
}

static newfunc context_new_original = NULL;

/* contextvars.Context() under a guard is born with it: a task created in it is still the subject's. */
static PyObject *context_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *context = context_new_original(type, args, kwargs);
    State *state = context ? state_guarding() : NULL;
    if (LIKELY(state == NULL)) {
        return context;
    }
    if (PyContext_Enter(context) < 0) {
        Py_DECREF(context);
        return NULL;
    }
    PyObject *token = PyContextVar_Set(state_variable, (PyObject *)state);
    Py_XDECREF(token);
    if (PyContext_Exit(context) < 0 || token == NULL) {
        Py_CLEAR(context);
    }
    return context;
}

/* ---- executors and loops: Python classes, patched when they are loaded ------------------------ */

static PyObject *submit_original = NULL, *handle_original = NULL, *finalize_original = NULL;

/* Each submission carries its own state into the worker, the host's "none" included: a worker started under one subject's
 * guard serves everybody as themselves. The arguments go along, so that the object is of no other use. */
static PyObject *submit(PyObject *unused, PyObject *args, PyObject *kwargs)
{
    if (PyTuple_GET_SIZE(args) < 2) {
        return PyObject_Call(submit_original, args, kwargs);
    }
    PyObject *rest = PyTuple_GetSlice(args, 2, PyTuple_GET_SIZE(args));
    PyObject *bound = rest ? bound_new(state_current(), PyTuple_GET_ITEM(args, 1), rest, kwargs) : NULL;
    PyObject *result = bound ? PyObject_CallFunctionObjArgs(submit_original, PyTuple_GET_ITEM(args, 0), bound, NULL) : NULL;
    Py_XDECREF(rest);
    Py_XDECREF(bound);
    return result;
}

/* Handle(callback, args, loop, context=None): a context that is not the subject's own must not free the callback. */
static PyObject *handle_init(PyObject *unused, PyObject *args, PyObject *kwargs)
{
    State *state = state_guarding();
    PyObject *context = PyTuple_GET_SIZE(args) > 4 ? PyTuple_GET_ITEM(args, 4) : NULL;
    if (context == NULL && kwargs != NULL) {
        context = PyDict_GetItemString(kwargs, "context");
    }
    bool foreign = state != NULL && context != NULL && context != Py_None && PyTuple_GET_SIZE(args) > 1 &&
                   !(PyContext_CheckExact(context) && state_descends(state_of_context(context), state));
    if (!foreign) {
        return PyObject_Call(handle_original, args, kwargs);
    }
    PyObject *changed = PySequence_List(args), *bound = bind(state, PyTuple_GET_ITEM(args, 1)), *result = NULL;
    if (changed != NULL && bound != NULL && PyList_SetItem(changed, 1, Py_NewRef(bound)) == 0) {
        PyObject *tuple = PyList_AsTuple(changed);
        result = tuple ? PyObject_Call(handle_original, tuple, kwargs) : NULL;
        Py_XDECREF(tuple);
    }
    Py_XDECREF(changed);
    Py_XDECREF(bound);
    return result;
}

/* weakref.finalize(obj, func): its func runs at exit from the host's atexit hook. */
static PyObject *finalize_init(PyObject *unused, PyObject *args, PyObject *kwargs)
{
    State *state = state_guarding();
    if (state == NULL || PyTuple_GET_SIZE(args) < 3) {
        return PyObject_Call(finalize_original, args, kwargs);
    }
    PyObject *changed = PySequence_List(args), *bound = bind(state, PyTuple_GET_ITEM(args, 2)), *result = NULL;
    if (changed != NULL && bound != NULL && PyList_SetItem(changed, 2, Py_NewRef(bound)) == 0) {
        PyObject *tuple = PyList_AsTuple(changed);
        result = tuple ? PyObject_Call(finalize_original, tuple, kwargs) : NULL;
        Py_XDECREF(tuple);
    }
    Py_XDECREF(changed);
    Py_XDECREF(bound);
    return result;
}

static PyMethodDef submit_def = {"submit", (PyCFunction)(void (*)(void))submit, METH_VARARGS | METH_KEYWORDS, NULL};
static PyMethodDef handle_def = {"__init__", (PyCFunction)(void (*)(void))handle_init, METH_VARARGS | METH_KEYWORDS, NULL};
static PyMethodDef finalize_def = {"__init__", (PyCFunction)(void (*)(void))finalize_init, METH_VARARGS | METH_KEYWORDS, NULL};

/* Puts a C function in the place of a Python method; the original stays reachable from C only. */
static int replace_method(PyObject *module, const char *type_name, const char *name, PyMethodDef *def, PyObject **original)
{
    PyObject *type = PyObject_GetAttrString(module, type_name);
    if (type == NULL) {
        PyErr_Clear();
        return 0; /* still being imported */
    }
    int result = -1;
    PyObject *found = PyObject_GetAttrString(type, name);
    PyObject *function = found ? PyCFunction_New(def, NULL) : NULL;
    PyObject *method = function ? PyInstanceMethod_New(function) : NULL;
    if (method != NULL && PyObject_SetAttrString(type, name, method) == 0) {
        *original = Py_NewRef(found);
        result = 1;
    }
    Py_XDECREF(type);
    Py_XDECREF(found);
    Py_XDECREF(function);
    Py_XDECREF(method);
    return result;
}

int executor_patch(PyObject *module)
{
    return replace_method(module, "ThreadPoolExecutor", "submit", &submit_def, &submit_original);
}

int asyncio_patch(PyObject *module)
{
    return replace_method(module, "Handle", "__init__", &handle_def, &handle_original);
}

int handover_ready(void)
{
    del_name = PyUnicode_InternFromString("__del__");
    PyObject *weakref = PyImport_ImportModule("weakref");
    if (del_name == NULL || weakref == NULL || PyType_Ready(&Bound_Type) < 0) {
        return -1;
    }
    int result = replace_method(weakref, "finalize", "__init__", &finalize_def, &finalize_original);
    Py_DECREF(weakref);
    weakref_original = _PyWeakref_RefType.tp_new;
    type_new_original = PyType_Type.tp_new;
    type_setattro_original = PyType_Type.tp_setattro;
    context_new_original = PyContext_Type.tp_new;
    if (result < 0 || patch_slot(&_PyWeakref_RefType, NULL, (void **)&_PyWeakref_RefType.tp_new, (void *)weakref_new) < 0 ||
        patch_slot(&PyType_Type, NULL, (void **)&PyType_Type.tp_new, (void *)type_new) < 0 ||
        patch_slot(&PyType_Type, "__setattr__", (void **)&PyType_Type.tp_setattro, (void *)type_setattro) < 0 ||
        patch_slot(&PyType_Type, "__delattr__", (void **)&PyType_Type.tp_setattro, (void *)type_setattro) < 0 ||
        patch_slot(&PyContext_Type, NULL, (void **)&PyContext_Type.tp_new, (void *)context_new) < 0) {
        return -1;
    }
    return 0;
}
