/* Connecting, sending and receiving.
 *
 * An address may be dialled when a rule with `connect` covers it or a name that led to it, or when a permitted request
 * needs just this connection. A socket that somebody else made is judged by its peer. */
#include "core.h"
#include "network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <structmember.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* ---- socket objects -------------------------------------------------------------------------------------- */

static PyTypeObject *socket_type = NULL;
static Py_ssize_t family_offset = -1;
static PyCFunction fileno_entry = NULL;

/* The base type's own way to its number and family: a subclass may say anything. */
int sockets_found(PyTypeObject *type)
{
    PyObject *number = PyDict_GetItemString(type->tp_dict, "fileno"), *family = PyDict_GetItemString(type->tp_dict, "family");
    if (number == NULL || !Py_IS_TYPE(number, &PyMethodDescr_Type) || family == NULL ||
        !Py_IS_TYPE(family, &PyMemberDescr_Type)) {
        PyErr_SetString(PyExc_ImportError, "_socket.socket does not look as expected: the guard does not fit it");
        return -1;
    }
    fileno_entry = ((PyMethodDescrObject *)number)->d_method->ml_meth;
    family_offset = ((PyMemberDescrObject *)family)->d_member->offset;
    socket_type = (PyTypeObject *)Py_NewRef(type);
    return 0;
}

int socket_number(PyObject *socket)
{
    if (socket_type == NULL || !PyObject_TypeCheck(socket, socket_type)) {
        return -1;
    }
    PyObject *number = fileno_entry(socket, NULL);
    int fd = number ? (int)PyLong_AsLong(number) : -1;
    Py_XDECREF(number);
    PyErr_Clear();
    return fd;
}

int socket_family(PyObject *socket)
{
    if (socket_type == NULL || !PyObject_TypeCheck(socket, socket_type)) {
        return -1;
    }
    return *(int *)((char *)socket + family_offset);
}

/* ---- may this address be dialled? -------------------------------------------------------------------------- */

static bool rule_connects(const State *state, const Host *host, int port)
{
    SocketTarget what = {host, port};
    return state_net(state, match_socket, &what) & NET_CONNECT;
}

/* Inside a permitted request, another host may be connected to for its sake when a URL rule says `connect`: a proxy. */
static const char *relay_scheme(const State *state, const Host *host, int port)
{
    static const char *const schemes[] = {"http", "https"};
    for (int i = 0; i < 2; i++) {
        Url url = {.scheme = schemes[i], .host = *host, .port = port};
        if (state_net(state, match_origin, &url) & NET_CONNECT) {
            return schemes[i];
        }
    }
    return NULL;
}

static bool ticket_covers(const Ticket *ticket, const Host *host, int port)
{
    return ticket->port == port && strcmp(ticket->host.key, host->key) == 0;
}

/* Tries one name (or the address itself) for which the address could be dialled. 1 yes, 0 no, -1 error. */
static int try_host(State *state, const Host *host, int port, const Ticket *ticket, Wire **wire)
{
    if (rule_connects(state, host, port)) {
        return 1;
    }
    if (ticket == NULL) {
        return 0;
    }
    const char *scheme = ticket_covers(ticket, host, port) ? ticket->scheme : relay_scheme(state, host, port);
    if (scheme != NULL) {
        *wire = wire_new(scheme, host, port);
        return *wire ? 1 : -1;
    }
    return 0;
}

/* Nothing covers it: the decider is asked for the name, if there was one, since that is what a person can judge. */
static int ask_for(State *state, const Host *host, int port)
{
    SocketTarget what = {host, port};
    PyObject *target = host_target(host->text, port);
    int result = target ? net_require(state, NET_CONNECT, match_socket, &what, target) : -1;
    Py_XDECREF(target);
    return result;
}

/* A name that others looked up is not for this subject to hear of. */
static bool knows(const State *state, const Host *name)
{
    return !host_is_own(name) && (state_net(state, match_name, name) || name_noted(state, name));
}

/* 0 when it may be dialled; *wire is set when only for requests. `name`: what the caller gave, and resolved just now. */
int permit_endpoint(State *state, const Address *address, int port, const Host *name, bool tickets, Wire **wire)
{
    Names *names = PyMem_Malloc(sizeof *names);
    const Ticket *ticket = tickets ? ticket_current(state) : NULL;
    const Host *found = NULL, *best = name;
    Host literal;
    int result = 0;
    *wire = NULL;
    if (names == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    names_of(address, names);
    host_of_address(address, &literal);
    result = try_host(state, &literal, port, ticket, wire);
    found = result ? &literal : NULL;
    for (int i = 0; result == 0 && i < names->count; i++) {
        if (may_lead_to(state, &names->names[i], address)) {
            result = try_host(state, &names->names[i], port, ticket, wire);
            found = &names->names[i];
            best = best || !knows(state, found) ? best : found;
        }
    }
    if (result == 0) {
        found = best && !best->is_address ? best : &literal;
        result = ask_for(state, found, port) == 0 ? 1 : -1;
    }
    if (result == 1 && observe(state, found->is_address ? NULL : found, address, port) < 0) {
        result = -1;
    }
    if (result < 0) {
        wire_drop(*wire);
        *wire = NULL;
    }
    PyMem_Free(names);
    return result < 0 ? -1 : 0;
}

/* ---- addresses as socket calls take them --------------------------------------------------------------------- */

typedef struct {
    PyObject *value; /* what is passed on, owned */
    Wire *wire;
    int handle; /* an O_PATH handle that the address goes through, or -1 */
} Dial;

static void dial_clear(Dial *dial)
{
    Py_CLEAR(dial->value);
    wire_drop(dial->wire);
    dial->wire = NULL;
    if (dial->handle >= 0) {
        close(dial->handle);
        dial->handle = -1;
    }
}

/* (host, port, ...) with the host's place taken by the address that was decided on. */
static PyObject *replaced_address(PyObject *given, const Address *address, int family, int port)
{
    char text[64], mapped[72];
    address_text(address, text);
    if (family == AF_INET6 && address->version == 4) {
        snprintf(mapped, sizeof mapped, "::ffff:%s", text);
    }
    PyObject *host = PyUnicode_FromString(family == AF_INET6 && address->version == 4 ? mapped : text);
    PyObject *number = host ? PyLong_FromLong(port) : NULL;
    PyObject *result = number ? PyTuple_New(PyTuple_GET_SIZE(given)) : NULL;
    if (result == NULL) {
        Py_XDECREF(host);
        Py_XDECREF(number);
        return NULL;
    }
    PyTuple_SET_ITEM(result, 0, host);
    PyTuple_SET_ITEM(result, 1, number);
    for (Py_ssize_t i = 2; i < PyTuple_GET_SIZE(given); i++) {
        PyTuple_SET_ITEM(result, i, Py_NewRef(PyTuple_GET_ITEM(given, i)));
    }
    return result;
}

static int dial_inet(State *state, PyObject *given, int family, bool tickets, Dial *dial)
{
    Host host;
    Address address;
    Py_ssize_t size = PyTuple_Check(given) ? PyTuple_GET_SIZE(given) : 0;
    if (size < 2 || size > (family == AF_INET ? 2 : 4)) {
        return refuse_target("expected an address of the form (host, port)");
    }
    int port = port_of_object(PyTuple_GET_ITEM(given, 1), false);
    if (port < 0 || host_of_object(PyTuple_GET_ITEM(given, 0), &host) < 0) {
        return -1;
    }
    if (host.is_address) {
        address = host.address;
    }
    else if (resolve_host(state, &host, family, port, &address) < 0) {
        return -1;
    }
    if (address.version == 6 && family == AF_INET) {
        return refuse_target("an IPv6 address for an IPv4 socket");
    }
    if (permit_endpoint(state, &address, port, host.is_address ? NULL : &host, tickets, &dial->wire) < 0) {
        return -1;
    }
    dial->value = replaced_address(given, &address, family, port);
    return dial->value ? 0 : -1;
}

static int dial(State *state, PyObject *socket, PyObject *given, bool tickets, Dial *out)
{
    *out = (Dial){NULL, NULL, -1};
    int family = socket_family(socket);
    if (family == AF_INET || family == AF_INET6) {
        return dial_inet(state, given, family, tickets, out);
    }
    if (family == AF_UNIX) {
        return unix_connect(state, given, &out->value, &out->handle);
    }
    return net_deny_text(state, NET_CONNECT, "socket:family");
}

/* ---- connect, connect_ex --------------------------------------------------------------------------------------- */

/* Requests go over streams: what is sent by datagram could not be read as one. And over one's own sockets. */
static bool may_carry_requests(const State *state, int fd)
{
    int type = 0;
    socklen_t size = sizeof type;
    Wire *old;
    return descriptor_owned(state, fd, &old) && getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM;
}

PyObject *on_connect(State *state, Call *call)
{
    Dial target;
    PyObject *result = NULL;
    if (call->nargs < 1) {
        return call_original(call);
    }
    int fd = socket_number(call->self);
    if (dial(state, call->self, call->args[0], ticket_current(state) && may_carry_requests(state, fd), &target) == 0) {
        descriptor_attach(fd, target.wire);
        result = call_with(call, 0, target.value);
    }
    dial_clear(&target);
    return result;
}

/* ---- sockets of others --------------------------------------------------------------------------------------------- */

static int peer_is_permitted(State *state, int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
        struct sockaddr_un local;
    } peer;
    socklen_t size = sizeof peer;
    Address address = {.version = 4};
    Wire *wire;
    memset(&peer, 0, sizeof peer);
    if (fd < 0 || getpeername(fd, &peer.any, &size) < 0) {
        return net_deny_text(state, NET_CONNECT, "socket:foreign");
    }
    if (peer.any.sa_family == AF_INET) {
        memcpy(address.bytes, &peer.four.sin_addr, 4);
        return permit_endpoint(state, &address, ntohs(peer.four.sin_port), NULL, false, &wire);
    }
    if (peer.any.sa_family == AF_INET6) {
        char text[INET6_ADDRSTRLEN];
        inet_ntop(AF_INET6, &peer.six.sin6_addr, text, sizeof text);
        return address_read(text, &address) < 0
                   ? -1
                   : permit_endpoint(state, &address, ntohs(peer.six.sin6_port), NULL, false, &wire);
    }
    return net_deny_text(state, NET_CONNECT, "socket:foreign");
}

/* 0 when this chain may send and receive on the socket. */
int may_transfer(State *state, int fd, Wire **wire)
{
    if (LIKELY(descriptor_owned(state, fd, wire)) || fd < 0) {
        return 0; /* a closed one fails by itself */
    }
    return peer_is_permitted(state, fd);
}

static bool is_unnamed_pair(int fd)
{
    struct sockaddr_un peer;
    socklen_t size = sizeof peer;
    return getpeername(fd, (struct sockaddr *)&peer, &size) == 0 && peer.sun_family == AF_UNIX &&
           size <= offsetof(struct sockaddr_un, sun_path);
}

/* An event loop wakes itself up by a NUL over a pair of sockets; guarded code that schedules something on the host's
 * loop does so, too. */
static bool is_wake_up(int fd, const char *data, size_t length)
{
    return length == 1 && data[0] == '\0' && is_unnamed_pair(fd);
}

/* The other end of it: wake-ups and signal numbers may be read away, messages may not. */
static int wake_ups_pending(int fd)
{
    char data[4096];
    ssize_t count = is_unnamed_pair(fd) ? recv(fd, data, sizeof data, MSG_PEEK | MSG_DONTWAIT) : 0;
    for (ssize_t i = 0; i < count; i++) {
        if ((unsigned char)data[i] > 31) {
            return 0;
        }
    }
    return count > 0 ? 1 : count < 0 ? -1 : 0;
}

PyObject *on_receive(State *state, Call *call)
{
    Wire *wire;
    int fd = socket_number(call->self);
    if (LIKELY(descriptor_owned(state, fd, &wire)) || fd < 0) {
        return wire_answers(wire) < 0 ? NULL : call_original(call);
    }
    int pending = wake_ups_pending(fd);
    if (pending < 0) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return pending || peer_is_permitted(state, fd) == 0 ? call_original(call) : NULL;
}

/* ---- send ------------------------------------------------------------------------------------------------------------ */

static Py_ssize_t sent_by(const Call *call, PyObject *result, Py_ssize_t length)
{
    if (result == NULL) {
        bool later = PyErr_ExceptionMatches(PyExc_BlockingIOError) && strcmp(call->row->name, "sendall") != 0;
        return later ? 0 : -1;
    }
    return result == Py_None ? length : PyLong_AsSsize_t(result);
}

/* An urgent byte, for one, is taken out of the stream on the other side. */
static bool plain_flags(const Call *call, Py_ssize_t at)
{
    long flags = call->nargs > at && PyLong_CheckExact(call->args[at]) ? PyLong_AsLong(call->args[at]) : 0;
    bool known = call->nargs <= at || PyLong_CheckExact(call->args[at]);
    PyErr_Clear();
    return known && (flags & ~(long)(MSG_NOSIGNAL | MSG_DONTWAIT | MSG_MORE)) == 0;
}

/* The bytes are copied before they are read: somebody else might change them while they are sent. */
static PyObject *send_on_wire(State *state, Call *call, Wire *wire, Py_ssize_t at, const char *data, Py_ssize_t length)
{
    PyObject *result;
    if (!plain_flags(call, at + 1)) {
        refuse_target("this connection was opened for HTTP requests: send() takes no such flags here");
        return NULL;
    }
    if (wire_skips(wire, (size_t)length)) {
        wire_skip(wire);
        result = call_original(call);
        wire_skipped(wire, sent_by(call, result, length));
        return result;
    }
    PyObject *copy = PyBytes_FromStringAndSize(data, length);
    if (copy == NULL || wire_begin(state, wire, PyBytes_AS_STRING(copy), (size_t)length) < 0) {
        Py_XDECREF(copy);
        return NULL;
    }
    result = call_with(call, at, copy);
    wire_end(wire, PyBytes_AS_STRING(copy), sent_by(call, result, length), (size_t)length);
    Py_DECREF(copy);
    return result;
}

/* send, sendall: data first. */
PyObject *on_send(State *state, Call *call)
{
    Wire *wire;
    int fd = socket_number(call->self);
    bool own = descriptor_owned(state, fd, &wire);
    if ((LIKELY(own) && wire == NULL) || fd < 0 || call->nargs < 1) {
        return call_original(call);
    }
    Py_buffer buffer;
    wire_share(wire); /* getting at the bytes may run code of theirs */
    if (PyObject_GetBuffer(call->args[0], &buffer, PyBUF_SIMPLE) < 0) {
        wire_drop(wire);
        return NULL;
    }
    PyObject *result = NULL;
    if (own) {
        result = send_on_wire(state, call, wire, 0, buffer.buf, buffer.len);
    }
    else if (is_wake_up(fd, buffer.buf, (size_t)buffer.len) || peer_is_permitted(state, fd) == 0) {
        result = call_original(call);
    }
    PyBuffer_Release(&buffer);
    wire_drop(wire);
    return result;
}

static PyObject *send_to(State *state, Call *call, Py_ssize_t at)
{
    Dial target;
    PyObject *result = NULL;
    if (dial(state, call->self, call->args[at], false, &target) == 0) {
        result = call_with(call, at, target.value);
    }
    dial_clear(&target);
    return result;
}

/* sendto(data, address) or sendto(data, flags, address). */
PyObject *on_sendto(State *state, Call *call)
{
    Wire *wire;
    int fd = socket_number(call->self);
    if (call->nargs < 2 || call->nargs > 3 || fd < 0) {
        return call_original(call);
    }
    if (descriptor_owned(state, fd, &wire) && wire != NULL) {
        refuse_target("this connection was opened for HTTP requests: use send()");
        return NULL;
    }
    return send_to(state, call, call->nargs - 1);
}

/* All buffers as one text that nobody can change any more. */
static PyObject *joined(PyObject *buffers)
{
    PyObject *empty = PyBytes_FromStringAndSize(NULL, 0), *list = empty ? PySequence_List(buffers) : NULL;
    PyObject *whole = list ? PyObject_CallMethod(empty, "join", "O", list) : NULL;
    Py_XDECREF(empty);
    Py_XDECREF(list);
    return whole;
}

static PyObject *sendmsg_on_wire(State *state, Call *call, Wire *wire)
{
    if (call->nargs != 1) {
        refuse_target("this connection was opened for HTTP requests: use send()");
        return NULL;
    }
    wire_share(wire); /* getting at the bytes may run code of theirs */
    PyObject *data = joined(call->args[0]), *one = data ? PyTuple_Pack(1, data) : NULL, *result = NULL;
    Py_ssize_t length = data ? PyBytes_GET_SIZE(data) : 0;
    if (one != NULL && wire_begin(state, wire, PyBytes_AS_STRING(data), (size_t)length) == 0) {
        result = call_with(call, 0, one);
        wire_end(wire, PyBytes_AS_STRING(data), sent_by(call, result, length), (size_t)length);
    }
    Py_XDECREF(data);
    Py_XDECREF(one);
    wire_drop(wire);
    return result;
}

/* Options that send a packet by way of another host than the one that was checked. */
static bool is_detour(long level, long option)
{
    enum { SOURCE_ROUTE = 4, RETURN_ROUTE = 7, UPPER_LAYER = 31 };
    static const int headers[] = {2, 3, 4, 5, 54, 55, 57, 59}; /* hop-by-hop, destination, routing, old and new */
    bool found = level == IPPROTO_IP && (option == SOURCE_ROUTE || option == RETURN_ROUTE);
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        found = found || (level == IPPROTO_IPV6 && option == headers[i]);
    }
    return found || (level == IPPROTO_TCP && option == UPPER_LAYER);
}

/* Only lists of exact tuples with plain numbers: what is looked at here is what will be sent. */
static bool plain_messages(PyObject *messages)
{
    if (!PyList_CheckExact(messages) && !PyTuple_CheckExact(messages)) {
        return false;
    }
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(messages); i++) {
        PyObject *message = PySequence_Fast_GET_ITEM(messages, i);
        if (!PyTuple_CheckExact(message) || PyTuple_GET_SIZE(message) != 3 || !PyLong_Check(PyTuple_GET_ITEM(message, 0)) ||
            PyLong_AsLong(PyTuple_GET_ITEM(message, 0)) != SOL_SOCKET) {
            PyErr_Clear();
            return false;
        }
    }
    return true;
}

/* setsockopt(level, option, value) */
PyObject *on_option(State *state, Call *call)
{
    for (Py_ssize_t i = 0; i < 2 && i < call->nargs; i++) {
        if (!PyLong_Check(call->args[i])) {
            PyErr_SetString(PyExc_TypeError, "an integer is required");
            return NULL;
        }
    }
    if (call->nargs >= 2 && is_detour(PyLong_AsLong(call->args[0]), PyLong_AsLong(call->args[1]))) {
        net_deny_text(state, NET_CONNECT, "socket:option");
        return NULL;
    }
    PyErr_Clear();
    return call_original(call);
}

/* sendmsg(buffers, ancillary data, flags, address) */
PyObject *on_sendmsg(State *state, Call *call)
{
    Wire *wire;
    int fd = socket_number(call->self);
    bool own = descriptor_owned(state, fd, &wire);
    if (fd < 0 || call->nargs < 1) {
        return call_original(call);
    }
    if (own && wire != NULL) {
        return sendmsg_on_wire(state, call, wire);
    }
    if (call->nargs > 1 && !plain_messages(call->args[1])) {
        net_deny_text(state, NET_CONNECT, "socket:option");
        return NULL;
    }
    if (call->nargs > 3 && call->args[3] != Py_None) {
        return send_to(state, call, 3);
    }
    return own || peer_is_permitted(state, fd) == 0 ? call_original(call) : NULL;
}

/* may_use(socket or number) -> whether this chain may send on it: what pools ask before they reuse a connection. */
PyObject *core_may_use(PyObject *module, PyObject *socket)
{
    State *state = state_guarding();
    if (state == NULL) {
        Py_RETURN_TRUE;
    }
    int fd = PyLong_CheckExact(socket) ? (int)PyLong_AsLong(socket) : socket_number(socket);
    Wire *wire;
    PyErr_Clear();
    return PyBool_FromLong(fd < 0 || descriptor_owned(state, fd, &wire));
}
