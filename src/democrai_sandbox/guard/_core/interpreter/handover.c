/* Callables that are stored for later: threads, exit functions, signal handlers, callbacks of futures, calls in
 * another Context. Each is bound to the state that stored it. */
#include "interpreter/interpreter.h"

#include <signal.h>
#include <sys/time.h>

/* ---- threads, atexit, signals ---------------------------------------------------------------- */

/* _thread.start_new_thread and relatives, atexit.register */
PyObject *on_callable(State *state, Call *call)
{
    Py_ssize_t at = call_find(call, call->row->index, call->row->argument);
    if (at < 0 || called_by_library_import()) {
        return call_original(call); /* callbacks that a library registers for itself during its import have no owner */
    }
    PyObject *bound = bind_to(state, call->args[at]);
    PyObject *result = bound ? call_with(call, at, bound) : NULL;
    Py_XDECREF(bound);
    return result;
}

enum { SIGNALS = 65 };

static PyObject *getsignal = NULL;
static bool set_by_subject[SIGNALS];

static int signals_ready(void)
{
    PyObject *module = PyImport_ImportModule("_signal");
    getsignal = module ? PyObject_GetAttrString(module, "getsignal") : NULL;
    Py_XDECREF(module);
    return getsignal ? 0 : -1;
}

/* Handlers are the process's, and so of the host. Subjects in its process may handle signals that mean nothing to
 * others, as long as the host does not. */
static bool is_free_signal(long number)
{
    struct sigaction present;
    bool meaningless = number == SIGUSR1 || number == SIGUSR2 || number == SIGALRM || number == SIGVTALRM ||
                       number == SIGPROF || (number >= SIGRTMIN && number <= SIGRTMAX);
    return process_owned || (meaningless && sigaction((int)number, NULL, &present) == 0 &&
                             (present.sa_handler == SIG_DFL || set_by_subject[number]));
}

/* Whether a subject handles it. One without a handler ends the process. */
bool signal_is_subjects(int number)
{
    struct sigaction present;
    return process_owned || (number > 0 && number < SIGNALS && set_by_subject[number] &&
                             sigaction(number, NULL, &present) == 0 && present.sa_handler != SIG_DFL);
}

/* Stops the timer of a subject together with its handler: without one, the signal would end the host. */
static void stop_timer(long number)
{
    const struct itimerval none = {{0, 0}, {0, 0}};
    int which = number == SIGALRM ? ITIMER_REAL : number == SIGVTALRM ? ITIMER_VIRTUAL : ITIMER_PROF;
    if (!process_owned && (number == SIGALRM || number == SIGVTALRM || number == SIGPROF)) {
        setitimer(which, &none, NULL);
    }
}

/* A handler the host installed keeps running as the host's when a subject puts it back. */
static PyObject *set_signal(Call *call, long number)
{
    State *state = state_guarding();
    static PyObject *host_handlers[SIGNALS];
    Py_ssize_t at = call_find(call, 1, "handler");
    if (at < 0 || number < 1 || number >= SIGNALS) {
        return call_original(call); /* which refuses them */
    }
    if (state == NULL) {
        Py_XSETREF(host_handlers[number], Py_NewRef(call->args[at]));
        set_by_subject[number] = false;
        return call_original(call);
    }
    if (!is_free_signal(number)) {
        return asker_is_library() ? PyObject_CallOneArg(getsignal, call->args[0])
                                  : deny_text(state, DENY_TAMPER, "signal.signal");
    }
    if (!PyCallable_Check(call->args[at])) {
        stop_timer(number);
    }
    if (call->args[at] == host_handlers[number]) {
        set_by_subject[number] = false;
        return call_original(call);
    }
    PyObject *bound = bind_to(state, call->args[at]);
    bound_for_signals(bound);
    PyObject *result = bound ? call_with(call, at, bound) : NULL;
    Py_XDECREF(bound);
    set_by_subject[number] = set_by_subject[number] || result != NULL;
    if (result != NULL && host_handlers[number] == NULL && !Py_IS_TYPE(result, &Bound_Type)) {
        host_handlers[number] = Py_NewRef(result); /* set before the guard was there to see it */
    }
    return result;
}

/* signal(number, handler): the number is converted once, and passed on as that. */
PyObject *on_signal(State *unused, Call *call)
{
    PyObject *number = call->nargs == 2 && call->kwnames == NULL ? PyNumber_Index(call->args[0]) : NULL, *result = NULL;
    if (number == NULL) {
        return PyErr_Occurred() ? NULL : call_original(call);
    }
    int overflow;
    long value = PyLong_AsLongAndOverflow(number, &overflow);
    PyObject *argv[MAX_ARGS];
    Call copy;
    if (call_copy(call, argv, &copy) == 0) {
        argv[0] = number;
        result = set_signal(&copy, overflow ? -1 : value);
    }
    Py_DECREF(number);
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
    Py_ssize_t total = call_count(call), i;
    for (i = 0; i < total; i++) {
        held[i] = argv[i] = bind_to(state, argv[i]);
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

/* Whether a context does not carry the subject's state: code that runs in it would be unrestricted. */
bool is_foreign_context(State *state, PyObject *context)
{
    if (context == NULL || context == Py_None) {
        return false;
    }
    return !PyContext_CheckExact(context) || !state_descends(state_of_context(context), state);
}

/* Future.add_done_callback(fn, *, context=None) of asyncio. Bound to the state that registers it, also without a guard:
 * the code that completes the future schedules the callback, and must not change its rights. */
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

/* ---- contexts -------------------------------------------------------------------------------- */

/* While guarded code runs a function in a context, the floor is its own state, so an empty Context removes no
 * restriction. A loop that runs the next step of a task is not guarded; there the context carries the state, and no
 * code can remove it. */
PyObject *on_context_run(State *unused, Call *call)
{
    State *before = floor_get();
    if (LIKELY(before == NULL && context_is_clean())) {
        return call_original(call);
    }
    collection_release();
    State *caller = state_current();
    if (caller == NULL) {
        context_found_clean();
        return call_original(call);
    }
    Py_INCREF(caller);
    floor_set(caller);
    PyObject *result = call_original(call);
    floor_set(before);
    Py_DECREF(caller);
    return result;
}

PyObject *on_context_variable(State *unused, Call *call)
{
    State *state = call->self == state_variable ? state_guarding() : NULL;
    if (state != NULL) {
        return deny_text(state, DENY_TAMPER, "ContextVar");
    }
    int paused = collection_pause();
    PyObject *result = paused < 0 ? NULL : call_original(call);
    collection_resume(paused);
    return result;
}

PyObject *on_tamper(State *state, Call *call)
{
    return deny_text(state, DENY_TAMPER, call->row->name);
}

static newfunc context_new_original = NULL;

/* contextvars.Context() under a guard gets the state, so a task created in it is the subject's. */
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
    int failed = variable_put(state_variable, (PyObject *)state);
    if (PyContext_Exit(context) < 0 || failed < 0) {
        Py_CLEAR(context);
    }
    return context;
}

int handover_ready(void)
{
    if (PyType_Ready(&Bound_Type) < 0 || signals_ready() < 0) {
        return -1;
    }
    context_new_original = PyContext_Type.tp_new;
    return patch_slot(&PyContext_Type, NULL, (void **)&PyContext_Type.tp_new, (void *)context_new);
}

/* atexit.unregister(function) removes every function that is equal to its argument. The argument is replaced by an
 * object that is equal to functions of the caller's chain only. */
PyObject *on_unregister(State *state, Call *call)
{
    if (call->nargs != 1 || call->kwnames != NULL) {
        return call_original(call); /* which refuses it */
    }
    PyObject *wanted = bound_equal(state, call->args[0]);
    PyObject *result = wanted ? call_with(call, 0, wanted) : NULL;
    Py_XDECREF(wanted);
    return result;
}
