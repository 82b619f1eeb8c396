/* Python classes that store callables (executors, futures, pools, loops, tasks): their methods are patched when the
 * classes are loaded. */
#include "interpreter/interpreter.h"

#include <stddef.h>
#include <string.h>

/* The replaced methods. */
typedef struct {
    const char *type, *name;
    unsigned positions; /* bit n: argument n is a callable kept for later */
    const char *signature;
} Method;

enum {
    SUBMIT,
    FINALIZE,
    DONE_CALLBACK,
    POOL_APPLY,
    POOL_MAP,
    POOL_IMAP,
    POOL_UNORDERED,
    THREAD_EXIT,
    LOOP_ERRORS,
    LOOP_TASKS,
    LOOP_EXECUTOR,
    LOOP_ERRORS_GET,
    LOOP_TASKS_GET,
    WORKER_THREAD,
    METHODS
};

#define POOLED "($self, func, iterable, chunksize=1)"

static const Method methods[METHODS] = {
    [SUBMIT] = {"ThreadPoolExecutor", "submit", 0, "($self, fn, /, *args, **kwargs)"},
    [FINALIZE] = {"finalize", "__init__", 1 << 2, "($self, obj, func, /, *args, **kwargs)"},
    [DONE_CALLBACK] = {"Future", "add_done_callback", 1 << 1, "($self, fn)"},
    [POOL_APPLY] = {"Pool", "apply_async", 1 << 1 | 1 << 4 | 1 << 5,
                    "($self, func, args=(), kwds={}, callback=None, error_callback=None)"},
    [POOL_MAP] = {"Pool", "_map_async", 1 << 1 | 1 << 5 | 1 << 6,
                  "($self, func, iterable, mapper, chunksize=None, callback=None, error_callback=None)"},
    [POOL_IMAP] = {"Pool", "imap", 1 << 1, POOLED},
    [POOL_UNORDERED] = {"Pool", "imap_unordered", 1 << 1, POOLED},
    [THREAD_EXIT] = {NULL, "_register_atexit", 1 << 0, "(func, *arg, **kwargs)"},
    [LOOP_ERRORS] = {"BaseEventLoop", "set_exception_handler", 1 << 1, "($self, handler)"},
    [LOOP_TASKS] = {"BaseEventLoop", "set_task_factory", 1 << 1, "($self, factory)"},
    [LOOP_EXECUTOR] = {"BaseEventLoop", "set_default_executor", 0, "($self, executor)"},
    [LOOP_ERRORS_GET] = {"BaseEventLoop", "get_exception_handler", 0, "($self)"},
    [LOOP_TASKS_GET] = {"BaseEventLoop", "get_task_factory", 0, "($self)"},
    [WORKER_THREAD] = {"AsyncIOBackend", "run_sync_in_worker_thread", 0,
                       "($cls, func, args, abandon_on_cancel=False, limiter=None)"},
};

/* Replaces a method and looks like it: unguarded code can inspect and pickle it, and guarded code sees its name,
 * documentation and signature. The original is reachable from C only: the type does not take part in garbage
 * collection, so gc.get_referents does not return it. */
typedef struct {
    PyObject_HEAD PyObject *weak;
    PyObject *original;
    PyObject *owner;   /* the class or module that it was put into */
    PyObject *threads; /* for methods of a pool: the class of pools of threads */
    int index;
    bool binds;
} Keeper;

static PyTypeObject Keeper_Type;
static PyObject *submit_name = NULL;

static PyObject *bound_arguments(State *state, PyObject *args, unsigned positions)
{
    Py_ssize_t size = PyTuple_GET_SIZE(args);
    PyObject *changed = PyTuple_New(size);
    for (Py_ssize_t i = 0; changed != NULL && i < size; i++) {
        PyObject *given = PyTuple_GET_ITEM(args, i);
        PyObject *value = i < 32 && (positions >> i & 1) ? bind_to(state, given) : Py_NewRef(given);
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
        PyObject *value = given ? bind_to(state, given) : NULL;
        if (given != NULL && (value == NULL || PyDict_SetItemString(changed, names[i], value) < 0)) {
            Py_CLEAR(changed);
        }
        Py_XDECREF(value);
    }
    return changed;
}

/* Calls the original with the callables bound to the state. */
static PyObject *call_bound(State *state, const Keeper *keeper, PyObject *args, PyObject *kwargs)
{
    PyObject *changed = bound_arguments(state, args, methods[keeper->index].positions);
    PyObject *keywords = changed && kwargs ? bound_keywords(state, kwargs) : NULL;
    PyObject *result = changed && (keywords || !kwargs) ? PyObject_Call(keeper->original, changed, keywords) : NULL;
    Py_XDECREF(changed);
    Py_XDECREF(keywords);
    return result;
}

/* Each job runs under the state that submitted it, also without a guard: a worker thread that one subject started
 * serves all submitters. The arguments are bound too, so the object cannot be used for anything else. */
static PyObject *submit(const Keeper *keeper, PyObject *args, PyObject *kwargs)
{
    if (PyTuple_GET_SIZE(args) < 2) {
        return PyObject_Call(keeper->original, args, kwargs);
    }
    PyObject *rest = PyTuple_GetSlice(args, 2, PyTuple_GET_SIZE(args));
    PyObject *bound = rest ? bound_new(state_current(), PyTuple_GET_ITEM(args, 1), rest, kwargs) : NULL;
    PyObject *result =
        bound ? PyObject_CallFunctionObjArgs(keeper->original, PyTuple_GET_ITEM(args, 0), bound, NULL) : NULL;
    Py_XDECREF(rest);
    Py_XDECREF(bound);
    return result;
}

/* anyio reuses its threads. Each job, a function with its arguments, runs under the state that submitted it. */
static PyObject *submit_to_worker(const Keeper *keeper, PyObject *args, PyObject *kwargs)
{
    if (PyTuple_GET_SIZE(args) < 3 || !PyTuple_Check(PyTuple_GET_ITEM(args, 2))) {
        return PyObject_Call(keeper->original, args, kwargs);
    }
    PyObject *job = bound_new(state_current(), PyTuple_GET_ITEM(args, 1), PyTuple_GET_ITEM(args, 2), NULL);
    PyObject *front = job ? Py_BuildValue("(OO())", PyTuple_GET_ITEM(args, 0), job) : NULL;
    PyObject *rest = front ? PyTuple_GetSlice(args, 3, PyTuple_GET_SIZE(args)) : NULL;
    PyObject *changed = rest ? PySequence_Concat(front, rest) : NULL;
    PyObject *result = changed ? PyObject_Call(keeper->original, changed, kwargs) : NULL;
    Py_XDECREF(job);
    Py_XDECREF(front);
    Py_XDECREF(rest);
    Py_XDECREF(changed);
    return result;
}

/* A process pool pickles its function, so it is not bound. */
static bool needs_binding(const Keeper *keeper, PyObject *args)
{
    return keeper->threads == NULL ||
           (PyTuple_GET_SIZE(args) > 0 && PyObject_IsInstance(PyTuple_GET_ITEM(args, 0), keeper->threads) == 1);
}

/* concurrent.futures: the callback runs on the thread that completes the future. */
static PyObject *add_done_callback(const Keeper *keeper, PyObject *args, PyObject *kwargs)
{
    bool plain = PyTuple_GET_SIZE(args) == 2 && kwargs == NULL && PyCallable_Check(PyTuple_GET_ITEM(args, 1));
    if (!plain) {
        State *state = state_guarding();
        return state ? call_bound(state, keeper, args, kwargs) : PyObject_Call(keeper->original, args, kwargs);
    }
    PyObject *bound = callback_of(state_current(), PyTuple_GET_ITEM(args, 1), PyTuple_GET_ITEM(args, 0));
    PyObject *result =
        bound ? PyObject_CallFunctionObjArgs(keeper->original, PyTuple_GET_ITEM(args, 0), bound, NULL) : NULL;
    Py_XDECREF(bound);
    return result;
}

/* The loop passes its jobs to this executor: a class of the subject would get jobs of the host. */
static bool is_plain_executor(PyObject *args)
{
    PyTypeObject *type = PyTuple_GET_SIZE(args) == 2 ? Py_TYPE(PyTuple_GET_ITEM(args, 1)) : NULL;
    PyObject *found = type ? _PyType_Lookup(type, submit_name) : NULL;
    const Keeper *keeper = found && Py_IS_TYPE(found, &Keeper_Type) ? (Keeper *)found : NULL;
    PyObject *code = keeper && PyFunction_Check(keeper->original) ? PyFunction_GET_CODE(keeper->original) : NULL;
    return code != NULL && keeper->owner == (PyObject *)type && resident_owner((PyCodeObject *)code) == NULL;
}

static PyObject *keeper_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    const Keeper *keeper = (Keeper *)self;
    int index = keeper->index;
    if (index == SUBMIT) {
        return submit(keeper, args, kwargs);
    }
    if (index == DONE_CALLBACK) {
        return add_done_callback(keeper, args, kwargs);
    }
    if (index == WORKER_THREAD) {
        return submit_to_worker(keeper, args, kwargs);
    }
    if (index == LOOP_ERRORS_GET || index == LOOP_TASKS_GET) {
        return unbound_own(PyObject_Call(keeper->original, args, kwargs));
    }
    State *state = state_guarding();
    if (state == NULL || !needs_binding(keeper, args) || called_by_library_import()) {
        return PyObject_Call(keeper->original, args, kwargs);
    }
    if (index == LOOP_EXECUTOR && !is_plain_executor(args)) {
        return deny_text(state, DENY_TAMPER, "set_default_executor");
    }
    return call_bound(state, keeper, args, kwargs);
}

/* ---- what stands in the place of a method --------------------------------------------------------- */

static PyObject *keeper_bind(PyObject *self, PyObject *object, PyObject *type)
{
    return object == NULL || object == Py_None || !((Keeper *)self)->binds ? Py_NewRef(self)
                                                                           : PyMethod_New(self, object);
}

static bool is_one_of(PyObject *name, const char *const *names, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

static PyObject *keeper_get(PyObject *self, PyObject *name)
{
    static const char *const words[] = {"__name__", "__qualname__", "__doc__", "__module__"};
    static const char *const parts[] = {"__code__",        "__defaults__", "__kwdefaults__",
                                        "__annotations__", "__globals__",  "__type_params__"};
    bool guarded = state_guarding() != NULL;
    if (!guarded && PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "__class__") == 0) {
        return Py_NewRef(&PyFunction_Type);
    }
    if (guarded && PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "__text_signature__") == 0) {
        return PyUnicode_FromString(methods[((Keeper *)self)->index].signature);
    }
    bool shown = is_one_of(name, words, sizeof words / sizeof *words) ||
                 (!guarded && is_one_of(name, parts, sizeof parts / sizeof *parts));
    return shown ? PyObject_GetAttr(((Keeper *)self)->original, name) : PyObject_GenericGetAttr(self, name);
}

static PyObject *keeper_repr(PyObject *self)
{
    PyObject *name = PyObject_GetAttrString(((Keeper *)self)->original, "__qualname__");
    PyObject *text = name ? PyUnicode_FromFormat("<function %U at %p>", name, self) : NULL;
    Py_XDECREF(name);
    return text;
}

static PyObject *keeper_reduce(PyObject *self, PyObject *unused)
{
    return PyObject_GetAttrString(((Keeper *)self)->original, "__qualname__");
}

static void keeper_dealloc(PyObject *self)
{
    if (((Keeper *)self)->weak != NULL) {
        PyObject_ClearWeakRefs(self);
    }
    Py_DECREF(((Keeper *)self)->owner);
    Py_DECREF(((Keeper *)self)->original);
    Py_XDECREF(((Keeper *)self)->threads);
    PyObject_Free(self);
}

static PyMethodDef keeper_methods[] = {{"__reduce__", keeper_reduce, METH_NOARGS, NULL}, {NULL}};

static PyTypeObject Keeper_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "democrai_sandbox.guard._core.Keeper",
    .tp_basicsize = sizeof(Keeper),
    .tp_weaklistoffset = offsetof(Keeper, weak),
    .tp_dealloc = keeper_dealloc,
    .tp_call = keeper_call,
    .tp_descr_get = keeper_bind,
    .tp_getattro = keeper_get,
    .tp_repr = keeper_repr,
    .tp_methods = keeper_methods,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE |
                Py_TPFLAGS_METHOD_DESCRIPTOR,
};

static PyObject *keeper_new(int index, PyObject *owner, PyObject *original, PyObject *threads)
{
    Keeper *keeper = PyType_Ready(&Keeper_Type) < 0 ? NULL : PyObject_New(Keeper, &Keeper_Type);
    if (keeper != NULL) {
        keeper->weak = NULL;
        keeper->owner = Py_NewRef(owner);
        keeper->original = Py_NewRef(original);
        keeper->threads = Py_XNewRef(threads);
        keeper->index = index;
        keeper->binds = methods[index].type != NULL;
    }
    return (PyObject *)keeper;
}

/* Replaces a Python method, class method or function. Returns like a LatePatch. */
static int replace_method(PyObject *module, int index, PyObject *threads)
{
    const Method *method = &methods[index];
    PyObject *owner = method->type ? PyObject_GetAttrString(module, method->type) : Py_NewRef(module);
    PyObject *found = owner ? PyObject_GetAttrString(owner, method->name) : NULL;
    if (found == NULL) {
        Py_XDECREF(owner);
        PyErr_Clear();
        return 0; /* still being imported */
    }
    bool of_class = PyMethod_Check(found);
    if (of_class) {
        Py_SETREF(found, Py_NewRef(PyMethod_GET_FUNCTION(found)));
    }
    int result = 1;
    if (!Py_IS_TYPE(found, &Keeper_Type)) {
        PyObject *keeper = keeper_new(index, owner, found, threads);
        if (keeper != NULL && of_class) {
            Py_SETREF(keeper, PyClassMethod_New(keeper));
        }
        result = keeper == NULL || PyObject_SetAttrString(owner, method->name, keeper) < 0 ? -1 : 1;
        Py_XDECREF(keeper);
    }
    Py_DECREF(owner);
    Py_DECREF(found);
    return result;
}

static int replace_methods(PyObject *module, int first, int last, PyObject *threads)
{
    int result = 1;
    for (int i = first; result == 1 && i <= last; i++) {
        result = replace_method(module, i, threads);
    }
    return result;
}

int anyio_patch(PyObject *module)
{
    return replace_method(module, WORKER_THREAD, NULL);
}

int executor_patch(PyObject *module)
{
    return replace_method(module, SUBMIT, NULL);
}

/* A step or wake-up of a task belongs to that task, not to the code that completed the awaited future. */
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

/* bind_foreign(callback, context) -> callback: called by Handle.__init__ of asyncio for every handle with a context. A
 * context that is not the subject's must not remove the restrictions of a callback. */
PyObject *bind_foreign(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2 || LIKELY(live_states == 0) || is_task_step(args[0])) {
        return Py_NewRef(nargs > 0 ? args[0] : Py_None);
    }
    State *state = state_guarding();
    return state && is_foreign_context(state, args[1]) ? bind_to(state, args[0]) : Py_NewRef(args[0]);
}

PyObject *handle_code = NULL; /* the code of Handle.__init__ with the call in it; see guard/stdlib_patches.py */

int asyncio_patch(PyObject *module)
{
    PyObject *type = PyObject_GetAttrString(module, "Handle");
    PyObject *function = type ? PyObject_GetAttrString(type, "__init__") : NULL;
    Py_XDECREF(type);
    if (function == NULL || handle_code == NULL || !PyFunction_Check(function)) {
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
    return replace_methods(module, LOOP_ERRORS, LOOP_TASKS_GET, NULL);
}

int future_patch(PyObject *module)
{
    return replace_method(module, DONE_CALLBACK, NULL);
}

int threading_patch(PyObject *module)
{
    return replace_method(module, THREAD_EXIT, NULL);
}

int pool_patch(PyObject *module)
{
    PyObject *threads = PyObject_GetAttrString(module, "ThreadPool");
    if (threads == NULL) {
        PyErr_Clear();
        return 0;
    }
    int result = replace_methods(module, POOL_APPLY, POOL_UNORDERED, threads);
    Py_DECREF(threads);
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

static PyObject *refuse_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyErr_Format(PyExc_TypeError, "cannot create '%s' instances", type->tp_name);
    return NULL;
}

/* Types of which the interpreter itself makes instances; other instances crash when they are used. */
static int shut_type(const char *name)
{
    PyObject *types = PyObject_CallMethod((PyObject *)&PyType_Type, "__subclasses__", "O", &PyBaseObject_Type);
    for (Py_ssize_t i = 0; types != NULL && i < PyList_GET_SIZE(types); i++) {
        PyTypeObject *type = (PyTypeObject *)PyList_GET_ITEM(types, i);
        const char *dot = strrchr(type->tp_name, '.');
        bool named = strcmp(dot ? dot + 1 : type->tp_name, name) == 0;
        if (named && (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) || PyType_GetModule(type) != NULL)) {
            type->tp_new = refuse_new;
        }
        PyErr_Clear();
    }
    Py_XDECREF(types);
    return types ? 0 : -1;
}

int task_patch(PyObject *module)
{
    futures_patch(module);
    int result =
        patch_type(module, "Task", "__init__", offsetof(PyTypeObject, tp_init), (void *)task_init, &task_original);
    return shut_type("TaskStepMethWrapper") < 0 ? -1 : result;
}

int finalize_patch(PyObject *module)
{
    return replace_method(module, FINALIZE, NULL);
}

int callback_holders_ready(void)
{
    submit_name = PyUnicode_InternFromString("submit");
    return submit_name ? shut_type("InstructionSequence") : -1;
}
