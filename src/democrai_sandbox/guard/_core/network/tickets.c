/* Tickets: a permitted request, and the connection that it needs.
 *
 * A ticket is open while the client performs the request. A ContextVar carries it into tasks, bound callables carry
 * it into threads. While it is open, the socket check permits the host and port of the request. Data on that
 * connection is read on the wire, so a ticket is useless for anything but permitted requests. */
#include "network/network.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* ---- carrying --------------------------------------------------------------------------------------- */

/* The open ticket of this context, if a subject of the current chain has it. Borrowed from the context. */
Ticket *ticket_current(const State *state)
{
    PyObject *value = open_tickets == 0 ? NULL : ticket_carried();
    Ticket *ticket = (Ticket *)value;
    if (ticket != NULL && !state_has_policy(state, ticket->policy)) {
        ticket = NULL;
    }
    Py_XDECREF(value);
    return ticket;
}

/* ---- the object ------------------------------------------------------------------------------------- */

static PyObject *ticket_enter(PyObject *self, PyObject *unused)
{
    Ticket *ticket = (Ticket *)self;
    if (ticket->previous != NULL) {
        PyErr_SetString(usage_error, "a ticket is entered once");
        return NULL;
    }
    ticket->previous = ticket_carry(self);
    if (ticket->previous == NULL) {
        return NULL;
    }
    ticket->carried.open = true;
    open_tickets++;
    return Py_NewRef(self);
}

static void ticket_close(Ticket *ticket)
{
    if (ticket->carried.open) {
        ticket->carried.open = false;
        open_tickets--;
    }
}

static PyObject *ticket_exit(PyObject *self, PyObject *args)
{
    Ticket *ticket = (Ticket *)self;
    ticket_close(ticket);
    PyObject *carried = ticket_carry(ticket->previous ? ticket->previous : Py_None);
    Py_XDECREF(carried);
    if (carried == NULL) {
        return NULL;
    }
    Py_RETURN_FALSE;
}

int ticket_begin(PyObject *ticket)
{
    PyObject *entered = ticket == Py_None ? Py_NewRef(ticket) : ticket_enter(ticket, NULL);
    Py_XDECREF(entered);
    return entered ? 0 : -1;
}

int ticket_end(PyObject *ticket)
{
    PyObject *type, *value, *trace;
    if (ticket == Py_None) {
        return 0;
    }
    PyErr_Fetch(&type, &value, &trace);
    PyObject *left = ticket_exit(ticket, NULL);
    if (left == NULL) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
        return -1;
    }
    Py_DECREF(left);
    PyErr_Restore(type, value, trace);
    return 0;
}

static void ticket_dealloc(PyObject *self)
{
    ticket_close((Ticket *)self);
    Py_XDECREF(((Ticket *)self)->previous);
    PyObject_Free(self);
}

static PyMethodDef ticket_methods[] = {
    {"__enter__", ticket_enter, METH_NOARGS, NULL},
    {"__exit__", ticket_exit, METH_VARARGS, NULL},
    {NULL},
};

PyTypeObject Ticket_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "democrai_sandbox.guard._core.Ticket",
    .tp_basicsize = sizeof(Ticket),
    .tp_dealloc = ticket_dealloc,
    .tp_methods = ticket_methods,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
};

int tickets_ready(void)
{
    ticket_type = &Ticket_Type;
    ticket_variable = PyContextVar_New("democrai_sandbox_request", NULL);
    return ticket_variable == NULL || PyType_Ready(&Ticket_Type) < 0 ? -1 : 0;
}

static PyObject *ticket_new(const State *state, const Url *url)
{
    Ticket *ticket = PyObject_New(Ticket, &Ticket_Type);
    if (ticket == NULL) {
        return NULL;
    }
    ticket->policy = answering((State *)state)->policy->id;
    host_copy(&ticket->host, &url->host);
    ticket->port = url->port;
    ticket->carried.open = false;
    ticket->previous = NULL;
    size_t length = strnlen(url->scheme, sizeof ticket->scheme - 1);
    memcpy(ticket->scheme, url->scheme, length);
    ticket->scheme[length] = '\0';
    return (PyObject *)ticket;
}

/* ---- what adapters call ------------------------------------------------------------------------------- */

/* GET, HEAD and OPTIONS receive, every other verb sends. */
static unsigned operation_of_method(PyObject *method)
{
    static const char *const receiving[] = {"GET", "HEAD", "OPTIONS"};
    PyObject *text = PyUnicode_Check(method) ? PyUnicode_FromObject(method) : NULL;
    unsigned operation = NET_SEND;
    for (int i = 0; text != NULL && PyUnicode_IS_ASCII(text) && i < 3; i++) {
        if (strcasecmp((const char *)PyUnicode_1BYTE_DATA(text), receiving[i]) == 0 &&
            strlen(receiving[i]) == (size_t)PyUnicode_GET_LENGTH(text)) {
            operation = NET_RECEIVE;
        }
    }
    Py_XDECREF(text);
    PyErr_Clear();
    return operation;
}

static PyObject *permit(State *state, Url *url, unsigned operation, Matcher match)
{
    PyObject *ticket = NULL, *target = NULL;
    if (UNLIKELY(candidates_held)) {
        shadow_url(state, operation, match, url, WHEN_ASKED);
    }
    bool declared = state_net(state, match, url) & operation;
    if (!declared) {
        target = url_text(url);
        if (target == NULL || net_require(state, operation, match, url, target) < 0 ||
            note_name(state, &url->host) < 0) {
            goto done;
        }
    }
    ticket = ticket_new(state, url);
done:
    Py_XDECREF(target);
    return ticket;
}

/* request(method, url) -> Ticket, or None when the caller is not guarded. */
PyObject *core_request(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    State *state = state_guarding();
    if (nargs != 2 || state == NULL) {
        return nargs == 2 ? Py_NewRef(Py_None) : PyErr_Format(PyExc_TypeError, "request(method, url)");
    }
    Url url;
    if (url_of_object(args[1], &url) < 0) {
        return NULL;
    }
    Py_INCREF(state);
    PyObject *ticket = permit(state, &url, operation_of_method(args[0]), match_url);
    Py_DECREF(state);
    url_clear(&url);
    return ticket;
}

static int as_websocket(Url *url)
{
    bool secure = strcmp(url->scheme, "https") == 0 || strcmp(url->scheme, "wss") == 0;
    if (!secure && strcmp(url->scheme, "http") != 0 && strcmp(url->scheme, "ws") != 0) {
        return refuse_target("a websocket has a ws:// or wss:// URL");
    }
    return url_with_scheme(url, secure ? "wss" : "ws");
}

PyObject *core_websocket(PyObject *module, PyObject *object)
{
    State *state = state_guarding();
    Url url;
    if (state == NULL) {
        Py_RETURN_NONE;
    }
    if (url_of_object(object, &url) < 0) {
        return NULL;
    }
    Py_INCREF(state);
    PyObject *ticket = as_websocket(&url) < 0 ? NULL : permit(state, &url, NET_CONNECT, match_url);
    Py_DECREF(state);
    url_clear(&url);
    return ticket;
}

/* websocket_use(url, "send" or "receive"): the direction in which an open websocket is used. */
PyObject *core_websocket_use(PyObject *module, PyObject *args)
{
    State *state = state_guarding();
    PyObject *object, *ticket = NULL;
    const char *direction;
    Url url;
    if (!PyArg_ParseTuple(args, "Os", &object, &direction)) {
        return NULL;
    }
    if (state == NULL) {
        Py_RETURN_NONE;
    }
    if (url_of_object(object, &url) < 0) {
        return NULL;
    }
    Py_INCREF(state);
    unsigned operation = strcmp(direction, "receive") == 0 ? NET_RECEIVE : NET_SEND;
    ticket = as_websocket(&url) < 0 ? NULL : permit(state, &url, operation, match_url);
    Py_DECREF(state);
    url_clear(&url);
    if (ticket == NULL) {
        return NULL;
    }
    Py_DECREF(ticket);
    Py_RETURN_NONE;
}

/* origin(scheme, host, port) -> Ticket or None: to open a connection before its request is known. At least one request
 * must be permitted there, by rules or an earlier approval; each is checked on the wire. */
PyObject *core_origin(PyObject *module, PyObject *args)
{
    State *state = state_guarding();
    const char *scheme;
    PyObject *host_object, *ticket = NULL, *text;
    int port;
    Host host;
    Url url;
    if (!PyArg_ParseTuple(args, "sOi", &scheme, &host_object, &port)) {
        return NULL;
    }
    if (state == NULL) {
        Py_RETURN_NONE;
    }
    if (host_of_object(host_object, &host) < 0) {
        return NULL;
    }
    text = PyUnicode_FromFormat(strchr(host.text, ':') ? "%s://[%s]:%d" : "%s://%s:%d", scheme, host.text, port);
    if (text == NULL || url_of_object(text, &url) < 0) {
        Py_XDECREF(text);
        return NULL;
    }
    Py_INCREF(state);
    bool some = state_net(state, match_origin, &url) != 0 || name_noted(state, &url.host);
    ticket = some ? ticket_new(state, &url) : permit(state, &url, NET_CONNECT, match_url);
    Py_DECREF(state);
    url_clear(&url);
    Py_DECREF(text);
    return ticket;
}

/* subject_key(): a number for the current subject, 0 without one. Pools are separated by it. */
PyObject *core_subject_key(PyObject *module, PyObject *unused)
{
    State *state = state_guarding();
    return PyLong_FromUnsignedLongLong(state ? answering(state)->policy->id : 0);
}

/* subject_field(tuple, index): a copy of the same type with (subject_key(), item) at the index. */
PyObject *core_subject_field(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    Py_ssize_t place = nargs == 2 && PyTuple_Check(args[0]) ? PyLong_AsSsize_t(args[1]) : -1;
    PyTypeObject *type = place < 0 ? NULL : Py_TYPE(args[0]);
    if (place < 0 || place >= PyTuple_GET_SIZE(args[0]) || type->tp_itemsize != PyTuple_Type.tp_itemsize) {
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "subject_field(tuple, index)");
    }
    Py_ssize_t size = PyTuple_GET_SIZE(args[0]);
    PyObject *key = core_subject_key(module, NULL), *field = NULL, *copy = NULL;
    if (key != NULL && (field = PyTuple_Pack(2, key, PyTuple_GET_ITEM(args[0], place))) != NULL &&
        (copy = type->tp_alloc(type, size)) != NULL) {
        for (Py_ssize_t i = 0; i < size; i++) {
            PyTuple_SET_ITEM(copy, i, Py_NewRef(i == place ? field : PyTuple_GET_ITEM(args[0], i)));
        }
    }
    Py_XDECREF(key);
    Py_XDECREF(field);
    return copy;
}

/* ---- for the differential tests ------------------------------------------------------------------------- */

PyObject *core_read_url(PyObject *module, PyObject *text)
{
    Url url;
    if (url_of_object(text, &url) < 0) {
        return NULL;
    }
    PyObject *parts = Py_BuildValue("(ssisO)", url.scheme, url.host.text, url.port, url_path(&url),
                                    url.ambiguous ? Py_True : Py_False);
    url_clear(&url);
    return parts;
}

PyObject *core_url_mask(PyObject *module, PyObject *args)
{
    PyObject *policy, *text;
    Url url;
    if (!PyArg_ParseTuple(args, "O!O", &Policy_Type, &policy, &text) || url_of_object(text, &url) < 0) {
        return NULL;
    }
    unsigned mask = match_url(&((Policy *)policy)->network, &url);
    url_clear(&url);
    return PyLong_FromUnsignedLong(mask);
}

PyObject *core_socket_mask(PyObject *module, PyObject *args)
{
    PyObject *policy, *text, *port;
    Host host;
    if (!PyArg_ParseTuple(args, "O!OO", &Policy_Type, &policy, &text, &port) || host_of_object(text, &host) < 0) {
        return NULL;
    }
    int number = port == Py_None ? 0 : port_of_object(port, false);
    SocketTarget what = {&host, number};
    return number < 0 ? NULL : PyLong_FromUnsignedLong(match_socket(&((Policy *)policy)->network, &what));
}

PyObject *core_name_mask(PyObject *module, PyObject *args)
{
    PyObject *policy, *text;
    Host host;
    if (!PyArg_ParseTuple(args, "O!O", &Policy_Type, &policy, &text) || host_of_object(text, &host) < 0) {
        return NULL;
    }
    return PyLong_FromUnsignedLong(match_name(&((Policy *)policy)->network, &host));
}
