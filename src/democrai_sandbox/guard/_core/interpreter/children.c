/* Child processes. They are refused by default. If the runtime allows them, they get the environment that the
 * runtime owns. */
#include "interpreter/interpreter.h"

#include <signal.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

Row *spawn_row = NULL, *execve_row = NULL; /* os.posix_spawn and os.execve, set by table_ready */

extern char **environ;

static void *refuse(State *state, const Call *call)
{
    char entrypoint[128];
    snprintf(entrypoint, sizeof entrypoint, "%s.%s", call->row->public_module, call->row->name);
    return deny_text(state, DENY_SUBPROCESS, entrypoint);
}

PyObject *on_process(State *state, Call *call)
{
    return state->allow_subprocess ? call_original(call) : refuse(state, call);
}

/* pidfd_open: a descriptor that stands for a process. */
PyObject *on_process_handle(State *state, Call *call)
{
    PyObject *result = on_process(state, call);
    if (result != NULL && PyLong_CheckExact(result)) {
        descriptor_adopt(state, (int)PyLong_AsLong(result));
    }
    return result;
}

/* fork, fork1, forkpty: the child's number comes first, then the descriptor of its terminal. */
PyObject *on_fork(State *state, Call *call)
{
    PyObject *result = on_process(state, call);
    if (result != NULL) {
        bool has_terminal = PyTuple_Check(result) && PyTuple_GET_SIZE(result) == 2;
        child_started(state, has_terminal ? PyTuple_GET_ITEM(result, 0) : result);
        if (has_terminal) {
            descriptor_adopt(state, (int)PyLong_AsLong(PyTuple_GET_ITEM(result, 1)));
        }
    }
    return result;
}

/* The signal that a call sends to this process, directly or by a timer. */
static int signal_meant(const Call *call)
{
    static const int timers[] = {SIGALRM, SIGVTALRM, SIGPROF};
    double argument = call->nargs > 0 ? PyFloat_AsDouble(call->args[0]) : 0;
    PyErr_Clear(); /* a number that fits nothing: the call itself refuses it */
    if (strcmp(call->row->name, "alarm") == 0) {
        return SIGALRM;
    }
    int number = argument > INT_MAX || argument < 0 ? -1 : (int)argument;
    bool is_timer = strcmp(call->row->name, "setitimer") == 0;
    return !is_timer ? number : number >= 0 && number < 3 ? timers[number] : -1;
}

/* Timers and signals to this process are allowed if a subject handles the signal. Others belong to the host, or would
 * end it. */
static PyObject *send_own(State *state, Call *call)
{
    int number = signal_meant(call);
    return number < 1 || signal_is_subjects(number) ? call_original(call) : on_process(state, call);
}

/* An int or a float of exactly that type: others convert themselves each time they are asked. */
static PyObject *exact_argument(PyObject *value)
{
    return PyFloat_Check(value) ? PyFloat_FromDouble(PyFloat_AS_DOUBLE(value)) : PyNumber_Index(value);
}

PyObject *on_own_signal(State *state, Call *call)
{
    PyObject *argv[MAX_ARGS], *exact[MAX_ARGS] = {NULL}, *result = NULL;
    Call copy;
    if (call->kwnames != NULL || call_copy(call, argv, &copy) < 0) {
        return PyErr_Occurred() ? NULL : call_original(call); /* which takes none by name */
    }
    Py_ssize_t count = 0;
    while (count < call->nargs && (exact[count] = exact_argument(call->args[count])) != NULL) {
        argv[count] = exact[count];
        count++;
    }
    if (count == call->nargs) {
        result = send_own(state, &copy);
    }
    while (count > 0) {
        Py_DECREF(exact[--count]);
    }
    return result;
}

/* The mask is the whole process's. Libraries set it for a moment and set it back. */
PyObject *on_umask(State *state, Call *call)
{
    return caller_is_library() ? call_original(call) : on_process(state, call);
}

/* The shadow file read by libc, not by open(). */
PyObject *on_secret_database(State *state, Call *call)
{
    return deny_path(state, "/etc/shadow", OP_READ, false);
}

/* ---- the child's environment ----------------------------------------------------------------- */

/* Builds DEMOCRAI_* for children of this state, as a dict of bytes; set by the Python side. */
PyObject *child_environment = NULL;

static PyObject *owned_environment(State *state)
{
    PyObject *view = state_view(state);
    PyObject *owned = view && child_environment ? PyObject_CallOneArg(child_environment, view) : NULL;
    Py_XDECREF(view);
    if (owned != NULL && !PyDict_CheckExact(owned)) {
        Py_CLEAR(owned);
    }
    if (owned == NULL && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_RuntimeError, "the guard has no environment for children");
    }
    return owned;
}

/* A value that the process already has (a copy of os.environ) is dropped silently; any other is an attempt to spoof. */
static int check_given(State *state, const char *pair)
{
    const char *equals = strchr(pair, '=');
    char name[256];
    snprintf(name, sizeof name, "%.*s", equals ? (int)(equals - pair) : 255, pair);
    const char *known = getenv(name);
    if (known != NULL && equals != NULL && strcmp(known, equals + 1) == 0) {
        return 0;
    }
    deny_text(state, DENY_ENVIRONMENT, name);
    return -1;
}

static int append_pair(PyObject *list, const char *pair)
{
    PyObject *bytes = PyBytes_FromString(pair);
    int result = bytes ? PyList_Append(list, bytes) : -1;
    Py_XDECREF(bytes);
    return result;
}

static int append_inherited(PyObject *list)
{
    for (char **pair = environ; pair && *pair; pair++) {
        if (!is_owned_variable(*pair) && append_pair(list, *pair) < 0) {
            return -1;
        }
    }
    return 0;
}

static int append_given(State *state, PyObject *list, PyObject *given)
{
    PyObject *pairs = PySequence_Fast(given, "env must be a sequence");
    int result = pairs ? 0 : -1;
    for (Py_ssize_t i = 0; result == 0 && i < PySequence_Fast_GET_SIZE(pairs); i++) {
        PyObject *bytes = NULL;
        if (!PyUnicode_FSConverter(PySequence_Fast_GET_ITEM(pairs, i), &bytes)) {
            result = -1;
            break;
        }
        const char *pair = PyBytes_AS_STRING(bytes);
        result = is_owned_variable(pair) ? check_given(state, pair) : append_pair(list, pair);
        Py_DECREF(bytes);
    }
    Py_XDECREF(pairs);
    return result;
}

static int append_owned(State *state, PyObject *list)
{
    PyObject *owned = owned_environment(state), *key, *value;
    Py_ssize_t position = 0;
    int result = owned ? 0 : -1;
    while (result == 0 && PyDict_Next(owned, &position, &key, &value)) {
        PyObject *pair = PyUnicode_FromFormat("%U=%U", key, value);
        PyObject *bytes = pair ? PyUnicode_EncodeFSDefault(pair) : NULL;
        result = bytes ? PyList_Append(list, bytes) : -1;
        Py_XDECREF(pair);
        Py_XDECREF(bytes);
    }
    Py_XDECREF(owned);
    return result;
}

/* "NAME=value" bytes: what was given (or inherited) without DEMOCRAI_*, and DEMOCRAI_* from the guard. */
static PyObject *environment_pairs(State *state, PyObject *given)
{
    PyObject *list = PyList_New(0);
    if (list == NULL) {
        return NULL;
    }
    int result = given == NULL || given == Py_None ? append_inherited(list) : append_given(state, list, given);
    if (result < 0 || append_owned(state, list) < 0) {
        Py_CLEAR(list);
    }
    return list;
}

/* A name may begin with "=", as the interpreter has it; newer ones refuse another one in it. */
static PyObject *environment_pair(const char *name, const char *value)
{
    if (PY_VERSION_HEX >= 0x030D0000 && name[0] != '\0' && strchr(name + 1, '=') != NULL) {
        PyErr_SetString(PyExc_ValueError, "illegal environment variable name");
        return NULL;
    }
    return PyBytes_FromFormat("%s=%s", name, value);
}

/* The same as a mapping, which posix_spawn and execve take. */
static PyObject *environment_mapping(State *state, PyObject *given)
{
    PyObject *pairs = NULL, *mapping = NULL, *list = NULL;
    if (given != NULL && given != Py_None) {
        PyObject *items = PyMapping_Items(given);
        list = items ? PyList_New(0) : NULL;
        for (Py_ssize_t i = 0; list != NULL && i < PyList_GET_SIZE(items); i++) {
            PyObject *name = NULL, *value = NULL, *item = PyList_GET_ITEM(items, i), *pair = NULL;
            if (PyArg_ParseTuple(item, "O&O&", PyUnicode_FSConverter, &name, PyUnicode_FSConverter, &value)) {
                pair = environment_pair(PyBytes_AS_STRING(name), PyBytes_AS_STRING(value));
            }
            if (pair == NULL || PyList_Append(list, pair) < 0) {
                Py_CLEAR(list);
            }
            Py_XDECREF(pair);
            Py_XDECREF(name);
            Py_XDECREF(value);
        }
        Py_XDECREF(items);
        if (list == NULL) {
            return NULL;
        }
    }
    pairs = environment_pairs(state, list);
    Py_XDECREF(list);
    mapping = pairs ? PyDict_New() : NULL;
    for (Py_ssize_t i = 0; mapping != NULL && i < PyList_GET_SIZE(pairs); i++) {
        const char *pair = PyBytes_AS_STRING(PyList_GET_ITEM(pairs, i)), *equals = strchr(pair + (*pair == '='), '=');
        PyObject *name = equals ? PyBytes_FromStringAndSize(pair, equals - pair) : NULL;
        PyObject *value = name ? PyBytes_FromString(equals + 1) : NULL;
        if (value != NULL && PyDict_SetItem(mapping, name, value) < 0) {
            Py_CLEAR(mapping);
        }
        Py_XDECREF(name);
        Py_XDECREF(value);
    }
    Py_XDECREF(pairs);
    return mapping;
}

/* ---- which programs -------------------------------------------------------------------------- */

/* The resolved program, which the chain must list; NULL with an exception. */
static PyObject *named_program(State *state, PyObject *given)
{
    PathText text;
    char location[PATH_MAX];
    unsigned granted = 0;
    PyObject *result = NULL;
    if (path_is_descriptor(given)) {
        return deny_text(state, DENY_DESCRIPTOR, "fd");
    }
    if (path_text(given, &text) < 0) {
        return NULL;
    }
    if (location_of(&text, FOLLOW, location) == 0 && grant(state, location, OP_EXECUTE, &granted) == 0) {
        result =
            granted & OP_EXECUTE ? path_object(location, text.object) : deny_path(state, location, OP_EXECUTE, false);
    }
    Py_DECREF(text.object);
    return result;
}

/* Whether a program exists, as far as the chain may look. */
static int is_program(State *state, PyObject *given)
{
    PathText text;
    char location[PATH_MAX];
    struct stat info;
    if (path_text(given, &text) < 0) {
        return -1;
    }
    int result = location_of(&text, FOLLOW, location);
    Py_DECREF(text.object);
    if (result < 0) {
        return -1;
    }
    bool shown = location_mask(state, location) & (OP_READ | OP_EXECUTE);
    return shown && stat(location, &info) == 0 && S_ISREG(info.st_mode) && access(location, X_OK) == 0;
}

/* The first path of the search path that has the program. If none has it, a path that never exists, so that a program
 * created in the meantime is not started. */
static PyObject *named_candidate(State *state, PyObject *places)
{
    PyObject *all = PySequence_Tuple(places), *found = NULL, *bytes = NULL;
    bool is_named = all != NULL && PyTuple_GET_SIZE(all) == 1;
    int is_there = all == NULL ? -1 : is_named;
    for (Py_ssize_t i = 0; is_there == 0 && i < PyTuple_GET_SIZE(all); i++) {
        is_there = is_program(state, PyTuple_GET_ITEM(all, i));
        found = is_there > 0 ? named_program(state, PyTuple_GET_ITEM(all, i)) : NULL;
    }
    if (is_named) {
        found = named_program(state, PyTuple_GET_ITEM(all, 0));
    }
    else if (is_there == 0) {
        found = PyBytes_FromString("/proc/democrai/none");
    }
    if (found != NULL) {
        PyUnicode_FSConverter(found, &bytes);
    }
    PyObject *result = bytes ? PyTuple_Pack(1, bytes) : NULL;
    Py_XDECREF(all);
    Py_XDECREF(found);
    Py_XDECREF(bytes);
    return result;
}

/* ---- the doors ------------------------------------------------------------------------------- */

/* fork_exec raises no audit event; multiprocessing's "spawn" goes through it. Its sixth argument is the environment. */
PyObject *on_fork_exec(State *state, Call *call)
{
    enum { PLACES = 1, ENVIRONMENT = 5 };
    if (!state->allow_subprocess) {
        return refuse(state, call);
    }
    if (call->nargs <= ENVIRONMENT) {
        return call_original(call);
    }
    PyObject *argv[MAX_ARGS], *places = NULL;
    Call copy;
    if (call_copy(call, argv, &copy) < 0) {
        return NULL;
    }
    if (state_names_programs(state)) {
        places = named_candidate(state, argv[PLACES]);
        if (places == NULL) {
            return NULL;
        }
        argv[PLACES] = places;
    }
    PyObject *pairs = environment_pairs(state, argv[ENVIRONMENT]);
    PyObject *result = pairs ? call_with(&copy, ENVIRONMENT, pairs) : NULL;
    child_started(state, result);
    Py_XDECREF(pairs);
    Py_XDECREF(places);
    return result;
}

static PyObject *exec_without_environment(State *state, Call *call)
{
    PyObject *mapping = environment_mapping(state, NULL), *args[3] = {call->args[0], call->args[1], mapping};
    Call exec = {.row = execve_row, .self = execve_row->module_object, .args = args, .nargs = 3};
    PyObject *result = mapping ? call_original(&exec) : NULL;
    Py_XDECREF(mapping);
    return result;
}

static PyObject *spawn(State *state, Call *call)
{
    if (call->row->index < 0) {
        return call->nargs == 2 ? exec_without_environment(state, call) : call_original(call);
    }
    Py_ssize_t at = call_find(call, call->row->index, call->row->argument);
    if (at < 0) {
        return call_original(call);
    }
    PyObject *mapping = environment_mapping(state, call->args[at]);
    PyObject *result = mapping ? call_with(call, at, mapping) : NULL;
    child_started(state, result);
    Py_XDECREF(mapping);
    return result;
}

/* posix_spawn(path, argv, env), execve(path, argv, env), execv(path, argv) */
PyObject *on_spawn(State *state, Call *call)
{
    PyObject *argv[MAX_ARGS], *program = NULL, *result;
    Call copy;
    if (!state->allow_subprocess) {
        return refuse(state, call);
    }
    Py_ssize_t path = call_find(call, 0, "path");
    if (path >= 0 && state_names_programs(state)) {
        program = named_program(state, call->args[path]);
        if (program == NULL || call_copy(call, argv, &copy) < 0) {
            Py_XDECREF(program);
            return NULL;
        }
        argv[path] = program;
        call = &copy;
    }
    result = spawn(state, call);
    Py_XDECREF(program);
    return result;
}

static PyObject *wait_for(PyObject *child)
{
    pid_t pid = (pid_t)PyLong_AsLong(child), done;
    int status = 0;
    do {
        Py_BEGIN_ALLOW_THREADS
        done = waitpid(pid, &status, 0);
        Py_END_ALLOW_THREADS
    } while (done < 0 && errno == EINTR && PyErr_CheckSignals() == 0);
    if (PyErr_Occurred()) {
        return NULL;
    }
    return done < 0 ? PyErr_SetFromErrno(PyExc_OSError) : PyLong_FromLong(status);
}

/* system() would hand over the C environment as it is, so the shell is started here. */
PyObject *on_system(State *state, Call *call)
{
    if (!state->allow_subprocess) {
        return refuse(state, call);
    }
    Py_ssize_t at = call_find(call, 0, "command");
    if (at < 0 || spawn_row->original == NULL) {
        return call_original(call);
    }
    PyObject *mapping = environment_mapping(state, NULL), *shell = NULL, *argv = NULL, *child = NULL, *result = NULL;
    if (mapping != NULL) {
        PyObject *usual = PyUnicode_FromString("/bin/sh");
        shell = usual && state_names_programs(state) ? named_program(state, usual) : Py_XNewRef(usual);
        Py_XDECREF(usual);
        argv = shell ? Py_BuildValue("(ssO)", "sh", "-c", call->args[at]) : NULL;
    }
    if (shell != NULL && argv != NULL) {
        PyObject *args[3] = {shell, argv, mapping};
        Call spawn = {.row = spawn_row, .self = spawn_row->module_object, .args = args, .nargs = 3};
        child = call_original(&spawn);
    }
    if (child != NULL) {
        result = wait_for(child);
    }
    Py_XDECREF(mapping);
    Py_XDECREF(shell);
    Py_XDECREF(argv);
    Py_XDECREF(child);
    return result;
}
