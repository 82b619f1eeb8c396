/* Sends data. On a connection that was opened for requests, the data is read first. If the call names an address,
 * the address is checked. */
#include "io/io.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

/* An event loop wakes itself up by a NUL over a pair of sockets; guarded code that schedules something on the host's
 * loop does so, too. */
static bool is_wake_up(int fd, const char *data, size_t length)
{
    return length == 1 && data[0] == '\0' && is_unnamed_pair(fd);
}

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

/* A view is copied before it is read, because other code might change the bytes during the send. For a body only the
 * length counts; its view is sent, so the object cannot return other data. */
static PyObject *send_on_wire(State *state, Call *call, Wire *wire, PyObject *data)
{
    bool exact = PyBytes_CheckExact(data);
    const Py_buffer *buffer = exact ? NULL : PyMemoryView_GET_BUFFER(data);
    Py_ssize_t length = exact ? PyBytes_GET_SIZE(data) : buffer->len;
    PyObject *result;
    if (!plain_flags(call, 1) || (!exact && !PyBuffer_IsContiguous(buffer, 'C'))) {
        refuse_target("this connection was opened for HTTP requests: send() takes plain bytes and no flags here");
        return NULL;
    }
    if (wire_skips(wire, (size_t)length)) {
        wire_skip(wire);
        result = call_with(call, 0, data);
        wire_skipped(wire, sent_by(call, result, length));
        return result;
    }
    PyObject *copy = exact ? Py_NewRef(data) : PyBytes_FromStringAndSize(buffer->buf, length);
    if (copy == NULL || wire_begin(state, wire, PyBytes_AS_STRING(copy), (size_t)length) < 0) {
        Py_XDECREF(copy);
        return NULL;
    }
    result = call_with(call, 0, copy);
    wire_end(wire, PyBytes_AS_STRING(copy), sent_by(call, result, length), (size_t)length);
    Py_DECREF(copy);
    return result;
}

static PyObject *send_on_foreign(State *state, Call *call, int fd, PyObject *view)
{
    Py_buffer *buffer = PyMemoryView_GET_BUFFER(view);
    bool wakes =
        call->nargs == 1 && PyBuffer_IsContiguous(buffer, 'C') && is_wake_up(fd, buffer->buf, (size_t)buffer->len);
    return wakes || peer_is_permitted(state, fd) == 0 ? call_with(call, 0, view) : NULL;
}

/* Only exact numbers: converting another object could run code that connects this socket. */
static bool flags_are_plain(const Call *call, Py_ssize_t at)
{
    if (call->nargs <= at || PyLong_Check(call->args[at])) {
        return true;
    }
    PyErr_SetString(PyExc_TypeError, "an integer is required for flags");
    return false;
}

/* The current bytes: exact bytes, or a view of another object. No code of the object runs afterwards. */
static PyObject *settled(PyObject *data)
{
    return PyBytes_CheckExact(data) ? Py_NewRef(data) : PyMemoryView_FromObject(data);
}

/* The error of the kernel for a send on such a stream: a broken or missing connection. */
static int error_without_peer(int fd)
{
    int pending = 0, family = 0;
    struct tcp_info info = {0};
    socklen_t size = sizeof pending, room = sizeof family, space = sizeof info;
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &room) < 0 || (family != AF_INET && family != AF_INET6) ||
        getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &space) < 0 || info.tcpi_state != TCP_CLOSE) {
        return ENOTCONN;
    }
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &pending, &size) == 0 && pending != 0 ? pending : EPIPE;
}

/* A stream that is not connected: while a send on it waits, another thread could connect it for requests. errno is set.
 */
bool lacks_peer(int fd)
{
    struct sockaddr_storage peer;
    int type = 0;
    socklen_t size = sizeof peer, room = sizeof type;
    if (getpeername(fd, (struct sockaddr *)&peer, &size) == 0 || errno != ENOTCONN ||
        getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &room) < 0 || type != SOCK_STREAM) {
        return false;
    }
    errno = error_without_peer(fd);
    return true;
}

/* send, sendall: data first. */
PyObject *on_send(State *state, Call *call)
{
    Wire *wire;
    int fd = socket_number(call->self);
    if (fd < 0 || call->nargs < 1 || call->nargs > 2) {
        return call_original(call);
    }
    PyObject *data = flags_are_plain(call, 1) ? settled(call->args[0]) : NULL, *view, *result = NULL;
    if (data == NULL) {
        return NULL;
    }
    bool own = descriptor_owned(state, fd, &wire);
    if (LIKELY(own) && wire == NULL && !lacks_peer(fd)) {
        result = data == call->args[0] ? call_original(call) : call_with(call, 0, data);
    }
    else if (own && wire == NULL) {
        PyErr_SetFromErrno(PyExc_OSError);
    }
    else if (own) {
        wire_share(wire);
        result = send_on_wire(state, call, wire, data);
        wire_drop(wire);
    }
    else if ((view = PyMemoryView_FromObject(data)) != NULL) {
        result = send_on_foreign(state, call, fd, view);
        Py_DECREF(view);
    }
    Py_DECREF(data);
    return result;
}

static PyObject *refuse_other_ways(void)
{
    refuse_target("this connection was opened for HTTP requests: use send()");
    return NULL;
}

/* sendto(data, address) or sendto(data, flags, address). */
PyObject *on_sendto(State *state, Call *call)
{
    PyObject *argv[MAX_ARGS], *result = NULL;
    Call copy;
    Dial target = {.handle = -1};
    int fd = socket_number(call->self);
    if (call->nargs < 2 || call->nargs > 3 || fd < 0) {
        return call_original(call);
    }
    PyObject *data = call_copy(call, argv, &copy) == 0 && flags_are_plain(call, call->nargs == 3 ? 1 : 2)
                         ? settled(call->args[0])
                         : NULL;
    if (data != NULL && dial(state, call->self, call->args[call->nargs - 1], false, &target) == 0) {
        argv[0] = data;
        argv[call->nargs - 1] = target.value;
        result = descriptor_has_wire(state, fd) ? refuse_other_ways() : call_original(&copy);
    }
    dial_clear(&target);
    Py_XDECREF(data);
    return result;
}

/* All buffers as one immutable bytes object. */
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
        return refuse_other_ways();
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

/* Options that send a packet through another host than the checked one. */
static bool is_detour(long level, long option)
{
    enum { SOURCE_ROUTE = 4, RETURN_ROUTE = 7, UPPER_LAYER = 31 };
    static const int headers[] = {2, 3, 4, 5, 6, 54, 55, 57, 59}; /* hop-by-hop, destination, routing, old and new */
    bool found = level == IPPROTO_IP && (option == SOURCE_ROUTE || option == RETURN_ROUTE);
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        found = found || (level == IPPROTO_IPV6 && option == headers[i]);
    }
    return found || (level == IPPROTO_TCP && option == UPPER_LAYER);
}

/* Options that join and leave multicast groups: the kernel announces the group on the link. */
static bool is_membership(long level, long option)
{
    bool newer = option >= 42 && option <= 48;
    if (level == IPPROTO_IP) {
        return newer || (option >= 35 && option <= 41);
    }
    return level == IPPROTO_IPV6 && (newer || option == 20 || option == 21 || option == 27 || option == 28);
}

/* The group of such an option: in front, or as the address after the number of an interface. */
static bool group_of(PyObject *value, long level, long option, Address *out)
{
    enum { ADDRESSES = 42, FIRST_ADDRESS = 8, PORT_AND_FAMILY = 4, PORT_FAMILY_AND_FLOW = 8 };
    if (!PyBytes_CheckExact(value)) { /* another object could change */
        return false;
    }
    const char *data = PyBytes_AS_STRING(value);
    size_t size = (size_t)PyBytes_GET_SIZE(value), start = 0, width = level == IPPROTO_IP ? 4 : 16;
    if (option >= ADDRESSES) {
        sa_family_t family = 0;
        if (size >= FIRST_ADDRESS + sizeof family) {
            memcpy(&family, data + FIRST_ADDRESS, sizeof family);
        }
        width = family == AF_INET ? 4 : 16;
        start = FIRST_ADDRESS + (family == AF_INET ? PORT_AND_FAMILY : PORT_FAMILY_AND_FLOW);
    }
    *out = (Address){.version = width == 4 ? 4 : 6};
    if (size < start + width) {
        return false;
    }
    memcpy(out->bytes, data + start, width);
    return true;
}

/* -1 with a denial unless a rule names the group. */
static int check_group(State *state, const Call *call, long level, long option)
{
    Address group;
    Host host;
    if (call->nargs < 3 || !group_of(call->args[2], level, option, &group)) {
        return net_deny_text(state, NET_CONNECT, "socket:option");
    }
    if (declared_literally(state, &group)) {
        return 0;
    }
    host_of_address(&group, &host);
    return net_deny_text(state, NET_CONNECT, host.text);
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

/* Copies (level, type, data). Only descriptors and credentials are allowed, because other messages can redirect
 * packets. */
static PyObject *plain_message(State *state, PyObject *item)
{
    PyObject *message = PySequence_Tuple(item), *result = NULL;
    long level = 0, type = 0;
    if (message != NULL && PyTuple_GET_SIZE(message) == 3 && PyLong_Check(PyTuple_GET_ITEM(message, 0)) &&
        PyLong_Check(PyTuple_GET_ITEM(message, 1))) {
        level = PyLong_AsLong(PyTuple_GET_ITEM(message, 0));
        type = PyLong_AsLong(PyTuple_GET_ITEM(message, 1));
    }
    if (message != NULL && !PyErr_Occurred() && level == SOL_SOCKET &&
        (type == SCM_RIGHTS || type == SCM_CREDENTIALS)) {
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

/* sendmsg_afalg(...): for sockets of a kind that is not made here. */
PyObject *on_afalg(State *state, Call *call)
{
    net_deny_text(state, NET_CONNECT, "socket:option");
    return NULL;
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
    long level = call->nargs >= 2 ? PyLong_AsLong(call->args[0]) : 0,
         option = call->nargs >= 2 ? PyLong_AsLong(call->args[1]) : 0;
    if (is_detour(level, option)) {
        net_deny_text(state, NET_CONNECT, "socket:option");
        return NULL;
    }
    if (is_membership(level, option) && check_group(state, call, level, option) < 0) {
        return NULL;
    }
    PyErr_Clear();
    return call_original(call);
}

static PyObject *settled_all(PyObject *buffers)
{
    PyObject *list = PySequence_List(buffers);
    for (Py_ssize_t i = 0; list != NULL && i < PyList_GET_SIZE(list); i++) {
        PyObject *data = settled(PyList_GET_ITEM(list, i));
        if (data == NULL || PyList_SetItem(list, i, data) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

/* Each argument is read once, so the checked data is the sent data. */
static PyObject *sendmsg_plainly(State *state, Call *call, bool own, int fd)
{
    PyObject *argv[MAX_ARGS], *data = NULL, *messages = NULL, *result = NULL;
    Call copy;
    Dial target = {.handle = -1};
    bool addressed = call->nargs > 3 && call->args[3] != Py_None;
    if (call_copy(call, argv, &copy) < 0 || !flags_are_plain(call, 2) || (data = settled_all(call->args[0])) == NULL) {
        return NULL;
    }
    argv[0] = data;
    if (call->nargs > 1 && (argv[1] = messages = plain_messages(state, call->args[1])) == NULL) {
        /* refused */
    }
    else if (addressed ? dial(state, call->self, call->args[3], false, &target) == 0
                       : own || peer_is_permitted(state, fd) == 0) {
        argv[3] = addressed ? target.value : call->nargs > 3 ? call->args[3] : NULL;
        result = descriptor_has_wire(state, fd)        ? refuse_other_ways()
                 : own && !addressed && lacks_peer(fd) ? PyErr_SetFromErrno(PyExc_OSError)
                                                       : call_original(&copy);
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

/* deny_foreign(): denies the use of a native transport of another owner, whose socket is not visible. */
PyObject *core_deny_foreign(PyObject *module, PyObject *unused)
{
    State *state = state_guarding();
    if (state != NULL) {
        net_deny_text(state, NET_CONNECT, "socket:foreign");
        return NULL;
    }
    Py_RETURN_NONE;
}

/* may_use(socket or number) -> whether this chain may send on it. Pools call it before they reuse a connection. */
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

/* The text of an exact string in ASCII; NULL for others. */
static const char *plain_text(PyObject *object)
{
    bool plain = PyUnicode_CheckExact(object) && PyUnicode_IS_COMPACT_ASCII(object);
    const char *text = plain ? (const char *)PyUnicode_1BYTE_DATA(object) : NULL;
    return plain && strlen(text) == (size_t)PyUnicode_GET_LENGTH(object) ? text : NULL;
}

/* request_on(socket, method, target): checks a request line before it is written to a connection that was opened for
 * requests. False if the connection cannot tell what the request is for. */
PyObject *core_request_on(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    State *state = state_guarding();
    if (nargs != 3 || state == NULL) {
        return nargs == 3 ? Py_NewRef(Py_True) : PyErr_Format(PyExc_TypeError, "request_on(socket, method, target)");
    }
    int fd = socket_number(args[0]);
    const char *method = plain_text(args[1]), *target = plain_text(args[2]);
    Wire *wire = method && target ? descriptor_wire(fd) : NULL;
    if (wire == NULL) {
        Py_RETURN_FALSE;
    }
    if (wire_repeats(wire, state, method, target)) {
        Py_RETURN_TRUE;
    }
    if (!descriptor_owned(state, fd, &wire) || wire == NULL) {
        Py_RETURN_FALSE;
    }
    Py_INCREF(state);
    wire_share(wire);
    int known = wire_check(state, wire, method, target);
    wire_drop(wire);
    Py_DECREF(state);
    return known < 0 ? NULL : PyBool_FromLong(known);
}
