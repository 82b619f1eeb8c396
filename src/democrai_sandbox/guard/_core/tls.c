/* TLS: what is encrypted is read before it is. A TLS object belongs to the chain under which it was made. */
#include "core.h"
#include "network.h"

#include <arpa/inet.h>
#include <string.h>
#include <sys/socket.h>

/* ---- which objects are whose ------------------------------------------------------------------------------------ */

typedef struct Stream {
    PyObject *object; /* borrowed: taken out when the object goes */
    uint64_t policy;
    Wire *wire;
    struct Stream *next;
} Stream;

enum { BUCKETS = 1024 };
static Stream *streams[BUCKETS];
static destructor dealloc_original = NULL;

static Stream **bucket_of(const PyObject *object)
{
    return &streams[(uintptr_t)object >> 4 & (BUCKETS - 1)];
}

static Stream *find_stream(const PyObject *object)
{
    Stream *stream = *bucket_of(object);
    while (stream != NULL && stream->object != object) {
        stream = stream->next;
    }
    return stream;
}

static int add_stream(State *state, PyObject *object, Wire *wire)
{
    Stream *stream = PyMem_Malloc(sizeof *stream);
    if (stream == NULL) {
        wire_drop(wire);
        PyErr_NoMemory();
        return -1;
    }
    *stream = (Stream){object, answering(state)->policy->id, wire, *bucket_of(object)};
    *bucket_of(object) = stream;
    return 0;
}

static void tls_dealloc(PyObject *self)
{
    for (Stream **at = bucket_of(self); *at != NULL; at = &(*at)->next) {
        if ((*at)->object == self) {
            Stream *gone = *at;
            *at = gone->next;
            wire_drop(gone->wire);
            PyMem_Free(gone);
            break;
        }
    }
    dealloc_original(self);
}

int ssl_patch(PyObject *module)
{
    PyTypeObject *type = (PyTypeObject *)PyObject_GetAttrString(module, "_SSLSocket");
    if (type == NULL) {
        PyErr_Clear();
        return 0;
    }
    dealloc_original = type->tp_dealloc;
    type->tp_dealloc = tls_dealloc;
    Py_DECREF(type);
    return 1;
}

/* ---- making them -------------------------------------------------------------------------------------------------- */

static PyObject *argument(const Call *call, Py_ssize_t index, const char *name)
{
    Py_ssize_t at = call_find(call, index, name);
    return at < 0 || call->args[at] == Py_None ? NULL : call->args[at];
}

static bool serves(const Call *call, Py_ssize_t index)
{
    PyObject *flag = argument(call, index, "server_side");
    bool is = flag != NULL && PyObject_IsTrue(flag) == 1;
    PyErr_Clear();
    return is;
}

static PyObject *made(State *state, PyObject *object, Wire *wire)
{
    if (object == NULL) {
        wire_drop(wire);
    }
    else if (add_stream(state, object, wire) < 0) {
        Py_CLEAR(object);
    }
    return object;
}

static bool may_show(State *state, const Wire *wire, PyObject *name)
{
    Host host;
    if (host_of_object(name, &host) < 0) {
        return false;
    }
    return strcmp(host.key, wire_host(wire)->key) == 0 || check_name(state, &host, 0) == 0;
}

/* _wrap_socket(sock, server_side, server_hostname): the name that is shown to the server must be permitted, too: it may
 * decide which host of many answers. */
PyObject *on_wrap_socket(State *state, Call *call)
{
    Wire *wire = NULL, *inner = NULL;
    PyObject *socket = argument(call, 0, "sock"), *name = argument(call, 2, "server_hostname");
    if (socket == NULL || may_transfer(state, socket_number(socket), &wire) < 0) {
        return socket ? NULL : call_original(call);
    }
    if (wire != NULL && !serves(call, 1)) {
        wire_share(wire); /* the check may run code of others */
        inner = name == NULL || may_show(state, wire, name) ? wire_start_tls(wire) : NULL;
        wire_drop(wire);
        if (inner == NULL) {
            return NULL;
        }
    }
    return made(state, call_original(call), inner);
}

/* Whether the name was declared for sockets, so that anything may be said there; or, when no rule knows the name, whether
 * anything was. */
static bool speaks_freely(const State *state, const Host *host)
{
    if (host != NULL && state_net(state, match_any_port, host) & NET_CONNECT) {
        return true;
    }
    bool known = host != NULL && (state_net(state, match_name, host) || name_noted(state, host));
    return !known && state_net(state, match_connects, NULL);
}

/* _wrap_bio(incoming, outgoing, server_side, server_hostname): no socket is known; the encrypted bytes will go out
 * through one that was checked by itself. */
PyObject *on_wrap_bio(State *state, Call *call)
{
    PyObject *name = argument(call, 3, "server_hostname");
    Wire *wire = NULL;
    Host host;
    if (name != NULL && host_of_object(name, &host) < 0) {
        return NULL;
    }
    if (!serves(call, 2) && !speaks_freely(state, name ? &host : NULL)) {
        if (name == NULL) {
            net_deny_text(state, NET_CONNECT, "socket:tls-without-name");
            return NULL;
        }
        wire = wire_for_name(&host);
        if (wire == NULL) {
            return NULL;
        }
    }
    return made(state, call_original(call), wire);
}

/* ---- using them ------------------------------------------------------------------------------------------------------ */

/* For the text of a denial only: the owner can be set to any socket. 0: not known. */
static int port_of_peer(PyObject *object)
{
    struct sockaddr_in6 peer; /* the port is in the same place for both families */
    socklen_t size = sizeof peer;
    PyObject *owner = PyObject_GetAttrString(object, "owner");
    int fd = owner ? socket_number(owner) : -1;
    Py_XDECREF(owner);
    PyErr_Clear();
    bool inet = fd >= 0 && getpeername(fd, (struct sockaddr *)&peer, &size) == 0 &&
                (peer.sin6_family == AF_INET || peer.sin6_family == AF_INET6);
    return inet ? ntohs(peer.sin6_port) : 0;
}

/* 0 when this chain may use the object. One of somebody else's goes by the name it was made for. */
static int may_use_stream(State *state, PyObject *object, const Stream *stream)
{
    if (stream != NULL && state_has_policy(state, stream->policy)) {
        return 0;
    }
    PyObject *name = PyObject_GetAttrString(object, "server_hostname");
    Host host;
    PyErr_Clear();
    int result;
    if (name == NULL || name == Py_None || host_of_object(name, &host) < 0) {
        PyErr_Clear();
        result = net_deny_text(state, NET_CONNECT, "socket:foreign");
    }
    else {
        bool free = state_net(state, match_any_port, &host) & NET_CONNECT;
        PyObject *target = free ? NULL : host_target(host.text, port_of_peer(object));
        result = free ? 0 : target ? net_deny(state, NET_CONNECT, target) : -1;
        Py_XDECREF(target);
    }
    Py_XDECREF(name);
    return result;
}

PyObject *on_tls_read(State *state, Call *call)
{
    const Stream *stream = find_stream(call->self);
    if (may_use_stream(state, call->self, stream) < 0 || (stream != NULL && wire_answers(stream->wire) < 0)) {
        return NULL;
    }
    return call_original(call);
}

/* What it raises instead of sending has not been taken: it wants the same bytes again. */
static Py_ssize_t taken_by(PyObject *result)
{
    return result == NULL ? 0 : PyLong_AsSsize_t(result);
}

static PyObject *write_on_wire(State *state, Call *call, Wire *wire, const char *data, Py_ssize_t length)
{
    PyObject *copy = PyBytes_FromStringAndSize(data, length), *result = NULL;
    if (copy != NULL && wire_again(wire, copy) == 0 && wire_begin(state, wire, data = PyBytes_AS_STRING(copy), (size_t)length) == 0) {
        wire_share(wire);
        result = call_with(call, 0, copy);
        wire_unfinished(wire, result ? NULL : copy);
        wire_end(wire, data, taken_by(result), (size_t)length);
        wire_drop(wire);
    }
    Py_XDECREF(copy);
    return result;
}

PyObject *on_tls_write(State *state, Call *call)
{
    Stream *stream = find_stream(call->self);
    if (may_use_stream(state, call->self, stream) < 0) {
        return NULL;
    }
    if (stream == NULL || stream->wire == NULL || call->nargs != 1) {
        return call_original(call);
    }
    Py_buffer buffer;
    Wire *wire = stream->wire;
    PyObject *result = NULL;
    if (PyObject_GetBuffer(call->args[0], &buffer, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    if (wire_skips(wire, (size_t)buffer.len)) {
        wire_skip(wire);
        result = call_original(call);
        wire_skipped(wire, taken_by(result));
    }
    else {
        result = write_on_wire(state, call, wire, buffer.buf, buffer.len);
    }
    PyBuffer_Release(&buffer);
    return result;
}
