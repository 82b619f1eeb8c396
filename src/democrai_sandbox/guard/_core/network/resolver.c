/* Name lookups: which names may be looked up, and which addresses a name led to.
 *
 * A lookup can leak data, so it is checked like a connection. Its answers are kept for the whole process ("pins"):
 * an address may be connected to for a name only if the name recently led to it. An answer that no caller received
 * is never used. */
#include "network/network.h"

#include <netdb.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

Row *getaddrinfo_row = NULL; /* _socket.getaddrinfo, set by table_ready */

enum { LIFETIME = 600, MOST_PINS = 4096 }; /* seconds; getaddrinfo returns no lifetime */

static PyObject *pins = NULL;    /* dict: address -> dict: name -> deadline */
static PyObject *answers = NULL; /* dict: name -> tuple of addresses, as last resolved */

int resolver_ready(void)
{
    pins = PyDict_New();
    answers = pins ? PyDict_New() : NULL;
    if (answers == NULL) {
        return -1;
    }
    PyObject_GC_UnTrack(pins); /* not to be found through gc */
    PyObject_GC_UnTrack(answers);
    return 0;
}

static long seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long)now.tv_sec;
}

/* ---- pins ----------------------------------------------------------------------------------------- */

static int pin(const Host *name, const char *address)
{
    if (PyDict_GET_SIZE(pins) >= MOST_PINS) {
        PyDict_Clear(pins); /* code that still needs one resolves the name again */
        PyDict_Clear(answers);
    }
    PyObject *known = PyDict_GetItemString(pins, address);
    if (known == NULL) {
        known = PyDict_New();
        if (known == NULL || PyDict_SetItemString(pins, address, known) < 0) {
            Py_XDECREF(known);
            return -1;
        }
        Py_DECREF(known);
        PyObject_GC_UnTrack(known);
    }
    PyObject *deadline = PyLong_FromLong(seconds() + LIFETIME);
    int result = deadline ? PyDict_SetItemString(known, name->text, deadline) : -1;
    Py_XDECREF(deadline);
    return result;
}

/* Calls `visit` for each name that led to this address, until it returns a value other than 0. It must not run Python
 * code. */
int each_name(const Address *address, int (*visit)(const Host *name, void *context), void *context)
{
    char text[64];
    Host host;
    address_text(address, text);
    PyObject *known = PyDict_GetItemString(pins, text), *name, *deadline;
    int result = 0;
    for (Py_ssize_t at = 0; known && result == 0 && PyDict_Next(known, &at, &name, &deadline);) {
        Py_ssize_t length;
        const char *plain = PyUnicode_AsUTF8AndSize(name, &length);
        bool valid = plain != NULL && PyLong_AsLong(deadline) > seconds();
        if (valid && host_read(plain, (size_t)length, true, &host) == 0) {
            result = visit(&host, context);
        }
    }
    return result;
}

/* All addresses of the name, the connected one first. */
PyObject *addresses_of(const Host *name, const char *dialled)
{
    PyObject *list = PyList_New(0), *first = PyUnicode_FromString(dialled), *tuple = NULL;
    PyObject *known = name ? PyDict_GetItemString(answers, name->text) : NULL;
    if (list != NULL && first != NULL && PyList_Append(list, first) == 0) {
        for (Py_ssize_t i = 0; known != NULL && i < PyTuple_GET_SIZE(known); i++) {
            PyObject *address = PyTuple_GET_ITEM(known, i);
            if (PyUnicode_Compare(address, first) != 0 && PyList_Append(list, address) < 0) {
                break;
            }
        }
        tuple = PyErr_Occurred() ? NULL : PyList_AsTuple(list);
    }
    Py_XDECREF(list);
    Py_XDECREF(first);
    return tuple;
}

/* ---- who may look up what ---------------------------------------------------------------------------- */

/* Addresses of this machine, its link or its credential service need a local name or a declaration. */
bool may_lead_to(const State *state, const Host *name, const Address *address)
{
    return !address_is_forbidden(address) || host_is_own(name) || declared_literally(state, address);
}

/* A lookup for a request is reported with the request. */
static void shadow_name(State *state, const Host *host, int port)
{
    const Ticket *ticket = ticket_current(state);
    SocketTarget what = {host, port};
    if (!shadow_concerns(state) || name_noted(state, host) || (ticket && strcmp(ticket->host.key, host->key) == 0)) {
        return;
    }
    bool allowed = state_net(state, match_name, host);
    bool other =
        allowed ? candidate_net(state, match_name, host) : candidate_net(state, match_socket, &what) & NET_CONNECT;
    if (allowed != other) {
        shadow_socket(state, host, port, allowed, WHEN_ASKED);
    }
}

int check_name(State *state, const Host *host, int port)
{
    if (UNLIKELY(candidates_held) && !host->is_address && !host_is_own(host)) {
        shadow_name(state, host, port);
    }
    if (host->is_address || host_is_own(host) || state_net(state, match_name, host) || name_noted(state, host)) {
        return 0;
    }
    SocketTarget what = {host, port};
    PyObject *target = host_target(host->text, port);
    int result = target ? net_require(state, NET_CONNECT, match_socket, &what, target) : -1;
    if (result == 0) {
        result = note_name(state, host);
    }
    Py_XDECREF(target);
    return result;
}

static PyObject *address_of_entry(PyObject *entry)
{
    PyObject *place = PyTuple_Check(entry) && PyTuple_GET_SIZE(entry) == 5 ? PyTuple_GET_ITEM(entry, 4) : NULL;
    PyObject *text = place && PyTuple_Check(place) && PyTuple_GET_SIZE(place) > 0 ? PyTuple_GET_ITEM(place, 0) : NULL;
    return text && PyUnicode_Check(text) ? text : NULL;
}

/* Whether this answer may be used, and if so pins it. `state` NULL: the host's own lookup. -1 on error. */
static int accept_answer(State *state, const Host *name, PyObject *text, PyObject *kept)
{
    Address address;
    char canonical[64], plain[128];
    const char *given = text ? PyUnicode_AsUTF8(text) : NULL;
    if (given == NULL || strlen(given) >= sizeof plain) {
        PyErr_Clear();
        return 0;
    }
    strcpy(plain, given);
    plain[strcspn(plain, "%")] = '\0'; /* a scope behind a link-local address */
    if (address_read(plain, &address) < 0 || (state != NULL && !may_lead_to(state, name, &address))) {
        return 0;
    }
    address_text(&address, canonical);
    if (pin(name, canonical) < 0) {
        return -1;
    }
    PyObject *value = PyUnicode_FromString(canonical);
    int result = value == NULL || (PySequence_Contains(kept, value) == 0 && PyList_Append(kept, value) < 0) ? -1 : 1;
    Py_XDECREF(value);
    return result;
}

static int keep_answers(const Host *name, PyObject *kept)
{
    PyObject *tuple = PyList_AsTuple(kept);
    int result = tuple ? PyDict_SetItemString(answers, name->text, tuple) : -1;
    Py_XDECREF(tuple);
    return result;
}

/* Removes entries that the name may not lead to. `text_of` finds the address in an entry. */
static PyObject *filter(State *state, const Host *name, PyObject *entries, PyObject *(*text_of)(PyObject *))
{
    PyObject *result = PyList_New(0), *kept = result ? PyList_New(0) : NULL, *refused = NULL;
    for (Py_ssize_t i = 0; kept != NULL && i < PyList_GET_SIZE(entries); i++) {
        PyObject *entry = PyList_GET_ITEM(entries, i), *text = text_of(entry);
        int good = accept_answer(state, name, text, kept);
        if (good < 0 || (good && PyList_Append(result, entry) < 0)) {
            Py_CLEAR(kept);
        }
        refused = good ? refused : text;
    }
    bool failed = kept == NULL || keep_answers(name, kept) < 0;
    if (!failed && state != NULL && PyList_GET_SIZE(result) == 0 && refused != NULL) {
        net_deny(state, NET_CONNECT, refused);
        failed = true;
    }
    Py_XDECREF(kept);
    if (failed) {
        Py_CLEAR(result);
    }
    return result;
}

/* ---- getaddrinfo and its relatives -------------------------------------------------------------------- */

static int port_of_service(const Call *call, Py_ssize_t at)
{
    PyObject *port = at >= 0 ? call->args[at] : NULL;
    long number = 0;
    if (port != NULL && PyLong_Check(port)) {
        number = PyLong_AsLong(port);
    }
    else if (port != NULL && PyUnicode_Check(port) && PyUnicode_IS_ASCII(port)) {
        number = strtol((const char *)PyUnicode_1BYTE_DATA(port), NULL, 10);
    }
    PyErr_Clear();
    return number > 0 && number <= MAX_PORT ? (int)number : 0;
}

static PyObject *same(PyObject *entry)
{
    return PyUnicode_Check(entry) ? entry : NULL;
}

/* An address as text, in any spelling: the most frequent case, without anything to pin. No name has this form. */
static bool is_numeric(const char *text)
{
    return text[strspn(text, "0123456789.")] == '\0' || strchr(text, ':') != NULL;
}

/* Lookups of the host are allowed and pinned: a client may reuse the answer for a subject's request. */
static PyObject *unguarded_lookup(Call *call, Py_ssize_t at, PyObject *(*text_of)(PyObject *))
{
    PyObject *result = call_original(call), *entries = NULL;
    if (result == NULL || at < 0 || !PyUnicode_CheckExact(call->args[at]) || !PyUnicode_IS_ASCII(call->args[at]) ||
        PyUnicode_GET_LENGTH(call->args[at]) == 0) {
        return result;
    }
    if (is_numeric((const char *)PyUnicode_1BYTE_DATA(call->args[at]))) {
        return result;
    }
    Host host;
    /* every rule for localhost covers its addresses as they are */
    if (host_of_object(call->args[at], &host) == 0 && !host.is_address && strcmp(host.key, "localhost") != 0) {
        PyObject *list = PyList_Check(result) ? Py_NewRef(result) : Py_BuildValue("[O]", result);
        entries = list ? filter(NULL, &host, list, text_of) : NULL;
        Py_XDECREF(list);
    }
    PyErr_Clear();
    Py_XDECREF(entries);
    return result;
}

static PyObject *checked_lookup(State *state, Call *call, Py_ssize_t at, int port, Host *host)
{
    if (host_of_object(call->args[at], host) < 0 || check_name(state, host, port) < 0) {
        return NULL;
    }
    /* as bytes: a text would go through the codec "idna", which guarded code can replace */
    PyObject *text = PyBytes_FromString(host->text);
    PyObject *result = text ? call_with(call, at, text) : NULL;
    Py_XDECREF(text);
    return result;
}

PyObject *on_getaddrinfo(State *unused, Call *call)
{
    State *state = state_guarding();
    Py_ssize_t at = call_find(call, 0, "host");
    if (state == NULL || at < 0 || call->args[at] == Py_None) {
        return state == NULL ? unguarded_lookup(call, at, address_of_entry) : call_original(call);
    }
    Host host;
    Py_INCREF(state);
    PyObject *result = checked_lookup(state, call, at, port_of_service(call, call_find(call, 1, "port")), &host);
    if (result != NULL && !host.is_address && PyList_Check(result)) {
        Py_SETREF(result, filter(state, &host, result, address_of_entry));
    }
    Py_DECREF(state);
    return result;
}

/* gethostbyname gives one address, gethostbyname_ex (name, aliases, addresses). */
PyObject *on_gethostbyname(State *unused, Call *call)
{
    State *state = state_guarding();
    Py_ssize_t at = call_find(call, 0, "");
    if (state == NULL || at < 0) {
        return state == NULL ? unguarded_lookup(call, at, same) : call_original(call);
    }
    Host host;
    Py_INCREF(state);
    PyObject *result = checked_lookup(state, call, at, 0, &host), *list = NULL, *kept = NULL;
    if (result != NULL && !host.is_address) {
        bool extended = PyTuple_Check(result) && PyTuple_GET_SIZE(result) == 3;
        list = extended ? Py_NewRef(PyTuple_GET_ITEM(result, 2)) : Py_BuildValue("[O]", result);
        kept = list ? filter(state, &host, list, same) : NULL;
        if (kept == NULL) {
            Py_CLEAR(result);
        }
        else if (extended) {
            Py_SETREF(result, Py_BuildValue("(OOO)", PyTuple_GET_ITEM(result, 0), PyTuple_GET_ITEM(result, 1), kept));
        }
    }
    Py_XDECREF(list);
    Py_XDECREF(kept);
    Py_DECREF(state);
    return result;
}

/* gethostbyaddr(name or address), getnameinfo((address, port), flags): a query about an address is sent to the name
 * server of its owner. Numeric queries, addresses of this machine, and declared or resolved addresses are allowed. */
static int may_be_asked_about(const Host *name, void *state)
{
    return host_is_own(name) || state_net(state, match_name, name);
}

static int check_reverse(State *state, PyObject *object)
{
    Host host;
    if (host_of_object(object, &host) < 0) {
        return -1;
    }
    if (!host.is_address) {
        return check_name(state, &host, 0);
    }
    if (address_is_loopback(&host.address) || declared_literally(state, &host.address)) {
        return 0;
    }
    bool known = each_name(&host.address, may_be_asked_about, state);
    return known ? 0 : net_deny_text(state, NET_CONNECT, host.text);
}

PyObject *on_reverse(State *state, Call *call)
{
    PyObject *object = call->nargs > 0 ? call->args[0] : NULL;
    bool tuple = object != NULL && PyTuple_Check(object);
    if (tuple) {
        long flags = call->nargs > 1 && PyLong_Check(call->args[1]) ? PyLong_AsLong(call->args[1]) : 0;
        PyErr_Clear();
        if (flags & NI_NUMERICHOST) {
            return call_original(call);
        }
        object = PyTuple_GET_SIZE(object) > 0 ? PyTuple_GET_ITEM(object, 0) : NULL;
    }
    if (object == NULL) {
        return call_original(call);
    }
    if (check_reverse(state, object) < 0) {
        return NULL;
    }
    if (tuple) {
        return call_original(call); /* numbers, read without a codec */
    }
    Host host;
    PyObject *bytes = host_of_object(object, &host) == 0 ? PyBytes_FromString(host.text) : NULL;
    PyObject *result = bytes ? call_with(call, 0, bytes) : NULL;
    Py_XDECREF(bytes);
    return result;
}

/* ---- a name given to connect() ------------------------------------------------------------------------- */

/* Resolves the name here, so that the checked address is the connected one. */
int resolve_host(State *state, const Host *host, int family, int port, Address *out)
{
    PyObject *args = Py_BuildValue("(yiii)", host->text, port, family, 0);
    PyObject *found = args && getaddrinfo_row->original
                          ? row_call_tuple(getaddrinfo_row, getaddrinfo_row->module_object, args, NULL)
                          : NULL;
    Py_XDECREF(args);
    int result = -1;
    for (Py_ssize_t i = 0; found != NULL && result < 0 && i < PyList_GET_SIZE(found); i++) {
        PyObject *text = address_of_entry(PyList_GET_ITEM(found, i));
        const char *plain = text ? PyUnicode_AsUTF8(text) : NULL;
        result = plain != NULL ? address_read(plain, out) : -1;
    }
    if (result < 0 && !PyErr_Occurred()) {
        refuse_target("the host has no address of this family");
    }
    Py_XDECREF(found);
    return result;
}
