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

typedef struct {
    State *state;
    const Address *address;
    int port;
    const Ticket *ticket;
    Wire *wire;
    Host found; /* for whose sake it may be dialled, or who is asked for */
} Endpoint;

/* A name that others looked up is not for this subject to hear of. */
static bool knows(const State *state, const Host *name)
{
    return !host_is_own(name) && (state_net(state, match_name, name) || name_noted(state, name));
}

static int try_name(const Host *name, void *context)
{
    Endpoint *endpoint = context;
    if (!may_lead_to(endpoint->state, name, endpoint->address)) {
        return 0;
    }
    int result = try_host(endpoint->state, name, endpoint->port, endpoint->ticket, &endpoint->wire);
    if (result != 0 || (endpoint->found.is_address && knows(endpoint->state, name))) {
        endpoint->found = *name;
    }
    return result;
}

/* 0 when it may be dialled; *wire is set when only for requests. `name`: what the caller gave, and resolved just now. */
int permit_endpoint(State *state, const Address *address, int port, const Host *name, bool tickets, Wire **wire)
{
    Endpoint endpoint = {.state = state, .address = address, .port = port};
    endpoint.ticket = tickets ? ticket_current(state) : NULL;
    host_of_address(address, &endpoint.found);
    int result = try_host(state, &endpoint.found, port, endpoint.ticket, &endpoint.wire);
    if (result == 0) {
        result = each_name(address, try_name, &endpoint);
    }
    if (result == 0) {
        endpoint.found = name ? *name : endpoint.found;
        result = ask_for(state, &endpoint.found, port) == 0 ? 1 : -1;
    }
    if (result == 1 && observe(state, endpoint.found.is_address ? NULL : &endpoint.found, address, port) < 0) {
        result = -1;
    }
    if (result < 0) {
        wire_drop(endpoint.wire);
        endpoint.wire = NULL;
    }
    *wire = endpoint.wire;
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
    PyObject *first = PyTuple_GET_ITEM(given, 0);
    if (PyTuple_CheckExact(given) && PyTuple_GET_SIZE(given) == 2 && PyUnicode_CheckExact(first) &&
        PyLong_CheckExact(PyTuple_GET_ITEM(given, 1)) && PyUnicode_CompareWithASCIIString(first, text) == 0) {
        return Py_NewRef(given); /* as it is: nobody can change it */
    }
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
    if (descriptor_has_wire(state, fd)) {
        refuse_target("this connection was opened for HTTP requests: make a new socket for another one");
        return NULL;
    }
    if (dial(state, call->self, call->args[0], ticket_current(state) && may_carry_requests(state, fd), &target) == 0) {
        if (target.wire != NULL) {
            descriptor_attach(fd, target.wire);
        }
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

/* The other end of it: how many wake-ups and signal numbers are waiting and may be read away; messages may not. */
static ssize_t wake_ups_pending(int fd)
{
    char data[4096];
    ssize_t count = is_unnamed_pair(fd) ? recv(fd, data, sizeof data, MSG_PEEK | MSG_DONTWAIT) : 0;
    for (ssize_t i = 0; i < count; i++) {
        if ((unsigned char)data[i] > 31) {
            return 0;
        }
    }
    return count;
}

/* recv(n): no more than what was looked at, and no flags that would wait for more. */
static PyObject *receive_wake_ups(Call *call, ssize_t count)
{
    long wanted = call->nargs == 1 && PyLong_CheckExact(call->args[0]) ? PyLong_AsLong(call->args[0]) : -1;
    PyErr_Clear();
    if (strcmp(call->row->name, "recv") != 0 || wanted <= 0) {
        return NULL;
    }
    PyObject *most = PyLong_FromLong(wanted < count ? wanted : (long)count);
    PyObject *result = most ? call_with(call, 0, most) : NULL;
    Py_XDECREF(most);
    return result;
}

PyObject *on_receive(State *state, Call *call)
{
    Wire *wire;
    int fd = socket_number(call->self);
    if (LIKELY(descriptor_owned(state, fd, &wire)) || fd < 0) {
        return wire_answers(wire) < 0 ? NULL : call_original(call);
    }
    ssize_t pending = wake_ups_pending(fd);
    if (pending < 0) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    PyObject *result = pending > 0 ? receive_wake_ups(call, pending) : NULL;
    if (result != NULL || PyErr_Occurred()) {
        return result;
    }
    return peer_is_permitted(state, fd) == 0 ? call_original(call) : NULL;
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

/* The bytes are copied before they are read: somebody else might change them while they are sent. Of a body only the
 * length counts; the view of it is what is sent, whatever its object says the next time. */
static PyObject *send_on_wire(State *state, Call *call, Wire *wire, PyObject *view)
{
    Py_buffer *buffer = PyMemoryView_GET_BUFFER(view);
    PyObject *result;
    if (!plain_flags(call, 1) || !PyBuffer_IsContiguous(buffer, 'C')) {
        refuse_target("this connection was opened for HTTP requests: send() takes plain bytes and no flags here");
        return NULL;
    }
    if (wire_skips(wire, (size_t)buffer->len)) {
        wire_skip(wire);
        result = call_with(call, 0, view);
        wire_skipped(wire, sent_by(call, result, buffer->len));
        return result;
    }
    PyObject *copy = PyBytes_FromStringAndSize(buffer->buf, buffer->len);
    if (copy == NULL || wire_begin(state, wire, PyBytes_AS_STRING(copy), (size_t)buffer->len) < 0) {
        Py_XDECREF(copy);
        return NULL;
    }
    result = call_with(call, 0, copy);
    wire_end(wire, PyBytes_AS_STRING(copy), sent_by(call, result, buffer->len), (size_t)buffer->len);
    Py_DECREF(copy);
    return result;
}

static PyObject *send_on_foreign(State *state, Call *call, int fd, PyObject *view)
{
    Py_buffer *buffer = PyMemoryView_GET_BUFFER(view);
    bool wakes = call->nargs == 1 && PyBuffer_IsContiguous(buffer, 'C') && is_wake_up(fd, buffer->buf, (size_t)buffer->len);
    return wakes || peer_is_permitted(state, fd) == 0 ? call_with(call, 0, view) : NULL;
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
    wire_share(wire); /* getting at the bytes may run code of theirs */
    PyObject *view = PyMemoryView_FromObject(call->args[0]), *result = NULL;
    if (view != NULL) {
        result = own ? send_on_wire(state, call, wire, view) : send_on_foreign(state, call, fd, view);
    }
    Py_XDECREF(view);
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

/* Descriptors that go to another process must be the subject's to read and write. */
static int check_rights(State *state, PyObject *data)
{
    for (Py_ssize_t i = 0; i + (Py_ssize_t)sizeof(int) <= PyBytes_GET_SIZE(data); i += (Py_ssize_t)sizeof(int)) {
        int fd;
        memcpy(&fd, PyBytes_AS_STRING(data) + i, sizeof fd);
        PyObject *number = PyLong_FromLong(fd);
        int result = number ? descriptor_check(state, number, OP_READ | OP_MODIFY) : -1;
        Py_XDECREF(number);
        if (result < 0) {
            return -1;
        }
    }
    return 0;
}

/* (level, type, data), copied. Only descriptors and credentials are sent along: other messages lead packets astray. */
static PyObject *plain_message(State *state, PyObject *item)
{
    PyObject *message = PySequence_Tuple(item), *result = NULL;
    long level = 0, type = 0;
    if (message != NULL && PyTuple_GET_SIZE(message) == 3 && PyLong_Check(PyTuple_GET_ITEM(message, 0)) &&
        PyLong_Check(PyTuple_GET_ITEM(message, 1))) {
        level = PyLong_AsLong(PyTuple_GET_ITEM(message, 0));
        type = PyLong_AsLong(PyTuple_GET_ITEM(message, 1));
    }
    if (message != NULL && !PyErr_Occurred() && level == SOL_SOCKET && (type == SCM_RIGHTS || type == SCM_CREDENTIALS)) {
        PyObject *data = PyBytes_FromObject(PyTuple_GET_ITEM(message, 2));
        if (data != NULL && (type != SCM_RIGHTS || check_rights(state, data) == 0)) {
            result = Py_BuildValue("(llO)", level, type, data);
        }
        Py_XDECREF(data);
    }
    else if (!PyErr_Occurred()) {
        net_deny_text(state, NET_CONNECT, "socket:option");
    }
    Py_XDECREF(message);
    return result;
}

static PyObject *plain_messages(State *state, PyObject *given)
{
    PyObject *list = PySequence_List(given);
    for (Py_ssize_t i = 0; list != NULL && i < PyList_GET_SIZE(list); i++) {
        PyObject *message = plain_message(state, PyList_GET_ITEM(list, i));
        if (message == NULL || PyList_SetItem(list, i, message) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
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

/* Each argument is read once; what was looked at is what is sent. */
static PyObject *sendmsg_plainly(State *state, Call *call, bool own, int fd)
{
    PyObject *argv[MAX_ARGS], *data = NULL, *messages = NULL, *result = NULL;
    Call copy;
    Dial target = {NULL, NULL, -1};
    bool addressed = call->nargs > 3 && call->args[3] != Py_None;
    if (call_copy(call, argv, &copy) < 0 || (data = PySequence_List(call->args[0])) == NULL) {
        return NULL;
    }
    argv[0] = data;
    if (call->nargs > 2 && !PyLong_Check(call->args[2])) {
        PyErr_SetString(PyExc_TypeError, "an integer is required for flags");
    }
    else if (call->nargs > 1 && (argv[1] = messages = plain_messages(state, call->args[1])) == NULL) {
        /* refused */
    }
    else if (addressed ? dial(state, call->self, call->args[3], false, &target) == 0
                       : own || peer_is_permitted(state, fd) == 0) {
        argv[3] = addressed ? target.value : call->nargs > 3 ? call->args[3] : NULL;
        result = call_original(&copy);
    }
    Py_XDECREF(data);
    Py_XDECREF(messages);
    dial_clear(&target);
    return result;
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
    return own && wire != NULL ? sendmsg_on_wire(state, call, wire) : sendmsg_plainly(state, call, own, fd);
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
