/* The audit hook: checks events of calls that are not in the table of patched builtins.
 *
 * CPython recommends the C API for security-sensitive hooks. The hook returns at once while no guard is active. It
 * compares the text of an event name, because callers of sys.audit() create the name objects. */
#include "edge/edge.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

static bool is(const char *event, const char *name)
{
    return strcmp(event, name) == 0;
}

static bool begins(const char *event, const char *prefix)
{
    return strncmp(event, prefix, strlen(prefix)) == 0;
}

static PyObject *item(PyObject *args, Py_ssize_t index)
{
    return PyTuple_Check(args) && index < PyTuple_GET_SIZE(args) ? PyTuple_GET_ITEM(args, index) : Py_None;
}

/* An open that no patch has checked: native code that raises the event (DH parameters of OpenSSL, the FileIO type of a
 * re-created module). It opens the path itself afterwards, so only an exact path can be decided on. */
static int on_open_event(State *state, PyObject *args)
{
    PyObject *path = item(args, 0), *flags_object = item(args, 2);
    if (PyLong_Check(path)) {
        return descriptor_check(state, path, OP_READ | OP_MODIFY);
    }
    if (!PyUnicode_CheckExact(path) && !PyBytes_CheckExact(path)) {
        deny_text(state, DENY_DESCRIPTOR, "path");
        return -1;
    }
    long flags = PyLong_Check(flags_object) ? PyLong_AsLong(flags_object) : O_RDWR | O_CREAT;
    const char *mode = PyUnicode_Check(item(args, 1)) ? PyUnicode_AsUTF8(item(args, 1)) : "";
    if (mode == NULL) {
        return -1;
    }
    if (strpbrk(mode, "wax+") != NULL && (flags & O_ACCMODE) == O_RDONLY) {
        flags |= O_RDWR | O_CREAT; /* fopen() has a mode and no flags */
    }
    PathText text;
    if (path_text(path, &text) < 0) {
        return -1;
    }
    char location[PATH_MAX];
    if (location_of(&text, FOLLOW, location) < 0) {
        Py_DECREF(text.object);
        return -1;
    }
    unsigned wanted = (flags & O_ACCMODE) == O_WRONLY ? 0 : OP_READ;
    wanted |= (flags & O_ACCMODE) == O_RDONLY ? 0 : OP_MODIFY;
    wanted |= flags & O_CREAT ? OP_CREATE : 0;
    int result = require(state, location, wanted);
    Py_DECREF(text.object);
    return result;
}

/* "import" comes before a module is looked for, and again with the file name of a native one. */
static int on_import_event(State *state, PyObject *args)
{
    PyObject *name = item(args, 0), *file = item(args, 1);
    if (import_check(state, name, true) < 0) {
        return -1;
    }
    return PyUnicode_Check(file) || PyBytes_Check(file) ? import_native_check(state, file) : 0;
}

static FAST_THREAD_LOCAL bool harmless_code = false;

/* code.replace may rename code, but not change what it does: crafted bytecode corrupts the interpreter. */
PyObject *on_code_replace(State *state, Call *call)
{
    static const char *const names[] = {"co_name", "co_qualname", "co_filename", "co_firstlineno", "co_flags"};
    bool harmless = call->nargs == 0;
    for (Py_ssize_t i = 0; call->kwnames != NULL && i < PyTuple_GET_SIZE(call->kwnames); i++) {
        PyObject *name = PyTuple_GET_ITEM(call->kwnames, i), *value = call->args[call->nargs + i];
        bool known = false;
        for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
            known = known || PyUnicode_CompareWithASCIIString(name, names[k]) == 0;
        }
        /* others convert themselves while the flag is set */
        known = known && (PyLong_CheckExact(value) || PyUnicode_CheckExact(value));
        if (PyUnicode_CompareWithASCIIString(name, "co_flags") == 0) {
            long flags = PyLong_CheckExact(value) ? PyLong_AsLong(value) : -1;
            known = ((flags ^ ((PyCodeObject *)call->self)->co_flags) & ~CO_ITERABLE_COROUTINE) == 0;
        }
        harmless = harmless && known;
    }
    harmless_code = harmless;
    PyObject *result = call_original(call);
    harmless_code = false;
    if (result != NULL && resident_inherit(state, call->self, result) < 0) {
        Py_CLEAR(result);
    }
    return result;
}

/* Whether a function keeps doing what it does: the same instructions, constants and names. */
static bool same_code(PyObject *function, PyObject *value)
{
    if (!PyFunction_Check(function) || !PyCode_Check(value)) {
        return false;
    }
    PyCodeObject *old = (PyCodeObject *)PyFunction_GET_CODE(function), *new = (PyCodeObject *)value;
    if (old->co_consts != new->co_consts || old->co_names != new->co_names) {
        return false;
    }
    PyObject *left = PyCode_GetCode(old), *right = left ? PyCode_GetCode(new) : NULL;
    bool same = right != NULL && PyObject_RichCompareBool(left, right, Py_EQ) == 1;
    Py_XDECREF(left);
    Py_XDECREF(right);
    return same;
}

/* Whether the code of a function and what it gets instead are the same subject's, or a library changes its own
 * function: what it compiles for a subject is marked as the subject's, and stays guarded wherever it runs. */
static bool same_owner(State *state, PyObject *function, PyObject *value)
{
    PyCodeObject *old = (PyCodeObject *)PyFunction_GET_CODE(function);
    if (!PyCode_Check(value) || code_is_ours(old) || code_is_ours((PyCodeObject *)value)) {
        return false;
    }
    const Policy *before = resident_owner(old);
    bool own = before == NULL && caller_is_library_of(old);
    if (own && resident_take(state, value) < 0) {
        PyErr_Clear();
    }
    const Policy *after = resident_owner((PyCodeObject *)value);
    return after != NULL && (before == after || own);
}

/* Refuses other code for a function, which the host would run as its own. */
static int on_setattr_event(State *state, PyObject *args)
{
    PyObject *name = item(args, 1), *function = item(args, 0);
    if (is_environment(function)) {
        deny(state, DENY_TAMPER, "use", name);
        return -1;
    }
    if (!PyUnicode_Check(name) || !PyFunction_Check(function)) {
        return 0;
    }
    bool code = PyUnicode_CompareWithASCIIString(name, "__code__") == 0;
    bool defaults = PyUnicode_CompareWithASCIIString(name, "__defaults__") == 0 ||
                    PyUnicode_CompareWithASCIIString(name, "__kwdefaults__") == 0;
    bool ours = code_is_ours((PyCodeObject *)PyFunction_GET_CODE(function));
    PyObject *value = item(args, 2);
    if ((code && !same_code(function, value) && !same_owner(state, function, value)) || (defaults && ours)) {
        deny(state, DENY_TAMPER, "use", name);
        return -1;
    }
    return 0;
}

static int on_code_event(State *state, const char *event)
{
    if (harmless_code) {
        harmless_code = false;
        return 0;
    }
    deny_text(state, DENY_TAMPER, event);
    return -1;
}

static int refuse(State *state, const char *event)
{
    deny_text(state, DENY_TAMPER, event);
    return -1;
}

static int refuse_process(State *state, const char *event)
{
    if (state->allow_subprocess) {
        return 0;
    }
    deny_text(state, DENY_SUBPROCESS, event);
    return -1;
}

/* Path-taking functions of os are in the table; these raise an event before anything else. */
static int on_os_event(State *state, const char *event, PyObject *args)
{
    if (strchr("pusfek", event[3]) == NULL || event[3] == '\0') {
        return 0;
    }
    if (is(event, "os.putenv") || is(event, "os.unsetenv")) {
        return environment_check(state, item(args, 0));
    }
    static const char *const processes[] = {"os.system", "os.fork",        "os.forkpty", "os.exec",
                                            "os.spawn",  "os.posix_spawn", "os.kill",    "os.killpg"};
    for (size_t i = 0; i < sizeof processes / sizeof *processes; i++) {
        if (is(event, processes[i])) {
            return refuse_process(state, event);
        }
    }
    return 0;
}

/* mmap(fileno, length, access, offset): a shared mapping writes, unless the file itself was opened for reading. */
static int on_mmap_event(State *state, PyObject *args)
{
    enum { ACCESS_READ = 1, ACCESS_COPY = 3 };
    PyObject *number = item(args, 0), *access = item(args, 2);
    if (!PyLong_Check(number)) {
        return 0;
    }
    long fd = PyLong_AsLong(number), kind = PyLong_Check(access) ? PyLong_AsLong(access) : 0;
    int flags = fd >= 0 && fd <= INT_MAX ? fcntl((int)fd, F_GETFL) : -1;
    PyErr_Clear();
    bool reads = kind == ACCESS_READ || kind == ACCESS_COPY || (flags >= 0 && (flags & O_ACCMODE) == O_RDONLY);
    return descriptor_check(state, number, WANT_PLACE | OP_READ | (reads ? 0 : OP_MODIFY));
}

/* Keeps a denial that a check has raised, and drops other errors, which the caller gets from the call itself. */
static int keep_denial(void)
{
    if (PyErr_Occurred() && !error_is_denial()) {
        PyErr_Clear();
    }
    return PyErr_Occurred() ? -1 : 0;
}

/* pathlib lists nothing where it is refused something, from 3.13 on already for the folder that it begins with. */
static int on_glob_event(PyObject *args)
{
    PyObject *path = PyObject_Str(item(args, 0));
    PyObject *found = path ? row_call(stat_row, stat_row->module_object, NULL, &path, 1, NULL) : NULL;
    Py_XDECREF(found);
    Py_XDECREF(path);
    return keep_denial();
}

/* shutil.unpack_archive reports a file that it cannot open as a bad archive. */
static int on_unpack_event(State *state, PyObject *args)
{
    PathText *text = PyMem_Malloc(sizeof *text);
    int fd = -1;
    if (text != NULL && path_text(item(args, 0), text) == 0) {
        fd = guarded_open(state, text, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0, NULL);
        Py_XDECREF(text->object);
    }
    PyMem_Free(text);
    if (fd >= 0) {
        close(fd);
    }
    return keep_denial();
}

/* sys._getframe() is by far the most frequent one. */
static int on_sys_event(State *state, const char *event)
{
    switch (event[strlen("sys.")]) {
    case '_':
        return is(event, "sys._current_frames") || is(event, "sys._current_exceptions") ? refuse(state, event) : 0;
    case 'a':
        return is(event, "sys.addaudithook") ? refuse(state, event) : 0;
    case 'm':
        return begins(event, "sys.monitoring.register") && !monitoring_works() ? refuse(state, event) : 0;
    case 's':
        if (is(event, "sys.settrace") || is(event, "sys.setprofile")) {
            return tracing_event(state, event, is(event, "sys.settrace") ? TRACE : PROFILE);
        }
        return 0;
    default:
        return 0;
    }
}

static int on_event(State *state, const char *event, PyObject *args)
{
    switch (event[0]) {
    case 'o':
        if (event[1] == 's') {
            return on_os_event(state, event, args);
        }
        if (is(event, "open")) {
            return on_open_event(state, args);
        }
        return is(event, "object.__setattr__") ? on_setattr_event(state, args) : 0;
    case 'e':
        return is(event, "exec") ? resident_exec(state, item(args, 0)) : 0;
    case 'i':
        return is(event, "import") ? on_import_event(state, args) : 0;
    case 's':
        if (begins(event, "sys.")) {
            return on_sys_event(state, event);
        }
        if (is(event, "subprocess.Popen") || is(event, "signal.pthread_kill")) {
            return refuse_process(state, event);
        }
        if (is(event, "shutil.unpack_archive")) {
            return on_unpack_event(state, args);
        }
        return is(event, "socket.sethostname") || is(event, "sqlite3.enable_load_extension") ||
                       is(event, "sqlite3.load_extension")
                   ? refuse(state, event)
                   : 0;
    case 'c':
        if (begins(event, "ctypes.")) {
            return foreign_event(state, event, args);
        }
        return is(event, "code.__new__") ? on_code_event(state, event) : 0;
    case 'd': /* the kernel layer's system calls: a thread could be confined for ever, or a program be started */
        return is(event, "democrai.kernel") ? refuse(state, event) : 0;
    case 'f':
        if (is(event, "fcntl.ioctl") && ioctl_check(state, item(args, 0), item(args, 1)) < 0) {
            return -1;
        }
        if (is(event, "fcntl.fcntl") && fcntl_check(state, item(args, 1), item(args, 2)) < 0) {
            return -1;
        }
        if (begins(event, "fcntl.")) {
            return descriptor_check(state, item(args, 0), WANT_MANAGE);
        }
        return is(event, "function.__new__") && is_runtime_code(item(args, 0)) ? refuse(state, event) : 0;
    case 'm':
        return is(event, "mmap.__new__") ? on_mmap_event(state, args) : 0;
    case 'g':
        return begins(event, "gc.get_") ? refuse(state, event) : 0;
    case 'p':
        if (is(event, "pathlib.Path.glob") || is(event, "pathlib.Path.rglob")) {
            return on_glob_event(args);
        }
        return is(event, "pty.spawn") ? refuse_process(state, event) : 0;
    case 'r':
        return is(event, "resource.setrlimit") || is(event, "resource.prlimit") ? refuse_process(state, event) : 0;
    default:
        return 0;
    }
}

/* A subject can place a module before the host's, on sys.path or in a finder. The host does not run files that subjects
 * can write. */
static int foreign_exec(PyObject *code)
{
    const char *file = PyCode_Check(code) ? PyUnicode_AsUTF8(((PyCodeObject *)code)->co_filename) : NULL;
    char path[PATH_MAX];
    PathKey key;
    PyErr_Clear();
    if (file == NULL || file[0] != '/' || strlen(file) >= PATH_MAX || runtime_policy == NULL) {
        return 0;
    }
    if (path_canonical(file, 1, path) < 0) {
        if (errno != EMFILE && errno != ENFILE && errno != ENOMEM) {
            return 0;
        }
        PyErr_SetFromErrnoWithFilename(PyExc_OSError, file);
        return -1;
    }
    path_key(&key, path);
    bool refused = residents > 0 && policy_mask(runtime_policy, &key) & (FLAG_PROTECTED | OP_CREATE | OP_MODIFY);
    if (!refused) {
        char cache[PATH_MAX];
        bool library = code_policy != NULL && policy_mask(code_policy, &key) & FLAG_CODE; /* read-only for subjects */
        int changed = library ? 0 : file_may_be_subjects(path);
        changed = changed == 0 && !library && cache_path(path, cache) ? file_may_be_subjects(cache) : changed;
        if (changed <= 0) {
            return changed;
        }
    }
    PyErr_Format(PyExc_ImportError, "%s lies where extensions can write: it is not run by the host", file);
    return -1;
}

static int hook(const char *event, PyObject *args, void *unused)
{
    if (LIKELY(live_states == 0) || strchr("oeiscdfmgpr", event[0]) == NULL) {
        return 0;
    }
    if (begins(event, "socket.") && event[7] != 's') {
        return 0; /* but for sethostname: their calls are checked where they are made */
    }
    if (checked_open && is(event, "open")) {
        checked_open = false; /* for this one event: what runs next may be user code */
        return 0;
    }
    State *state = state_guarding();
    if (state == NULL) {
        return is(event, "exec") ? foreign_exec(item(args, 0)) : 0;
    }
    finders_suspect = finders_suspect || event[0] == 'i';
    Py_INCREF(state);
    int result = on_event(state, event, args);
    Py_DECREF(state);
    return result;
}

int audit_ready(void)
{
    if (PySys_AddAuditHook(hook, NULL) < 0) {
        return -1;
    }
    audit_hook_list_found(hook, writable_entry("id"));
    audit_hook_list_follow(live_states > 0);
    return 0;
}
