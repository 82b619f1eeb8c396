/* Creates, binds and listens. Loopback addresses and client ports that the system chooses are allowed. To be reachable
 * from other hosts needs a rule with `receive` for the address. Kinds of sockets that reach the network in other ways
 * than TCP and UDP are refused. */
#include "io/io.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* ---- which sockets ------------------------------------------------------------------------------------------ */

static bool is_ordinary(int family, int type, int protocol)
{
    enum { MPTCP = 262 };
    bool known = protocol == 0 || protocol == IPPROTO_TCP || protocol == IPPROTO_UDP || protocol == MPTCP;
    type &= 0xf;
    if (family == AF_UNIX) {
        return type == SOCK_STREAM || type == SOCK_DGRAM || type == SOCK_SEQPACKET;
    }
    return (family == AF_INET || family == AF_INET6) && (type == SOCK_STREAM || type == SOCK_DGRAM) && known;
}

static int refuse_kind(State *state, int family, int type, int protocol)
{
    char text[64];
    snprintf(text, sizeof text, "socket:%d/%d/%d", family, type & 0xf, protocol);
    return net_deny_text(state, NET_CONNECT, text);
}

static int plain_number(PyObject *args, PyObject *kwargs, Py_ssize_t index, const char *name, int otherwise)
{
    PyObject *given = PyTuple_GET_SIZE(args) > index ? PyTuple_GET_ITEM(args, index)
                      : kwargs                       ? PyDict_GetItemString(kwargs, name)
                                                     : NULL;
    long value = given != NULL && PyLong_Check(given) ? PyLong_AsLong(given) : -1;
    PyErr_Clear();
    return value == -1 || value > INT_MAX || value < INT_MIN ? otherwise : (int)value;
}

static bool is_plain(PyObject *value)
{
    return value == NULL || PyLong_Check(value);
}

/* Whether the arguments are exact numbers, so the checked kind is the created one. */
bool plain_numbers(PyObject *args, PyObject *kwargs)
{
    bool plain = true;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args) && i < 3; i++) {
        plain = plain && is_plain(PyTuple_GET_ITEM(args, i));
    }
    static const char *const names[] = {"family", "type", "proto"};
    for (int i = 0; kwargs != NULL && i < 3; i++) {
        plain = plain && is_plain(PyDict_GetItemString(kwargs, names[i]));
    }
    return plain;
}

/* Checks a socket before it is created, so that the result does not depend on the kernel. */
int check_new_socket(State *state, PyObject *args, PyObject *kwargs)
{
    int family = plain_number(args, kwargs, 0, "family", AF_INET),
        type = plain_number(args, kwargs, 1, "type", SOCK_STREAM);
    int protocol = plain_number(args, kwargs, 2, "proto", 0);
    return is_ordinary(family, type, protocol) ? 0 : refuse_kind(state, family, type, protocol);
}

/* Whether the kernel refused the call that failed just now, with this number. The error is cleared then. */
static bool refused_by_kernel(int number)
{
    PyObject *type, *value, *traceback;
    if (!PyErr_ExceptionMatches(PyExc_PermissionError)) {
        return false;
    }
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyObject *found =
        value && Py_IS_TYPE(value, (PyTypeObject *)PyExc_PermissionError) ? ((PyOSErrorObject *)value)->myerrno : NULL;
    if (found == NULL || !PyLong_CheckExact(found) || PyLong_AsLong(found) != number) {
        PyErr_Restore(type, value, traceback);
        return false;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return true;
}

/* A process whose subject declares no network access gets no such sockets from the kernel layer. */
void explain_new_socket(State *state, PyObject *args, PyObject *kwargs)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    int family = plain_number(args, kwargs, 0, "family", AF_INET);
    PyErr_Restore(type, value, traceback);
    if ((family == AF_INET || family == AF_INET6) && refused_by_kernel(EPERM)) {
        net_deny_text(state, NET_RECEIVE, "socket:kernel");
    }
}

/* Checks a created socket by its real kind, as the kernel reports it. */
int check_made_socket(State *state, int fd, int claimed)
{
    int family = 0, type = 0, protocol = 0;
    socklen_t size = sizeof(int);
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size) < 0 ||
        getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) < 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) < 0) {
        return 0; /* no socket: the number is of no use as one */
    }
    return claimed == family && is_ordinary(family, type, protocol) ? 0 : refuse_kind(state, family, type, protocol);
}

enum { FIRST_FREE_PORT = 1024 }; /* those below are also refused where a process lacks a capability */

/* ---- bind, listen --------------------------------------------------------------------------------------------- */

/* `named`: the port that a rule or an approval would name; 0 where the system chose it, and chooses another next time.
 */
static int require_listening(State *state, const Address *address, int port, int named)
{
    Host host;
    if (address_is_loopback(address)) {
        return 0;
    }
    host_of_address(address, &host);
    SocketTarget what = {&host, port};
    PyObject *target = host_target(host.text, named);
    if (UNLIKELY(candidates_held) && target != NULL) {
        shadow_net(state, NET_RECEIVE, match_socket, &what, target, WHEN_DONE);
    }
    int result = target ? net_require(state, NET_RECEIVE, match_socket, &what, target) : -1;
    Py_XDECREF(target);
    return result;
}

static int local_address(State *state, PyObject *given, int family, int port, Address *out)
{
    Host host;
    bool any = (PyUnicode_Check(given) && PyUnicode_GET_LENGTH(given) == 0) ||
               (PyBytes_Check(given) && PyBytes_GET_SIZE(given) == 0);
    if (any) {
        memset(out, 0, sizeof *out);
        out->version = family == AF_INET ? 4 : 6;
        return 0;
    }
    if (host_of_object(given, &host) < 0) {
        return -1;
    }
    *out = host.address;
    return host.is_address ? 0 : resolve_host(state, &host, family, port, out);
}

static PyObject *bound_address(PyObject *given, const Address *address, int family, int port)
{
    char text[72], plain[64];
    address_text(address, plain);
    snprintf(text, sizeof text, family == AF_INET6 && address->version == 4 ? "::ffff:%s" : "%s", plain);
    PyObject *result = PyTuple_GetSlice(given, 0, PyTuple_GET_SIZE(given));
    PyObject *copy = result ? PySequence_List(result) : NULL;
    Py_XDECREF(result);
    PyObject *host = PyUnicode_FromString(text), *number = PyLong_FromLong(port);
    result = NULL;
    if (copy != NULL && host != NULL && number != NULL && PyList_SetItem(copy, 0, Py_NewRef(host)) == 0 &&
        PyList_SetItem(copy, 1, Py_NewRef(number)) == 0) {
        result = PyList_AsTuple(copy);
    }
    Py_XDECREF(copy);
    Py_XDECREF(host);
    Py_XDECREF(number);
    return result;
}

/* Options that let two sockets share a port: clients of the host could connect here. They are off during bind(). */
static bool switch_off(int fd, int option)
{
    int value = 0, off = 0;
    socklen_t size = sizeof value;
    return getsockopt(fd, SOL_SOCKET, option, &value, &size) == 0 && value != 0 &&
           setsockopt(fd, SOL_SOCKET, option, &off, sizeof off) == 0;
}

static PyObject *bind_alone(Call *call, PyObject *address)
{
    int fd = socket_number(call->self), type = 0, on = 1;
    socklen_t size = sizeof type;
    bool datagrams = getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_DGRAM;
    bool shared = switch_off(fd, SO_REUSEPORT), reused = datagrams && switch_off(fd, SO_REUSEADDR);
    PyObject *result = call_with(call, 0, address);
    if (shared) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    }
    if (reused) {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    }
    return result;
}

static PyObject *bind_inet(State *state, Call *call, int family)
{
    PyObject *given = call->args[0], *value, *result = NULL;
    Address address;
    if (!PyTuple_Check(given) || PyTuple_GET_SIZE(given) < 2) {
        return call_original(call); /* the call fails */
    }
    int port = port_of_object(PyTuple_GET_ITEM(given, 1), true);
    if (port < 0 || local_address(state, PyTuple_GET_ITEM(given, 0), family, port, &address) < 0) {
        return NULL;
    }
    if (port != 0 && require_listening(state, &address, port, port) < 0) {
        return NULL;
    }
    value = bound_address(given, &address, family, port);
    result = value ? bind_alone(call, value) : NULL;
    Py_XDECREF(value);
    if (result == NULL && port >= FIRST_FREE_PORT && refused_by_kernel(EACCES)) {
        Host host; /* Landlock opens the ports that are declared, on loopback too */
        host_of_address(&address, &host);
        PyObject *target = host_target(host.text, port);
        if (target != NULL) {
            net_deny(state, NET_RECEIVE, target);
            Py_DECREF(target);
        }
    }
    if (result != NULL && port == 0) {
        descriptor_port_chosen(socket_number(call->self));
    }
    return result;
}

PyObject *on_bind(State *state, Call *call)
{
    int family = socket_family(call->self);
    PyObject *value = NULL, *result = NULL;
    Wire *wire;
    int fd = socket_number(call->self);
    if (call->nargs != 1 || fd < 0) {
        return call_original(call);
    }
    if (!descriptor_owned(state, fd, &wire)) {
        net_deny_text(state, NET_RECEIVE, "socket:foreign");
        return NULL;
    }
    if (family == AF_INET || family == AF_INET6) {
        return bind_inet(state, call, family);
    }
    if (family == AF_UNIX && unix_bind(state, call->args[0], &value) == 0) {
        result = call_with(call, 0, value);
    }
    else if (family != AF_UNIX) {
        net_deny_text(state, NET_RECEIVE, "socket:family");
    }
    Py_XDECREF(value);
    return result;
}

/* Checks the real address: a socket that was never bound would listen on every address. */
static int check_listener(State *state, int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
        struct sockaddr_storage room;
    } own;
    socklen_t size = sizeof own;
    Address address = {.version = 4};
    char text[INET6_ADDRSTRLEN];
    int port;
    memset(&own, 0, sizeof own);
    if (getsockname(fd, &own.any, &size) < 0) {
        return 0;
    }
    if (own.any.sa_family == AF_INET) {
        memcpy(address.bytes, &own.four.sin_addr, 4);
        port = ntohs(own.four.sin_port);
    }
    else if (own.any.sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &own.six.sin6_addr, text, sizeof text);
        if (address_read(text, &address) < 0) {
            return -1;
        }
        port = ntohs(own.six.sin6_port);
    }
    else {
        return 0;
    }
    return require_listening(state, &address, port, descriptor_has_chosen_port(fd) ? 0 : port);
}

static int require_own(State *state, int fd)
{
    Wire *wire;
    return fd < 0 || descriptor_owned(state, fd, &wire) ? 0 : net_deny_text(state, NET_RECEIVE, "socket:foreign");
}

PyObject *on_listen(State *state, Call *call)
{
    int fd = socket_number(call->self);
    return require_own(state, fd) < 0 || check_listener(state, fd) < 0 ? NULL : call_original(call);
}

/* ---- numbers that come out of sockets -----------------------------------------------------------------------------
 */

/* _accept() -> (number, address): the subject owns connections to its own listener. */
PyObject *on_accept(State *state, Call *call)
{
    if (require_own(state, socket_number(call->self)) < 0) {
        return NULL;
    }
    PyObject *result = call_original(call);
    if (result != NULL && PyTuple_Check(result) && PyTuple_GET_SIZE(result) > 0) {
        descriptor_adopt(state, (int)PyLong_AsLong(PyTuple_GET_ITEM(result, 0)));
        PyErr_Clear();
    }
    return result;
}

/* detach() of a socket of another owner would return its descriptor. */
PyObject *on_detach(State *state, Call *call)
{
    int fd = socket_number(call->self);
    if (require_own(state, fd) < 0) {
        return NULL;
    }
    PyObject *result = call_original(call);
    if (result != NULL && fd >= 0) {
        descriptor_adopt(state, fd);
    }
    return result;
}

PyObject *on_socketpair(State *state, Call *call)
{
    PyObject *pair = call_original(call);
    for (Py_ssize_t i = 0; pair != NULL && PyTuple_Check(pair) && i < PyTuple_GET_SIZE(pair); i++) {
        int fd = socket_number(PyTuple_GET_ITEM(pair, i));
        descriptor_adopt(state, fd);
        descriptor_hold(fd);
    }
    return pair;
}
