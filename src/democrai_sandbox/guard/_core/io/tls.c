/* TLS: reads data before it is encrypted. A TLS object belongs to the chain under which it was made.
 *
 * An object over a socket writes to the socket itself. An object over memory returns its records; tls_records.c
 * matches them with a connection. */
#include "io/io.h"

#include <arpa/inet.h>
#include <string.h>
#include <sys/socket.h>

/* ---- which objects are whose ---------------------------------------------------------------------------------------
 */

typedef struct Stream {
    PyObject *object; /* borrowed: taken out when the object goes */
    uint64_t policy;
    Wire *wire;    /* over a socket that was opened for requests */
    PyObject *bio; /* over memory: where it puts its records */
    Pipe *pipe;
    int fd; /* over a socket: its number, and the socket behind it when the object was made */
    ino_t inode;
    Host name;
    bool serves;
    struct Stream *next, *next_by_bio;
} Stream;

enum { BUCKETS = 1024 };
static Stream *streams[BUCKETS], *by_bio[BUCKETS];
static size_t memory_streams = 0;
static destructor dealloc_original = NULL;

static size_t bucket(const PyObject *object)
{
    return (uintptr_t)object >> 4 & (BUCKETS - 1);
}

static Stream **bucket_of(const PyObject *object)
{
    return &streams[bucket(object)];
}

static Stream *find_stream(const PyObject *object)
{
    Stream *stream = *bucket_of(object);
    while (stream != NULL && stream->object != object) {
        stream = stream->next;
    }
    return stream;
}

static Stream *find_by_bio(const PyObject *bio)
{
    Stream *stream = by_bio[bucket(bio)];
    while (stream != NULL && stream->bio != bio) {
        stream = stream->next_by_bio;
    }
    return stream;
}

static void forget_stream(Stream *stream)
{
    for (Stream **at = stream->bio ? &by_bio[bucket(stream->bio)] : NULL; at && *at != NULL; at = &(*at)->next_by_bio) {
        if (*at == stream) {
            *at = stream->next_by_bio;
            break;
        }
    }
    memory_streams -= stream->bio != NULL;
    wire_drop(stream->wire);
    pipe_drop(stream->pipe);
    Py_XDECREF(stream->bio);
    PyMem_Free(stream);
}

static void tls_dealloc(PyObject *self)
{
    for (Stream **at = bucket_of(self); *at != NULL; at = &(*at)->next) {
        if ((*at)->object == self) {
            Stream *gone = *at;
            *at = gone->next;
            forget_stream(gone);
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
    if (type->tp_dealloc != tls_dealloc) {
        dealloc_original = type->tp_dealloc;
        type->tp_dealloc = tls_dealloc;
    }
    Py_DECREF(type);
    return 1;
}

/* Registers a new TLS object and takes over the wire. NULL with an exception. */
static PyObject *made(State *state, PyObject *object, Wire *wire, PyObject *bio)
{
    Stream *stream = object ? PyMem_Calloc(1, sizeof *stream) : NULL;
    Pipe *pipe = stream && bio ? pipe_new() : NULL;
    if (stream == NULL || (bio != NULL && pipe == NULL)) {
        wire_drop(wire);
        PyMem_Free(stream);
        if (object != NULL) {
            Py_DECREF(object);
            PyErr_NoMemory();
        }
        return NULL;
    }
    *stream = (Stream){.object = object, .policy = answering(state)->policy->id, .wire = wire, .fd = -1};
    stream->bio = Py_XNewRef(bio);
    stream->pipe = pipe;
    stream->next = *bucket_of(object);
    *bucket_of(object) = stream;
    if (bio != NULL) {
        stream->next_by_bio = by_bio[bucket(bio)];
        by_bio[bucket(bio)] = stream;
    }
    memory_streams += bio != NULL;
    return object;
}

/* ---- making them ----------------------------------------------------------------------------------------------------
 */

static PyObject *argument(const Call *call, Py_ssize_t index, const char *name)
{
    Py_ssize_t at = call_find(call, index, name);
    return at < 0 || call->args[at] == Py_None ? NULL : call->args[at];
}

static bool serves(const Call *call, Py_ssize_t index)
{
    PyObject *flag = argument(call, index, "server_side");
    return flag != NULL && flag != Py_False && !(PyLong_CheckExact(flag) && PyLong_AsLong(flag) == 0);
}

static ino_t inode_of(int fd)
{
    struct stat info;
    return fd >= 0 && fstat(fd, &info) == 0 ? info.st_ino : 0;
}

/* Reads the data that the object encrypts, if its socket was opened for requests. The socket may have been connected
 * after the object was made, and another socket may have its number now. */
static int settle_wire(State *state, Stream *stream)
{
    Wire *outer;
    if (stream == NULL || stream->wire != NULL || stream->fd < 0) {
        return 0;
    }
    if (inode_of(stream->fd) != stream->inode) {
        return refuse_target("the socket of this TLS object is gone");
    }
    if (!descriptor_owned(state, stream->fd, &outer) || outer == NULL) {
        return 0;
    }
    if (stream->serves) {
        return refuse_target("this connection was opened for requests, as a client");
    }
    wire_share(outer); /* the check may run code of others */
    bool same = stream->name.key[0] == '\0' || strcmp(stream->name.key, wire_host(outer)->key) == 0;
    bool shown = same || check_name(state, &stream->name, 0) == 0;
    stream->wire = shown ? wire_start_tls(outer, &stream->name) : NULL;
    wire_drop(outer);
    return stream->wire ? 0 : -1;
}

/* _wrap_socket(sock, server_side, server_hostname). The name that is shown to the server must be permitted, too: it may
 * decide which host of many answers. */
PyObject *on_wrap_socket(State *state, Call *call)
{
    Wire *wire = NULL;
    PyObject *socket = argument(call, 0, "sock"), *name = argument(call, 2, "server_hostname");
    Host host = {.text = ""};
    if (socket == NULL || may_transfer(state, socket_number(socket), &wire) < 0) {
        return socket ? NULL : call_original(call);
    }
    if (name != NULL && host_of_object(name, &host) < 0) {
        return NULL;
    }
    int fd = socket_number(socket);
    ino_t inode = inode_of(fd);
    PyObject *object = made(state, call_original(call), NULL, NULL);
    Stream *stream = object ? find_stream(object) : NULL;
    if (stream != NULL) {
        stream->fd = fd;
        stream->inode = inode;
        stream->name = host;
        stream->serves = serves(call, 1);
        if (settle_wire(state, stream) < 0) {
            Py_CLEAR(object);
        }
    }
    return object;
}

/* Asks the getter of the type in C, which a class derived from it cannot replace. */
static bool is_empty_memory(PyObject *memory)
{
    static PyObject *name = NULL;
    name = name ? name : PyUnicode_InternFromString("pending");
    PyObject *getter = name ? _PyType_Lookup(Py_TYPE(memory), name) : NULL;
    if (getter == NULL || !Py_IS_TYPE(getter, &PyGetSetDescr_Type) ||
        strcmp(((PyGetSetDescrObject *)getter)->d_getset->name, "pending") != 0) {
        return false;
    }
    PyObject *waiting = Py_TYPE(getter)->tp_descr_get(getter, memory, (PyObject *)Py_TYPE(memory));
    bool empty = waiting != NULL && PyLong_CheckExact(waiting) && PyLong_AsLong(waiting) == 0;
    Py_XDECREF(waiting);
    return empty;
}

/* _wrap_bio(incoming, outgoing, server_side, server_hostname): existing records in the buffer have no owner. */
PyObject *on_wrap_bio(State *state, Call *call)
{
    PyObject *outgoing = argument(call, 1, "outgoing"), *name = argument(call, 3, "server_hostname");
    if (outgoing != NULL && (!is_empty_memory(outgoing) || find_by_bio(outgoing) != NULL)) {
        PyErr_Clear();
        refuse_target("the memory for outgoing records is used already");
        return NULL;
    }
    Host host = {.text = ""};
    if (name != NULL && host_of_object(name, &host) < 0) {
        return NULL;
    }
    PyObject *object = made(state, call_original(call), NULL, outgoing);
    if (object != NULL && outgoing != NULL) {
        find_stream(object)->pipe->name = host;
        find_stream(object)->pipe->policy = answering(state)->policy->id;
    }
    return object;
}

/* MemoryBIO.read: records on their way out. */
PyObject *on_bio_read(State *state, Call *call)
{
    PyObject *data = call_original(call);
    Stream *stream = data && memory_streams > 0 ? find_by_bio(call->self) : NULL;
    if (stream != NULL && PyBytes_Check(data) &&
        pipe_add(stream->pipe, PyBytes_AS_STRING(data), (size_t)PyBytes_GET_SIZE(data)) < 0) {
        Py_CLEAR(data);
    }
    return data;
}

/* MemoryBIO.write: only the TLS object may write records to its outgoing buffer. */
PyObject *on_bio_write(State *state, Call *call)
{
    if (memory_streams > 0 && find_by_bio(call->self) != NULL) {
        refuse_target("only the TLS object writes its outgoing records");
        return NULL;
    }
    return call_original(call);
}

/* ---- using them
 * -------------------------------------------------------------------------------------------------------- */

static Wire *wire_of(const Stream *stream)
{
    return stream == NULL ? NULL : stream->wire ? stream->wire : stream->pipe ? stream->pipe->wire : NULL;
}

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

/* 0 when this chain may use the object. An object of another owner is checked by the name that it was made for. */
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
    Stream *stream = find_stream(call->self);
    if (may_use_stream(state, call->self, stream) < 0 || settle_wire(state, stream) < 0 ||
        wire_answers(wire_of(stream)) < 0) {
        return NULL;
    }
    return call_original(call);
}

/* Data of a write that raised an exception was not accepted: the same bytes must follow. */
static Py_ssize_t taken_by(PyObject *result)
{
    return result == NULL ? 0 : PyLong_AsSsize_t(result);
}

static PyObject *write_on_wire(State *state, Call *call, Wire *wire, const char *data, Py_ssize_t length)
{
    PyObject *copy = PyBytes_FromStringAndSize(data, length), *result = NULL;
    if (copy != NULL && wire_again(wire, copy) == 0 &&
        wire_begin(state, wire, PyBytes_AS_STRING(copy), (size_t)length) == 0) {
        result = call_with(call, 0, copy);
        wire_unfinished(wire, result ? NULL : copy);
        wire_end(wire, PyBytes_AS_STRING(copy), taken_by(result), (size_t)length);
    }
    Py_XDECREF(copy);
    return result;
}

/* Part of a body: only its length counts. Its view is sent, so the object cannot return other data. */
static PyObject *write_body(Call *call, Wire *wire, PyObject *view)
{
    wire_skip(wire);
    PyObject *result = call_with(call, 0, view);
    wire_unfinished(wire, NULL);
    wire_skipped(wire, taken_by(result));
    return result;
}

PyObject *on_tls_write(State *state, Call *call)
{
    if (call->nargs != 1) {
        return call_original(call);
    }
    /* the view first: nothing of theirs may run between looking at the wire and writing */
    PyObject *view = PyMemoryView_FromObject(call->args[0]), *result = NULL;
    Stream *stream = find_stream(call->self);
    if (view != NULL && stream != NULL && stream->fd >= 0 && stream->wire == NULL && lacks_peer(stream->fd)) {
        Py_CLEAR(view);
        PyErr_SetFromErrno(PyExc_OSError);
    }
    if (view == NULL || may_use_stream(state, call->self, stream) < 0 || settle_wire(state, stream) < 0) {
        Py_XDECREF(view);
        return NULL;
    }
    Wire *wire = wire_share(wire_of(stream));
    Py_buffer *buffer = PyMemoryView_GET_BUFFER(view);
    if (wire == NULL) {
        result = call_with(call, 0, view);
    }
    else if (!PyBuffer_IsContiguous(buffer, 'C')) {
        PyErr_SetString(PyExc_BufferError, "the data must be contiguous");
    }
    else if (wire_skips(wire, (size_t)buffer->len)) {
        result = write_body(call, wire, view);
    }
    else {
        result = write_on_wire(state, call, wire, buffer->buf, buffer->len);
    }
    Py_DECREF(view);
    wire_drop(wire);
    return result;
}
