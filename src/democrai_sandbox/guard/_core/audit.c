/* The audit hook: what raises an event and needs no handle of its own.
 *
 * CPython asks that security-sensitive hooks be added through the C API. The hook returns at once while no guard is alive,
 * and switches on the text of the event, since event names given to sys.audit() are made by the caller. */
#include "core.h"

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

/* An open that did not come through our own doors: native code that announces it (OpenSSL's DH parameters, a FileIO type
 * of a re-created module). It opens by itself afterwards, so only an exact path can be decided on. */
static int on_open_event(State *state, PyObject *args)
{
    PyObject *path = item(args, 0), *flags_object = item(args, 2);
    if (path_is_descriptor(path)) {
        return descriptor_check(state, path, OP_READ | OP_MODIFY);
    }
    if (!PyUnicode_CheckExact(path) && !PyBytes_CheckExact(path)) {
        deny_text(state, DENY_DESCRIPTOR, "path");
        return -1;
    }
    long flags = PyLong_Check(flags_object) ? PyLong_AsLong(flags_object) : O_RDWR | O_CREAT;
    PathText text;
    if (path_text(path, &text) < 0) {
        return -1;
    }
    char location[PATH_MAX];
    if (path_canonical(text.raw, 1, location) < 0) {
        strcpy(location, text.text);
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

static int on_setattr_event(State *state, PyObject *args)
{
    PyObject *name = item(args, 1);
    if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "__code__") == 0) {
        deny_text(state, DENY_TAMPER, "__code__");
        return -1;
    }
    return 0;
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

static int refuse_ctypes(State *state)
{
    PyObject *root = PyUnicode_FromString("ctypes");
    int result = root ? import_check(state, root, false) : -1;
    Py_XDECREF(root);
    return result;
}

static int on_event(State *state, const char *event, PyObject *args)
{
    switch (event[0]) {
    case 'o':
        if (is(event, "open")) {
            return on_open_event(state, args);
        }
        if (is(event, "os.putenv") || is(event, "os.unsetenv")) {
            return environment_check(state, item(args, 0));
        }
        if (is(event, "os.system") || is(event, "os.fork") || is(event, "os.forkpty") || is(event, "os.exec") ||
            is(event, "os.spawn") || is(event, "os.posix_spawn") || is(event, "os.kill") || is(event, "os.killpg")) {
            return refuse_process(state, event);
        }
        return is(event, "object.__setattr__") ? on_setattr_event(state, args) : 0;
    case 'i':
        return is(event, "import") ? on_import_event(state, args) : 0;
    case 's':
        if (is(event, "subprocess.Popen") || is(event, "signal.pthread_kill")) {
            return refuse_process(state, event);
        }
        if (is(event, "sys.settrace") || is(event, "sys.setprofile") || is(event, "sys.addaudithook") ||
            is(event, "sys._current_frames") || is(event, "sys._current_exceptions") || begins(event, "sys.monitoring.register") ||
            is(event, "sqlite3.enable_load_extension") || is(event, "sqlite3.load_extension")) {
            return refuse(state, event);
        }
        return 0;
    case 'c':
        if (begins(event, "ctypes.")) {
            return refuse_ctypes(state);
        }
        return is(event, "code.__new__") ? refuse(state, event) : 0;
    case 'f':
        if (begins(event, "fcntl.")) {
            return descriptor_check(state, item(args, 0), WANT_MANAGE);
        }
        return is(event, "function.__new__") && is_runtime_code(item(args, 0)) ? refuse(state, event) : 0;
    case 'm':
        return is(event, "mmap.__new__") && PyLong_Check(item(args, 0)) ? descriptor_check(state, item(args, 0), OP_READ) : 0;
    case 'g':
        return begins(event, "gc.get_") ? refuse(state, event) : 0;
    case 'p':
        return is(event, "pty.spawn") ? refuse_process(state, event) : 0;
    case 'r':
        return is(event, "resource.setrlimit") || is(event, "resource.prlimit") ? refuse_process(state, event) : 0;
    default:
        return 0;
    }
}

static int hook(const char *event, PyObject *args, void *unused)
{
    if (event[0] == 'i' && is(event, "import")) {
        imports_happened = true; /* something optional may have come that has to be patched */
    }
    if (LIKELY(live_states == 0) || strchr("oiscfmgpr", event[0]) == NULL || (checked_open && is(event, "open"))) {
        return 0;
    }
    State *state = state_guarding();
    if (state == NULL) {
        return 0;
    }
    Py_INCREF(state);
    int result = on_event(state, event, args);
    Py_DECREF(state);
    return result;
}

int audit_ready(void)
{
    return PySys_AddAuditHook(hook, NULL);
}
