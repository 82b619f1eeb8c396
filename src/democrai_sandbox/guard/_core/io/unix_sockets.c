/* AF_UNIX addresses. To connect needs a rule for the socket, or a place where the subject itself may create sockets.
 * To bind creates a file. */
#include "io/io.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The address as exact bytes, read once. */
static PyObject *address_bytes(PyObject *given)
{
    if (PyUnicode_Check(given)) {
        PyObject *text = PyUnicode_FromObject(given);
        PyObject *bytes = text ? PyUnicode_EncodeFSDefault(text) : NULL;
        Py_XDECREF(text);
        return bytes;
    }
    Py_buffer buffer;
    if (PyObject_GetBuffer(given, &buffer, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    PyObject *bytes = PyBytes_FromStringAndSize(buffer.buf, buffer.len);
    PyBuffer_Release(&buffer);
    return bytes;
}

static bool is_abstract(PyObject *bytes)
{
    return PyBytes_GET_SIZE(bytes) > 0 && PyBytes_AS_STRING(bytes)[0] == '\0';
}

static int require_socket(State *state, unsigned operation, const char *address)
{
    char text[PATH_MAX + 8];
    snprintf(text, sizeof text, "unix:%s", address);
    PyObject *target = PyUnicode_DecodeFSDefault(text);
    if (UNLIKELY(candidates_held) && target != NULL) {
        shadow_net(state, operation, match_unix, address, target, WHEN_DONE);
    }
    int result = target ? net_require(state, operation, match_unix, address, target) : -1;
    Py_XDECREF(target);
    return result;
}

/* "\0name" is written "@name" in a rule. */
static int check_abstract(State *state, unsigned operation, PyObject *bytes)
{
    char text[128];
    size_t length = (size_t)PyBytes_GET_SIZE(bytes);
    const char *name = PyBytes_AS_STRING(bytes) + 1;
    if (length >= sizeof text || memchr(name, '\0', length - 1) != NULL) {
        return refuse_target("the name of an abstract socket is too long or holds a NUL");
    }
    snprintf(text, sizeof text, "@%.*s", (int)length - 1, name);
    return require_socket(state, operation, text);
}

enum { OWN = OP_CREATE | OP_MODIFY };

/* Below a root where it may create and modify, a subject may connect to any socket. */
static bool owns(State *state, const PathKey *key)
{
    bool present = (state_declared_mask(state, key) & OWN) == OWN;
    if (UNLIKELY(present && shadow_concerns(state))) {
        by_candidate = true;
        bool other = (state_declared_mask(state, key) & OWN) == OWN || state_net(state, match_unix, key->path);
        by_candidate = false;
        PyObject *target = other ? NULL : PyUnicode_FromFormat("unix:%s", key->path);
        shadow_told(state, NET_CONNECT, target);
        Py_XDECREF(target);
    }
    return present;
}

/* Connects through a handle of the checked socket, so a link that replaces it is not followed. */
static int connect_path(State *state, PyObject *bytes, PyObject **replacement, int *handle)
{
    PathText *text = PyMem_Malloc(sizeof *text);
    char path[PATH_MAX], link[64];
    PathKey key;
    int result = -1;
    if (text == NULL || path_text(bytes, text) < 0) {
        PyMem_Free(text);
        return PyErr_Occurred() ? -1 : (PyErr_NoMemory(), -1);
    }
    if (location_of(text, FOLLOW, path) < 0) {
        Py_DECREF(text->object);
        PyMem_Free(text);
        return -1;
    }
    path_key(&key, path);
    unsigned mask = state_mask(state, &key);
    /* the folders that the runtime gave to a subject lie below protected ones */
    if ((mask & FLAG_PROTECTED) && (mask & OWN) != OWN) {
        char target[PATH_MAX + 8];
        snprintf(target, sizeof target, "unix:%s", path);
        net_deny_text(state, NET_CONNECT, target); /* paths that the host protects cannot be approved */
    }
    else if (owns(state, &key) || require_socket(state, NET_CONNECT, path) == 0) {
        *handle = open_beneath(path, O_PATH, 0);
        if (*handle < 0) {
            errno_error(text->shown);
        }
        else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", *handle);
            *replacement = PyBytes_FromString(link);
            result = *replacement ? 0 : -1;
        }
    }
    Py_XDECREF(text->object);
    PyMem_Free(text);
    return result;
}

int unix_connect(State *state, PyObject *address, PyObject **replacement, int *handle)
{
    PyObject *bytes = address_bytes(address);
    int result;
    if (bytes == NULL) {
        return -1;
    }
    if (PyBytes_GET_SIZE(bytes) == 0) {
        result = refuse_target("");
    }
    else if (is_abstract(bytes)) {
        result = check_abstract(state, NET_CONNECT, bytes);
        *replacement = Py_NewRef(bytes);
    }
    else {
        result = connect_path(state, bytes, replacement, handle);
    }
    Py_DECREF(bytes);
    return result;
}

static int bind_path(State *state, PyObject *bytes, PyObject **replacement)
{
    PathText *text = PyMem_Malloc(sizeof *text);
    Resolved *where = PyMem_Malloc(sizeof *where);
    int result = -1;
    if (text == NULL || where == NULL) {
        PyErr_NoMemory();
    }
    else if (path_text(bytes, text) == 0) {
        if (resolve(state, text, OP_CREATE, PARENT, where) == 0) {
            close(where->fd);
            *replacement = PyBytes_FromString(where->path);
            result = *replacement ? 0 : -1;
        }
        Py_XDECREF(text->object);
    }
    PyMem_Free(text);
    PyMem_Free(where);
    return result;
}

int unix_bind(State *state, PyObject *address, PyObject **replacement)
{
    PyObject *bytes = address_bytes(address);
    int result;
    if (bytes == NULL) {
        return -1;
    }
    if (PyBytes_GET_SIZE(bytes) == 0 || is_abstract(bytes)) {
        /* without a name the kernel chooses an unpredictable one */
        result = PyBytes_GET_SIZE(bytes) == 0 ? 0 : check_abstract(state, NET_RECEIVE, bytes);
        *replacement = Py_NewRef(bytes);
    }
    else {
        result = bind_path(state, bytes, replacement);
    }
    Py_DECREF(bytes);
    return result;
}

/* syslog functions: the C library connects to /dev/log. */
PyObject *on_system_log(State *state, Call *call)
{
    PyObject *address = PyBytes_FromString("/dev/log"), *replacement = NULL;
    int handle = -1, allowed = address ? unix_connect(state, address, &replacement, &handle) : -1;
    bool absent = allowed < 0 && PyErr_ExceptionMatches(PyExc_FileNotFoundError);
    if (absent) {
        PyErr_Clear(); /* permitted, and without a listener */
    }
    if (handle >= 0) {
        close(handle);
    }
    Py_XDECREF(address);
    Py_XDECREF(replacement);
    return allowed == 0 || absent ? call_original(call) : NULL;
}
