/* Guard objects, entered by `with`, `async with` or run().
 *
 * Only the frame that entered a guard can leave it, so guarded code that finds the object cannot leave the host's
 * guard. */
#include "edge/edge.h"

#include <string.h>

bool sealed = false;

/* ---- code the runtime registered before sealing ------------------------------------------------ */

/* Code objects by identity, because any code can make equal ones. */
typedef struct {
    PyObject **items;
    Py_ssize_t count;
} CodeSet;

static CodeSet runtime_code;

static bool contains(const CodeSet *set, PyObject *code)
{
    for (Py_ssize_t i = 0; i < set->count; i++) {
        if (set->items[i] == code) {
            return true;
        }
    }
    return false;
}

static int add_all(CodeSet *set, PyObject *codes)
{
    PyObject *items = PySequence_Fast(codes, "expected a sequence of code objects");
    if (items == NULL) {
        return -1;
    }
    Py_ssize_t extra = PySequence_Fast_GET_SIZE(items);
    PyObject **grown = PyMem_Realloc(set->items, (size_t)(set->count + extra + 1) * sizeof *grown);
    if (grown == NULL) {
        Py_DECREF(items);
        PyErr_NoMemory();
        return -1;
    }
    set->items = grown;
    for (Py_ssize_t i = 0; i < extra; i++) {
        PyObject *code = PySequence_Fast_GET_ITEM(items, i);
        if (!PyCode_Check(code)) {
            PyErr_Format(PyExc_TypeError, "not a code object: %R", code);
            Py_DECREF(items);
            return -1;
        }
        set->items[set->count++] = Py_NewRef(code);
    }
    Py_DECREF(items);
    return 0;
}

bool is_runtime_code(PyObject *code)
{
    return contains(&runtime_code, code);
}

int register_runtime_code(PyObject *codes)
{
    return add_all(&runtime_code, codes);
}

static bool called_by_runtime(void)
{
    PyFrameObject *frame = PyEval_GetFrame();
    if (frame == NULL) {
        return false;
    }
    PyCodeObject *code = PyFrame_GetCode(frame);
    bool is = is_runtime_code((PyObject *)code);
    Py_DECREF(code);
    return is;
}

/* ---- the Guard object -------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD Policy *policy; /* NULL: a bypass */
    PyObject *identity;
    bool exact;
    State *state; /* while entered */
    Entered entered;
    PyObject *served;
    PyFrameObject *frame;
    bool suspendable;
} Guard;

static Guard *make_guard(Policy *policy, PyObject *identity, bool exact)
{
    Guard *guard = PyObject_New(Guard, &Guard_Type);
    if (guard == NULL) {
        return NULL;
    }
    guard->policy = (Policy *)Py_XNewRef(policy);
    guard->identity = Py_XNewRef(identity);
    guard->exact = exact;
    guard->state = NULL;
    guard->frame = NULL;
    guard->served = NULL;
    guard->entered = (Entered){NULL, NULL, NULL};
    guard->suspendable = false;
    return guard;
}

PyObject *guard_new(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"policy", "user_id", "organization_id", "session_key", "exact", NULL};
    PyObject *policy, *user, *organization, *session;
    int exact;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OOOp", names, &Policy_Type, &policy, &user, &organization,
                                     &session, &exact)) {
        return NULL;
    }
    PyObject *identity = PyTuple_Pack(3, user, organization, session);
    Guard *guard = identity ? make_guard((Policy *)policy, identity, exact) : NULL;
    Py_XDECREF(identity);
    return (PyObject *)guard;
}

PyObject *bypass_new(PyObject *module, PyObject *unused)
{
    return (PyObject *)make_guard(NULL, NULL, false);
}

static void guard_dealloc(PyObject *self)
{
    Guard *guard = (Guard *)self;
    Py_XDECREF(guard->policy);
    Py_XDECREF(guard->identity);
    if (guard->state != NULL) {
        guard->state->entering = NULL;
    }
    Py_XDECREF(guard->state);
    Py_XDECREF(guard->entered.previous);
    Py_XDECREF(guard->frame);
    Py_XDECREF(guard->served);
    PyObject_Free(self);
}

/* The first guard seals the settings and adds the audit hook. A hook makes every event of the interpreter slower, so
 * applications without guards do not have one. */
int guard_prepare(void)
{
    if (!sealed && audit_ready() < 0) {
        return -1;
    }
    sealed = true;
    return module_views_settle() < 0 || steps_settle() < 0 ? -1 : patch_loaded_modules();
}

/* A new state for this activation. The enclosing state decides whether it merges, replaces or narrows. */
static State *activate(Guard *guard)
{
    State *outer = state_current();
    bool guarded = outer != NULL && outer->mode != MODE_BYPASS;
    bool trusted = !guarded || called_by_runtime();
    if (UNLIKELY(!sealed || modules_changed()) && guard_prepare() < 0) {
        return NULL;
    }
    if (guard->policy == NULL) {
        return trusted ? state_new(outer, NULL, MODE_BYPASS, true, NULL)
                       : deny_text(outer, DENY_TAMPER, "process_guard_bypass_context");
    }
    Mode mode = !trusted ? MODE_NARROW : guard->exact ? MODE_EXACT : MODE_MERGE;
    bool children = guard->policy->network_only
                        ? !guarded || outer->allow_subprocess
                        : guard->policy->allow_subprocess && (trusted || outer->allow_subprocess);
    return state_new(outer, guard->policy, mode, children, guard->identity);
}

/* ---- with, async with --------------------------------------------------------------------------- */

/* In a generator the guard would stay active in its consumer; an exit stack leaves from another frame. */
static int check_frame(PyFrameObject *frame, bool *suspendable)
{
    if (frame == NULL) {
        PyErr_SetString(usage_error, "a guard is entered from Python code");
        return -1;
    }
    PyCodeObject *code = PyFrame_GetCode(frame);
    int flags = code->co_flags;
    bool stack = PyUnicode_CompareWithASCIIString(code->co_name, "enter_context") == 0 ||
                 PyUnicode_CompareWithASCIIString(code->co_name, "enter_async_context") == 0;
    Py_DECREF(code);
    if (flags & (CO_GENERATOR | CO_ASYNC_GENERATOR)) {
        PyErr_SetString(usage_error, "a guard cannot be entered in a generator: it would apply to the consumer; "
                                     "use guard.run(...) around the consumer");
        return -1;
    }
    if (stack) {
        PyErr_SetString(usage_error,
                        "a guard cannot be entered through an exit stack: it is left by the frame that entered it; "
                        "use a with statement or guard.run(...)");
        return -1;
    }
    *suspendable = flags & (CO_COROUTINE | CO_ITERABLE_COROUTINE);
    return 0;
}

static int enter(Guard *guard)
{
    PyFrameObject *frame = PyEval_GetFrame();
    bool suspendable;
    if (guard->state != NULL) {
        PyErr_SetString(usage_error, "this guard is entered already; make one per activation, or use guard.run(...)");
        return -1;
    }
    if (check_frame(frame, &suspendable) < 0) {
        return -1;
    }
    State *state = activate(guard);
    if (state == NULL) {
        return -1;
    }
    State *floor = floor_get();
    if (state_enter(state, &guard->entered) < 0) {
        Py_DECREF(state);
        return -1;
    }
    if (suspendable) {
        /* other tasks run on this thread while the coroutine waits: here only the ContextVar carries the state */
        Py_DECREF(floor_get());
        floor_set(floor);
        boundary_set(guard->entered.boundary);
    }
    state->entering = frame;
    guard->state = state;
    guard->served = served_save();
    guard->suspendable = suspendable;
    guard->frame = (PyFrameObject *)Py_NewRef(frame);
    return 0;
}

static int leave(Guard *guard)
{
    if (guard->state == NULL || (PyFrameObject *)guard->frame != PyEval_GetFrame()) {
        PyErr_SetString(usage_error,
                        guard->state ? "a guard is left by the frame that entered it" : "this guard is not entered");
        return -1;
    }
    State *state = guard->state;
    if (guard->suspendable) {
        State *floor = floor_get();
        guard->entered.floor = floor == state ? state->parent : floor; /* this step began inside the guard */
        guard->entered.boundary = boundary_get();
        Py_INCREF(state);
        floor_set(state);
    }
    guard->state = NULL;
    state->entering = NULL;
    state_leave(&guard->entered);
    served_restore(guard->served);
    guard->served = NULL;
    Py_DECREF(state);
    Py_CLEAR(guard->frame);
    return 0;
}

static PyObject *guard_enter(PyObject *self, PyObject *unused)
{
    return enter((Guard *)self) < 0 ? NULL : Py_NewRef(self);
}

static PyObject *guard_exit(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    return leave((Guard *)self) < 0 ? NULL : Py_NewRef(Py_False);
}

static PyObject *guard_aenter(PyObject *self, PyObject *unused)
{
    return enter((Guard *)self) < 0 ? NULL : ready_new(self);
}

static PyObject *guard_aexit(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    return leave((Guard *)self) < 0 ? NULL : ready_new(Py_False);
}

/* ---- run ---------------------------------------------------------------------------------------- */

/* Guards each step of a coroutine or generator that guarded code returned. Steals `result`. */
PyObject *guarded_result(State *state, PyObject *result)
{
    if (result == NULL || !(PyCoro_CheckExact(result) || PyGen_CheckExact(result) || PyAsyncGen_CheckExact(result))) {
        return result;
    }
    PyObject *steps = NULL;
    if (PyAsyncGen_CheckExact(result)) {
        PyErr_SetString(usage_error,
                        "an async generator would run outside the guard; iterate it inside guard.run(...)");
    }
    else {
        steps = steps_new(state, result);
    }
    Py_DECREF(result);
    return steps;
}

static PyObject *guard_run(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    if (nargs < 1) {
        PyErr_SetString(PyExc_TypeError, "run() takes a callable or a coroutine");
        return NULL;
    }
    State *state = activate((Guard *)self);
    PyObject *result = NULL;
    Entered entered;
    if (state == NULL) {
        return NULL;
    }
    if (PyCoro_CheckExact(args[0])) {
        result = steps_new(state, args[0]);
    }
    else if (state_enter(state, &entered) == 0) {
        PyObject *served = served_save();
        result = PyObject_Vectorcall(args[0], args + 1, (size_t)(nargs - 1), kwnames);
        state_leave(&entered);
        served_restore(served);
        result = guarded_result(state, result);
    }
    Py_DECREF(state);
    return result;
}

static PyObject *guard_repr(PyObject *self)
{
    const Policy *policy = ((Guard *)self)->policy;
    if (policy == NULL) {
        return PyUnicode_FromString("<Guard bypass>");
    }
    return PyUnicode_FromFormat("<Guard %U:%U%s>", policy->kind, policy->subject,
                                policy->network_only ? ", network only" : "");
}

static PyMethodDef guard_methods[] = {
    {"__enter__", guard_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))guard_exit, METH_FASTCALL, NULL},
    {"__aenter__", guard_aenter, METH_NOARGS, NULL},
    {"__aexit__", (PyCFunction)(void (*)(void))guard_aexit, METH_FASTCALL, NULL},
    {"run", (PyCFunction)(void (*)(void))guard_run, METH_FASTCALL | METH_KEYWORDS,
     "Run a callable under the guard; a coroutine or generator it returns is guarded step by step."},
    {NULL},
};

PyTypeObject Guard_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "democrai_sandbox.guard._core.Guard",
    .tp_doc = "One activation of a policy: with, async with, or run(callable).",
    .tp_basicsize = sizeof(Guard),
    .tp_dealloc = guard_dealloc,
    .tp_repr = guard_repr,
    .tp_methods = guard_methods,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
};

int guards_ready(void)
{
    PyTypeObject *types[] = {&Guard_Type, &Steps_Type, &Ready_Type, &Outlet_Type, &Wake_Type};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (PyType_Ready(types[i]) < 0) {
            return -1;
        }
    }
    return served_user_ready() < 0 || crossing_ready() < 0 ? -1 : 0;
}
