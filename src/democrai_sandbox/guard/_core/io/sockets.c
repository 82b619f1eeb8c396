/* Socket objects: connect and receive. A socket that other code made is checked by its peer. */
#include "io/io.h"

#include <arpa/inet.h>
#include <errno.h>
#include <string.h>
#include <structmember.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* ---- socket objects -------------------------------------------------------------------------------------- */

static Py_ssize_t family_offset = -1;
static PyCFunction fileno_entry = NULL;

/* Reads descriptor and family with the functions of the base type, because a subclass can return any value. */
int sockets_found(PyTypeObject *type)
{
    PyObject *number = PyDict_GetItemString(type->tp_dict, "fileno"),
             *family = PyDict_GetItemString(type->tp_dict, "family");
    if (number == NULL || !Py_IS_TYPE(number, &PyMethodDescr_Type) || family == NULL ||
        !Py_IS_TYPE(family, &PyMemberDescr_Type)) {
        PyErr_SetString(PyExc_ImportError, "_socket.socket does not look as expected: the guard does not fit it");
        return -1;
    }
    fileno_entry = ((PyMethodDescrObject *)number)->d_method->ml_meth;
    family_offset = ((PyMemberDescrObject *)family)->d_member->offset;
    return 0;
}

int socket_number(PyObject *socket)
{
    if (!is_socket_object(socket)) {
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
    if (!is_socket_object(socket)) {
        return -1;
    }
    return *(int *)((char *)socket + family_offset);
}

/* ---- addresses as socket calls take them --------------------------------------------------------------------- */

void dial_clear(Dial *dial)
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
        return Py_NewRef(given); /* unchanged: it is immutable */
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

static bool is_plain_pair(PyObject *given)
{
    return PyTuple_CheckExact(given) && PyTuple_GET_SIZE(given) == 2 &&
           PyUnicode_CheckExact(PyTuple_GET_ITEM(given, 0)) && PyLong_CheckExact(PyTuple_GET_ITEM(given, 1));
}

/* Whether the rules permitted this address last time. Rules do not change, and nothing else matters here. */
static bool dialled_before(const State *state, PyObject *given, int family)
{
    PyObject *last = state->dialled;
    if (last == NULL || state->dialled_family != family || candidates_held ||
        (observer != NULL && observer != Py_None)) {
        return false;
    }
    int overflow = 0;
    return given == last ||
           (is_plain_pair(given) && PyUnicode_Compare(PyTuple_GET_ITEM(given, 0), PyTuple_GET_ITEM(last, 0)) == 0 &&
            PyLong_AsLongAndOverflow(PyTuple_GET_ITEM(given, 1), &overflow) ==
                PyLong_AsLong(PyTuple_GET_ITEM(last, 1)));
}

static void note_dialled(State *state, PyObject *given, int family, const Host *host, int port)
{
    SocketTarget what = {host, port};
    if (host->is_address && is_plain_pair(given) && (state_net(state, match_socket, &what) & NET_CONNECT)) {
        Py_XSETREF(state->dialled, Py_NewRef(given));
        state->dialled_family = family;
    }
}

static int dial_inet(State *state, PyObject *given, int family, bool tickets, Dial *dial)
{
    Host host;
    Address address;
    Py_ssize_t size = PyTuple_Check(given) ? PyTuple_GET_SIZE(given) : 0;
    if (!tickets && dialled_before(state, given, family)) {
        dial->value = Py_NewRef(given);
        return 0;
    }
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
    if (permit_endpoint(state, &address, port, host.is_address ? NULL : &host, tickets, &dial->wire, &dial->asked) <
        0) {
        return -1;
    }
    dial->value = replaced_address(given, &address, family, port);
    if (!tickets && dial->value == given) {
        note_dialled(state, given, family, &host, port);
    }
    return dial->value ? 0 : -1;
}

int dial(State *state, PyObject *socket, PyObject *given, bool tickets, Dial *out)
{
    *out = (Dial){.handle = -1};
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

/* Whether a socket can carry requests: it is a stream, because datagrams cannot be read, and the subject owns it. */
static bool may_carry_requests(const State *state, int fd)
{
    int type = 0;
    socklen_t size = sizeof type;
    Wire *old;
    return descriptor_owned(state, fd, &old) && getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 &&
           type == SOCK_STREAM;
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
        if (target.asked) {
            descriptor_approved(state, fd);
        }
        result = call_with(call, 0, target.value);
    }
    dial_clear(&target);
    return result;
}

/* ---- sockets of others ---------------------------------------------------------------------------------------------
 */

int peer_is_permitted(State *state, int fd)
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
    bool asked;
    memset(&peer, 0, sizeof peer);
    if (fd < 0 || getpeername(fd, &peer.any, &size) < 0) {
        return net_deny_text(state, NET_CONNECT, "socket:foreign");
    }
    if (peer.any.sa_family == AF_INET) {
        memcpy(address.bytes, &peer.four.sin_addr, 4);
        return permit_endpoint(state, &address, ntohs(peer.four.sin_port), NULL, false, &wire, &asked);
    }
    if (peer.any.sa_family == AF_INET6) {
        char text[INET6_ADDRSTRLEN];
        inet_ntop(AF_INET6, &peer.six.sin6_addr, text, sizeof text);
        return address_read(text, &address) < 0
                   ? -1
                   : permit_endpoint(state, &address, ntohs(peer.six.sin6_port), NULL, false, &wire, &asked);
    }
    return net_deny_text(state, NET_CONNECT, "socket:foreign");
}

/* 0 when this chain may send and receive on the socket. */
int may_transfer(State *state, int fd, Wire **wire)
{
    if (LIKELY(descriptor_owned(state, fd, wire)) || fd < 0) {
        return 0; /* the call fails for a closed socket */
    }
    return peer_is_permitted(state, fd);
}

bool is_unnamed_pair(int fd)
{
    struct sockaddr_un peer;
    socklen_t size = sizeof peer;
    return getpeername(fd, (struct sockaddr *)&peer, &size) == 0 && peer.sun_family == AF_UNIX &&
           size <= offsetof(struct sockaddr_un, sun_path);
}

/* An event loop wakes itself up over a pair of sockets. How many wake-ups and signal numbers are waiting and may be
 * read away; messages may not. */
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
