/* Settings of the process that belong to the host: exit status of its children, exit functions, crash handlers,
 * priorities and limits. A subject may wait for the children that it started.
 *
 * The subject's own code is refused. If a library changes such a setting in passing, the call does nothing. */
#include "interpreter/interpreter.h"

#include <limits.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

/* ---- children -------------------------------------------------------------------------------------- */

typedef struct {
    int pid;
    uint64_t policy; /* 0: a free place */
} Child;

static Child *children = NULL;
static size_t children_size = 0;

/* Notes which subject started a process; the result of the call is its number. */
void child_started(const State *state, PyObject *result)
{
    long pid = result && PyLong_CheckExact(result) ? PyLong_AsLong(result) : -1;
    while (state->mode == MODE_NARROW) {
        state = state->parent;
    }
    size_t at = 0;
    while (at < children_size && children[at].policy != 0 && children[at].pid != pid) {
        at++;
    }
    if (pid <= 0 || pid > INT_MAX) {
        return;
    }
    if (at == children_size) {
        size_t size = (children_size + 8) * 2;
        Child *grown = PyMem_Realloc(children, size * sizeof *children);
        if (grown == NULL) {
            return; /* only the host waits for it */
        }
        memset(grown + children_size, 0, (size - children_size) * sizeof *children);
        children = grown;
        children_size = size;
    }
    children[at] = (Child){(int)pid, state->policy->id};
}

static Child *find_child(const State *state, long pid)
{
    for (size_t i = 0; pid > 0 && i < children_size; i++) {
        if (children[i].policy != 0 && children[i].pid == pid && state_has_policy(state, children[i].policy)) {
            return &children[i];
        }
    }
    return NULL;
}

/* Whether the call has collected the child: then its number may be another process's soon. */
static bool has_ended(const Call *call, PyObject *result)
{
    bool looks_only = strcmp(call->row->name, "waitid") == 0;
    PyObject *pid =
        !looks_only && PyTuple_Check(result) && PyTuple_GET_SIZE(result) > 0 ? PyTuple_GET_ITEM(result, 0) : NULL;
    return pid != NULL && PyLong_Check(pid) && PyLong_AsLong(pid) > 0;
}

/* waitpid(pid, options), wait4(pid, options), waitid(idtype, id, options): `index` is where the number is; -1: any
 * child, which includes the host's. */
PyObject *on_wait(State *state, Call *call)
{
    Py_ssize_t at = call->row->index;
    bool by_kind = at == 1;
    PyObject *number = at >= 0 && call->nargs > at ? PyNumber_Index(call->args[at]) : NULL;
    if (at >= 0 && call->nargs > at && number == NULL) {
        return NULL;
    }
    PyObject *kind = number && by_kind ? PyNumber_Index(call->args[0]) : NULL;
    long pid = number ? PyLong_AsLong(number) : -1;
    bool by_number = !by_kind || (kind != NULL && PyLong_AsLong(kind) == P_PID);
    PyErr_Clear();
    Child *child = by_number ? find_child(state, pid) : NULL;
    PyObject *argv[MAX_ARGS], *result = NULL;
    Call copy;
    if (child == NULL) {
        deny_text(state, DENY_SUBPROCESS, call->row->denied);
    }
    else if (call_copy(call, argv, &copy) == 0) {
        argv[at] = number;
        if (by_kind) {
            argv[0] = kind;
        }
        result = call_original(&copy);
        child = find_child(state, pid); /* the list may have grown */
        if (result != NULL && child != NULL && has_ended(call, result)) {
            child->policy = 0;
        }
    }
    Py_XDECREF(number);
    Py_XDECREF(kind);
    return result;
}

/* ---- settings of the process ------------------------------------------------------------------------- */

PyObject *on_host_setting(State *state, Call *call)
{
    if (caller_is_library()) {
        Py_RETURN_NONE;
    }
    return deny_text(state, DENY_TAMPER, call->row->denied);
}

/* A setting that is harmless in a process that runs one subject alone. */
PyObject *on_shared_setting(State *state, Call *call)
{
    return process_owned ? call_original(call) : on_host_setting(state, call);
}

static PyObject *searchers = NULL; /* list: functions that guarded code has registered to search for codecs */

/* codecs.register(search_function) */
PyObject *on_codec_search(State *state, Call *call)
{
    PyObject *result = call_original(call);
    searchers = searchers ? searchers : PyList_New(0);
    if (result != NULL && (searchers == NULL || PyList_Append(searchers, call->args[0]) < 0)) {
        Py_CLEAR(result);
    }
    return result;
}

/* codecs.unregister(search_function): those of the host stay. */
PyObject *on_codec_removal(State *state, Call *call)
{
    PyObject *function = call->nargs == 1 ? call->args[0] : NULL;
    for (Py_ssize_t i = 0; searchers != NULL && i < PyList_GET_SIZE(searchers); i++) {
        if (PyList_GET_ITEM(searchers, i) == function) {
            PyObject *result = call_original(call);
            return result && PyList_SetSlice(searchers, i, i + 1, NULL) < 0 ? (Py_DECREF(result), NULL) : result;
        }
    }
    return on_shared_setting(state, call);
}

/* gc.disable and similar: ordinary code tunes the collector. The call does nothing, because the collector is also the
 * host's. */
PyObject *on_collector(State *state, Call *call)
{
    return process_owned ? call_original(call) : Py_NewRef(Py_None);
}

/* stack_size(size): applies to new threads of the host too. Without a size it returns the current one. */
PyObject *on_stack_size(State *state, Call *call)
{
    bool asks = call->nargs == 0 && (call->kwnames == NULL || PyTuple_GET_SIZE(call->kwnames) == 0);
    if (asks || process_owned) {
        return call_original(call);
    }
    if (!caller_is_library()) {
        return deny_text(state, DENY_TAMPER, call->row->denied);
    }
    Call question = *call;
    question.nargs = 0;
    question.kwnames = NULL;
    return call_original(&question);
}

/* register_error(name, handler): each codec of the process uses those that the interpreter has. */
PyObject *on_register_error(State *state, Call *call)
{
    static const char *const kept[] = {"strict",           "ignore",      "replace",       "xmlcharrefreplace",
                                       "backslashreplace", "namereplace", "surrogatepass", "surrogateescape"};
    const char *name = call->nargs > 0 && PyUnicode_Check(call->args[0]) ? PyUnicode_AsUTF8(call->args[0]) : NULL;
    PyErr_Clear(); /* a name that is not text is refused by the function itself */
    for (size_t i = 0; name != NULL && i < sizeof kept / sizeof *kept; i++) {
        if (strcmp(name, kept[i]) == 0) {
            return on_shared_setting(state, call);
        }
    }
    return call_original(call);
}

/* nice(increment): with 0 it only returns the priority. */
PyObject *on_nice(State *state, Call *call)
{
    PyObject *nothing = PyLong_FromLong(0);
    PyObject *result = NULL;
    bool asks = call->nargs == 1 && PyLong_CheckExact(call->args[0]) && PyLong_AsLong(call->args[0]) == 0;
    PyErr_Clear();
    if (call->nargs == 1 && (asks || caller_is_library())) {
        result = nothing ? call_with(call, 0, nothing) : NULL;
    }
    else {
        deny_text(state, DENY_TAMPER, call->row->denied);
    }
    Py_XDECREF(nothing);
    return result;
}

/* initscr(): the screen is that of the standard streams, and without one the library ends the process. */
PyObject *on_screen(State *state, Call *call)
{
    return process_owned ? on_named_by_environment(state, call) : deny_text(state, DENY_TAMPER, "curses.initscr");
}

/* The C library uses the number of a thread as an address, so only the caller's own thread is allowed. */
PyObject *on_own_thread(State *state, Call *call)
{
    bool own = call->nargs == 1 && PyLong_CheckExact(call->args[0]) &&
               PyLong_AsUnsignedLong(call->args[0]) == PyThread_get_thread_ident();
    return PyErr_Occurred() ? NULL : own ? call_original(call) : deny_text(state, DENY_TAMPER, call->row->denied);
}

/* Methods that the interpreter itself calls, and that read arguments without counting them. */
PyObject *on_enough_arguments(State *state, Call *call)
{
    if (call->nargs < call->row->least || call->kwnames != NULL) {
        PyErr_Format(PyExc_TypeError, "%s expected %d arguments, got %zd", call->row->name, call->row->least,
                     call->nargs);
        return NULL;
    }
    return call_original(call);
}

/* pthread_sigmask(how, mask): an empty mask only tells which signals are blocked. */
PyObject *on_signal_mask(State *state, Call *call)
{
    PyObject *mask = call->nargs == 2 ? PySequence_List(call->args[1]) : NULL, *block = NULL, *result = NULL;
    if (call->nargs == 2 && mask == NULL) {
        return NULL;
    }
    bool asks = mask != NULL && PyList_GET_SIZE(mask) == 0;
    long how = mask != NULL && PyLong_CheckExact(call->args[0]) ? PyLong_AsLong(call->args[0]) : SIG_BLOCK;
    if (how < SIG_BLOCK || how > SIG_SETMASK) {
        Py_XDECREF(mask);
        return PyErr_Occurred() ? NULL : call_original(call); /* which refuses it */
    }
    if (mask != NULL && (asks || caller_is_library())) {
        PyObject *argv[MAX_ARGS];
        Call copy;
        Py_SETREF(mask, PyList_New(0));
        block = PyLong_FromLong(0); /* SIG_BLOCK: with SIG_SETMASK an empty one would unblock all */
        if (mask != NULL && block != NULL && call_copy(call, argv, &copy) == 0) {
            argv[0] = block;
            argv[1] = mask;
            result = call_original(&copy);
        }
    }
    else {
        deny_text(state, DENY_TAMPER, call->row->denied);
    }
    Py_XDECREF(mask);
    Py_XDECREF(block);
    return result;
}
