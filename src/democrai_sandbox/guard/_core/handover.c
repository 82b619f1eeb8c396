/* Callables kept for later run under the guard that handed them over, whoever calls them and wherever. */
#include "core.h"

#include <string.h>

/* ---- Bound: a callable and the state it belongs to ------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *function, *args, *kwargs; /* args given: called with those and nothing else */
    PyObject *only;                     /* the one argument with which it may be called as its owner */
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
    bound->only = NULL;
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
    /* a callback of somebody else's, called with another object than it was registered for, gives its caller nothing */
    bool misused = bound->only != NULL && (PyTuple_GET_SIZE(args) != 1 || PyTuple_GET_ITEM(args, 0) != bound->only);
    if (misused) {
        return PyObject_Call(bound->function, args, kwargs);
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
    if (Py_IS_TYPE(function, &Bound_Type) || !PyCallable_Check(function)) {
        return Py_NewRef(function);
    }
    return bound_new(state, function, NULL, NULL);
}

/* A callback of a future, to be called with that future. */
static PyObject *callback_of(State *state, PyObject *function, PyObject *future)
{
    PyObject *bound = bound_new(state, function, NULL, NULL);
    if (bound != NULL) {
        ((Bound *)bound)->only = Py_NewRef(future);
    }
    return bound;
}

/* ---- threads, atexit, signals ---------------------------------------------------------------- */

/* _thread.start_new_thread and relatives, atexit.register */
PyObject *on_callable(State *state, Call *call)
{
    Py_ssize_t at = call_find(call, call->row->index, call->row->argument);
    if (at < 0 || called_by_library_import()) {
        return call_original(call); /* what a library does for itself when it is loaded is nobody's in particular */
    }
    PyObject *bound = bind(state, call->args[at]);
    PyObject *result = bound ? call_with(call, at, bound) : NULL;
    Py_XDECREF(bound);
    return result;
}

/* A handler the host installed keeps running as the host's when a subject puts it back. */
PyObject *on_signal(State *unused, Call *call)
{
    State *state = state_guarding();
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

/* register_at_fork, set_asyncgen_hooks: every callable among the arguments */
PyObject *on_callables(State *state, Call *call)
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

/* A context that does not carry the subject's state would free what runs in it. */
static bool is_foreign_context(State *state, PyObject *context)
{
    if (context == NULL || context == Py_None) {
        return false;
    }
    return !PyContext_CheckExact(context) || !state_descends(state_of_context(context), state);
}

/* Future.add_done_callback(fn, *, context=None) of asyncio. Bound to who registers it, the host included: whoever completes
 * the future schedules the callback, and it must run neither freer nor narrower for that. */
PyObject *on_done_callback(State *unused, Call *call)
{
    PyObject *given = call->nargs == 1 ? call->args[0] : NULL;
    if (given == NULL || Py_IS_TYPE(given, &Bound_Type) || !PyCallable_Check(given)) {
        return call_original(call);
    }
    PyObject *bound = callback_of(state_current(), given, call->self);
    PyObject *result = bound ? call_with(call, 0, bound) : NULL;
    Py_XDECREF(bound);
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

/* A class made under a guard may do something when an instance goes, in whoever drops the last reference: its own __del__,
 * or a base's that calls methods of the class (io's closes the file). What it was made under is kept with the class. */
typedef struct {
    PyObject_HEAD
    State *state;
    destructor original;
} Finaliser;

static void finaliser_dealloc(PyObject *self)
{
    Py_XDECREF(((Finaliser *)self)->state);
    PyObject_Free(self);
}

static PyTypeObject Finaliser_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "democrai_sandbox.guard._core.Finaliser",
    .tp_basicsize = sizeof(Finaliser),
    .tp_dealloc = finaliser_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
};

static newfunc type_new_original = NULL;
static setattrofunc type_setattro_original = NULL, module_setattro_original = NULL;
static PyObject *del_name = NULL, *finaliser_name = NULL;

static void guarded_finalize(PyObject *object)
{
    PyObject *found = _PyType_Lookup(Py_TYPE(object), finaliser_name);
    if (found == NULL || !Py_IS_TYPE(found, &Finaliser_Type)) {
        return; /* cannot be: the name is refused to guarded code */
    }
    Finaliser *finaliser = (Finaliser *)Py_NewRef(found);
    Entered entered;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (state_enter(finaliser->state, &entered) == 0) {
        finaliser->original(object);
        state_leave(&entered);
    }
    else {
        PyErr_WriteUnraisable(object);
    }
    PyErr_Restore(type, value, trace);
    Py_DECREF(finaliser);
}

static int guard_finaliser(State *state, PyTypeObject *type)
{
    if (type->tp_finalize == NULL || type->tp_finalize == guarded_finalize || !(type->tp_flags & Py_TPFLAGS_HEAPTYPE) ||
        called_by_library_import()) {
        return 0;
    }
    Finaliser *finaliser = PyObject_New(Finaliser, &Finaliser_Type);
    if (finaliser == NULL) {
        return -1;
    }
    finaliser->state = (State *)Py_NewRef(state);
    finaliser->original = type->tp_finalize;
    int result = type_setattro_original((PyObject *)type, finaliser_name, (PyObject *)finaliser);
    Py_DECREF(finaliser);
    return result < 0 ? -1 : patch_slot(type, NULL, (void **)&type->tp_finalize, (void *)guarded_finalize);
}

static PyObject *type_new(PyTypeObject *meta, PyObject *args, PyObject *kwargs)
{
    PyObject *made = type_new_original(meta, args, kwargs);
    State *state = made ? state_guarding() : NULL;
    if (UNLIKELY(state != NULL) && PyType_Check(made) && guard_finaliser(state, (PyTypeObject *)made) < 0) {
        Py_CLEAR(made);
    }
    return made;
}

/* ---- the sandbox's own modules and classes ----------------------------------------------------- */

static bool is_ours(PyObject *name)
{
    static const char prefix[] = "democrai_sandbox";
    const char *text = name && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    if (text == NULL) {
        PyErr_Clear();
    }
    return text != NULL && strncmp(text, prefix, sizeof prefix - 1) == 0;
}

/* Names of ours are not for guarded code to replace: the host will use them next. */
static int type_setattro(PyObject *type, PyObject *name, PyObject *value)
{
    State *state = state_guarding();
    if (LIKELY(state == NULL) || !PyUnicode_Check(name)) {
        return type_setattro_original(type, name, value);
    }
    PyObject *module = PyObject_GetAttrString(type, "__module__");
    bool refused = is_ours(module) || PyUnicode_Compare(name, finaliser_name) == 0;
    Py_XDECREF(module);
    PyErr_Clear();
    if (refused) {
        deny(state, DENY_TAMPER, "use", name);
        return -1;
    }
    int result = type_setattro_original(type, name, value);
    if (result == 0 && value != NULL && PyUnicode_Compare(name, del_name) == 0) {
        result = guard_finaliser(state, (PyTypeObject *)type);
    }
    return result;
}

static int module_setattro(PyObject *module, PyObject *name, PyObject *value)
{
    State *state = state_guarding();
    if (UNLIKELY(state != NULL)) {
        PyObject *own = PyModule_GetNameObject(module);
        bool refused = is_ours(own) && !caller_is_importlib();
        Py_XDECREF(own);
        PyErr_Clear();
        if (refused) {
            deny(state, DENY_TAMPER, "use", name);
            return -1;
        }
    }
    return module_setattro_original(module, name, value);
}

/* ---- contexts -------------------------------------------------------------------------------- */

/* While guarded code runs something in a context, the floor is its own state: an empty Context loses nothing. A loop that
 * runs the next step of a task is not guarded; there the context carries the state, and nobody can take it out. */
PyObject *on_context_run(State *unused, Call *call)
{
    State *caller = state_current();
    if (LIKELY(caller == NULL)) {
        return call_original(call);
    }
    State *before = floor_get();
    Py_INCREF(caller);
    floor_set(caller);
    PyObject *result = call_original(call);
    floor_set(before);
    Py_DECREF(caller);
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

/* ---- Python classes that keep callables, patched when they are loaded --------------------------- */

/* The replaced methods. The C function in a method's place knows its row by number; the originals are out of reach. */
typedef struct {
    const char *type, *name;
    unsigned positions; /* bit n: argument n is a callable kept for later */
} Method;

enum { SUBMIT, FINALIZE, DONE_CALLBACK, POOL_APPLY, POOL_MAP, POOL_IMAP, POOL_UNORDERED, THREAD_EXIT, LOOP_ERRORS, LOOP_TASKS, LOOP_EXECUTOR, METHODS };

static const Method methods[METHODS] = {
    [SUBMIT] = {"ThreadPoolExecutor", "submit", 0},
    [FINALIZE] = {"finalize", "__init__", 1 << 2},
    [DONE_CALLBACK] = {"Future", "add_done_callback", 1 << 1},
    [POOL_APPLY] = {"Pool", "apply_async", 1 << 1 | 1 << 4 | 1 << 5},
    [POOL_MAP] = {"Pool", "_map_async", 1 << 1 | 1 << 5 | 1 << 6},
    [POOL_IMAP] = {"Pool", "imap", 1 << 1},
    [POOL_UNORDERED] = {"Pool", "imap_unordered", 1 << 1},
    [THREAD_EXIT] = {NULL, "_register_atexit", 1 << 0},
    [LOOP_ERRORS] = {"BaseEventLoop", "set_exception_handler", 1 << 1},
    [LOOP_TASKS] = {"BaseEventLoop", "set_task_factory", 1 << 1},
    [LOOP_EXECUTOR] = {"BaseEventLoop", "set_default_executor", 0},
};
static PyObject *originals[METHODS];
static PyObject *thread_pool_type = NULL;

static PyObject *bound_arguments(State *state, PyObject *args, unsigned positions)
{
    Py_ssize_t size = PyTuple_GET_SIZE(args);
    PyObject *changed = PyTuple_New(size);
    for (Py_ssize_t i = 0; changed != NULL && i < size; i++) {
        PyObject *given = PyTuple_GET_ITEM(args, i);
        PyObject *value = i < 32 && (positions >> i & 1) ? bind(state, given) : Py_NewRef(given);
        if (value == NULL) {
            Py_CLEAR(changed);
            break;
        }
        PyTuple_SET_ITEM(changed, i, value);
    }
    return changed;
}

static PyObject *bound_keywords(State *state, PyObject *kwargs)
{
    static const char *const names[] = {"func", "fn", "callback", "error_callback"};
    PyObject *changed = PyDict_Copy(kwargs);
    for (size_t i = 0; changed != NULL && i < sizeof names / sizeof *names; i++) {
        PyObject *given = PyDict_GetItemString(changed, names[i]);
        PyObject *value = given ? bind(state, given) : NULL;
        if (given != NULL && (value == NULL || PyDict_SetItemString(changed, names[i], value) < 0)) {
            Py_CLEAR(changed);
        }
        Py_XDECREF(value);
    }
    return changed;
}

/* Calls the original with the callables bound to the state. */
static PyObject *call_bound(State *state, int index, PyObject *args, PyObject *kwargs)
{
    PyObject *changed = bound_arguments(state, args, methods[index].positions);
    PyObject *keywords = changed && kwargs ? bound_keywords(state, kwargs) : NULL;
    PyObject *result = changed && (keywords || !kwargs) ? PyObject_Call(originals[index], changed, keywords) : NULL;
    Py_XDECREF(changed);
    Py_XDECREF(keywords);
    return result;
}

/* Each submission carries its own state into the worker, the host's "none" included: a worker started under one subject's
 * guard serves everybody as themselves. The arguments go along, so that the object is of no other use. */
static PyObject *submit(PyObject *args, PyObject *kwargs)
{
    if (PyTuple_GET_SIZE(args) < 2) {
        return PyObject_Call(originals[SUBMIT], args, kwargs);
    }
    PyObject *rest = PyTuple_GetSlice(args, 2, PyTuple_GET_SIZE(args));
    PyObject *bound = rest ? bound_new(state_current(), PyTuple_GET_ITEM(args, 1), rest, kwargs) : NULL;
    PyObject *result = bound ? PyObject_CallFunctionObjArgs(originals[SUBMIT], PyTuple_GET_ITEM(args, 0), bound, NULL) : NULL;
    Py_XDECREF(rest);
    Py_XDECREF(bound);
    return result;
}

/* A process pool pickles its function, and a child is no thread. */
static bool needs_binding(int index, PyObject *args)
{
    if (index >= POOL_APPLY && index <= POOL_UNORDERED) {
        return PyTuple_GET_SIZE(args) > 0 && PyObject_IsInstance(PyTuple_GET_ITEM(args, 0), thread_pool_type) == 1;
    }
    return true;
}

/* concurrent.futures: the callback runs on the thread that completes the future, whoever's that is. */
static PyObject *add_done_callback(PyObject *args, PyObject *kwargs)
{
    bool plain = PyTuple_GET_SIZE(args) == 2 && kwargs == NULL && PyCallable_Check(PyTuple_GET_ITEM(args, 1));
    if (!plain) {
        State *state = state_guarding();
        return state ? call_bound(state, DONE_CALLBACK, args, kwargs) : PyObject_Call(originals[DONE_CALLBACK], args, kwargs);
    }
    PyObject *bound = callback_of(state_current(), PyTuple_GET_ITEM(args, 1), PyTuple_GET_ITEM(args, 0));
    PyObject *result = bound ? PyObject_CallFunctionObjArgs(originals[DONE_CALLBACK], PyTuple_GET_ITEM(args, 0), bound, NULL) : NULL;
    Py_XDECREF(bound);
    return result;
}

/* The loop will hand its jobs to it: a class of the subject's own would get the host's. */
static bool is_plain_executor(PyObject *args)
{
    PyObject *futures = PyDict_GetItemString(PyImport_GetModuleDict(), "concurrent.futures.thread");
    PyObject *plain = futures ? PyObject_GetAttrString(futures, "ThreadPoolExecutor") : NULL;
    bool is = plain && PyTuple_GET_SIZE(args) == 2 && (PyObject *)Py_TYPE(PyTuple_GET_ITEM(args, 1)) == plain;
    Py_XDECREF(plain);
    PyErr_Clear();
    return is;
}

static PyObject *replaced(PyObject *number, PyObject *args, PyObject *kwargs)
{
    int index = (int)PyLong_AsLong(number);
    if (index == SUBMIT) {
        return submit(args, kwargs);
    }
    if (index == DONE_CALLBACK) {
        return add_done_callback(args, kwargs);
    }
    State *state = state_guarding();
    if (state == NULL || !needs_binding(index, args) || called_by_library_import()) {
        return PyObject_Call(originals[index], args, kwargs);
    }
    if (index == LOOP_EXECUTOR && !is_plain_executor(args)) {
        return deny_text(state, DENY_TAMPER, "set_default_executor");
    }
    return call_bound(state, index, args, kwargs);
}

/* Puts a C function in the place of a Python method or function; the original stays reachable from C only. */
static int replace_method(PyObject *module, int index)
{
    static PyMethodDef definition = {"replaced", (PyCFunction)(void (*)(void))replaced, METH_VARARGS | METH_KEYWORDS, NULL};
    const Method *method = &methods[index];
    PyObject *owner = method->type ? PyObject_GetAttrString(module, method->type) : Py_NewRef(module);
    PyObject *found = owner ? PyObject_GetAttrString(owner, method->name) : NULL;
    if (found == NULL) {
        Py_XDECREF(owner);
        PyErr_Clear();
        return 0; /* still being imported */
    }
    PyObject *number = PyLong_FromLong(index);
    PyObject *function = number ? PyCFunction_New(&definition, number) : NULL;
    PyObject *value = !function ? NULL : method->type ? PyInstanceMethod_New(function) : Py_NewRef(function);
    int result = -1;
    if (value != NULL && PyObject_SetAttrString(owner, method->name, value) == 0) {
        originals[index] = Py_NewRef(found);
        result = 1;
    }
    Py_XDECREF(owner);
    Py_XDECREF(found);
    Py_XDECREF(number);
    Py_XDECREF(function);
    Py_XDECREF(value);
    return result;
}

int executor_patch(PyObject *module)
{
    return replace_method(module, SUBMIT);
}

/* A step or wake-up of a task belongs to that task, whoever completed what it was waiting for. */
static bool is_task_step(PyObject *callback)
{
    static PyTypeObject *step_type = NULL;
    PyTypeObject *type = Py_TYPE(callback);
    if (type == step_type) {
        return true;
    }
    if (PyCFunction_Check(callback)) {
        return strcmp(((PyCFunctionObject *)callback)->m_ml->ml_name, "task_wakeup") == 0;
    }
    const char *name = strrchr(type->tp_name, '.');
    /* a class made in Python could have the name, but is always open to subclasses */
    if (type->tp_flags & Py_TPFLAGS_BASETYPE || strcmp(name ? name + 1 : type->tp_name, "TaskStepMethWrapper") != 0) {
        return false;
    }
    step_type = type;
    return true;
}

/* bind_foreign(callback, context) -> callback: called from the code of asyncio's Handle.__init__, for every handle that is
 * given a context. One that is not the subject's own must not free what guarded code schedules in it. */
PyObject *bind_foreign(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || LIKELY(live_states == 0) || is_task_step(args[0])) {
        return Py_NewRef(nargs > 0 ? args[0] : Py_None);
    }
    State *state = state_guarding();
    return state && is_foreign_context(state, args[1]) ? bind(state, args[0]) : Py_NewRef(args[0]);
}

PyObject *handle_code = NULL; /* the code of Handle.__init__ with the call in it; see guard/handles.py */

int asyncio_patch(PyObject *module)
{
    PyObject *type = PyObject_GetAttrString(module, "Handle");
    PyObject *function = type ? PyObject_GetAttrString(type, "__init__") : NULL;
    Py_XDECREF(type);
    if (function == NULL || handle_code == NULL) {
        PyErr_Clear();
        Py_XDECREF(function);
        return 0; /* still being imported */
    }
    /* the import may happen under a guard, where giving a function other code is refused */
    State *inside = state_guarding(), *outside = inside ? state_new(inside, NULL, MODE_BYPASS, true, NULL) : NULL;
    Entered entered;
    int result = state_enter(outside ? outside : state_current(), &entered);
    if (result == 0) {
        result = PyObject_SetAttrString(function, "__code__", handle_code);
        state_leave(&entered);
    }
    Py_XDECREF(outside);
    Py_DECREF(function);
    return result < 0 ? -1 : 1;
}

int loop_patch(PyObject *module)
{
    int result = 1;
    for (int i = LOOP_ERRORS; result == 1 && i <= LOOP_EXECUTOR; i++) {
        result = originals[i] ? 1 : replace_method(module, i);
    }
    return result;
}

int future_patch(PyObject *module)
{
    return replace_method(module, DONE_CALLBACK);
}

int threading_patch(PyObject *module)
{
    return replace_method(module, THREAD_EXIT);
}

int pool_patch(PyObject *module)
{
    thread_pool_type = PyObject_GetAttrString(module, "ThreadPool");
    if (thread_pool_type == NULL) {
        PyErr_Clear();
        return 0;
    }
    int result = 1;
    for (int i = POOL_APPLY; result == 1 && i <= POOL_UNORDERED; i++) {
        result = originals[i] ? 1 : replace_method(module, i);
    }
    return result;
}

static initproc task_original = NULL;

/* Task(coro, context=...): in a context that is not the subject's, the coroutine carries the state itself. */
static int task_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    State *state = state_guarding();
    PyObject *context = state && kwargs ? PyDict_GetItemString(kwargs, "context") : NULL;
    if (LIKELY(state == NULL) || !is_foreign_context(state, context) || PyTuple_GET_SIZE(args) != 1) {
        return task_original(self, args, kwargs);
    }
    PyObject *steps = steps_new(state, PyTuple_GET_ITEM(args, 0));
    PyObject *changed = steps ? PyTuple_Pack(1, steps) : NULL;
    int result = changed ? task_original(self, changed, kwargs) : -1;
    Py_XDECREF(steps);
    Py_XDECREF(changed);
    return result;
}

int task_patch(PyObject *module)
{
    PyTypeObject *type = (PyTypeObject *)PyObject_GetAttrString(module, "Task");
    if (type == NULL) {
        PyErr_Clear();
        return 0;
    }
    task_original = type->tp_init;
    int result = patch_slot(type, "__init__", (void **)&type->tp_init, (void *)task_init) < 0 ? -1 : 1;
    Py_DECREF(type);
    return result;
}

/* ---- installing ----------------------------------------------------------------------------------- */

static int patch_types(void)
{
    weakref_original = _PyWeakref_RefType.tp_new;
    type_new_original = PyType_Type.tp_new;
    type_setattro_original = PyType_Type.tp_setattro;
    module_setattro_original = PyModule_Type.tp_setattro;
    context_new_original = PyContext_Type.tp_new;
    struct {
        PyTypeObject *type;
        const char *descriptor;
        void **slot, *replacement;
    } slots[] = {
        {&_PyWeakref_RefType, NULL, (void **)&_PyWeakref_RefType.tp_new, (void *)weakref_new},
        {&PyType_Type, NULL, (void **)&PyType_Type.tp_new, (void *)type_new},
        {&PyType_Type, "__setattr__", (void **)&PyType_Type.tp_setattro, (void *)type_setattro},
        {&PyType_Type, "__delattr__", (void **)&PyType_Type.tp_setattro, (void *)type_setattro},
        {&PyModule_Type, NULL, (void **)&PyModule_Type.tp_setattro, (void *)module_setattro},
        {&PyContext_Type, NULL, (void **)&PyContext_Type.tp_new, (void *)context_new},
    };
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++) {
        if (patch_slot(slots[i].type, slots[i].descriptor, slots[i].slot, slots[i].replacement) < 0) {
            return -1;
        }
    }
    return 0;
}

int handover_ready(void)
{
    del_name = PyUnicode_InternFromString("__del__");
    finaliser_name = PyUnicode_InternFromString("__democrai_finaliser__");
    PyObject *weakref = PyImport_ImportModule("weakref");
    if (del_name == NULL || finaliser_name == NULL || weakref == NULL || PyType_Ready(&Bound_Type) < 0 ||
        PyType_Ready(&Finaliser_Type) < 0) {
        return -1;
    }
    int result = replace_method(weakref, FINALIZE);
    Py_DECREF(weakref);
    return result < 0 ? -1 : patch_types();
}
