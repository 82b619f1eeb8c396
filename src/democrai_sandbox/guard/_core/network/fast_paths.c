/* Shortcuts for the common request of each HTTP client, without its Python adapter, which would take longer than the
 * checks. A shortcut does the same as the wrapper of the adapter, for exact types and plain values only. The wrapper
 * handles all other cases. Neither is authoritative: sent data is checked on the wire. */
#include "network/network.h"

#include <string.h>
#include <strings.h>

#define NAMES(X)                                                                                                       \
    X(adapters)                                                                                                        \
    X(fragment)                                                                                                        \
    X(headers)                                                                                                         \
    X(host)                                                                                                            \
    X(method)                                                                                                          \
    X(pool)                                                                                                            \
    X(port)                                                                                                            \
    X(scheme)                                                                                                          \
    X(target)                                                                                                          \
    X(url)                                                                                                             \
    X(userinfo)                                                                                                        \
    X(default_port)                                                                                                    \
    X(sock)                                                                                                            \
    X(upgrade)                                                                                                         \
    X(_fragment)                                                                                                       \
    X(_latest)                                                                                                         \
    X(_mounts)                                                                                                         \
    X(_netloc)                                                                                                         \
    X(_path)                                                                                                           \
    X(_pools)                                                                                                          \
    X(_query)                                                                                                          \
    X(_scheme)                                                                                                         \
    X(_transport)                                                                                                      \
    X(_tunnel_host)                                                                                                    \
    X(_uri_reference)                                                                                                  \
    X(_democrai_sandbox_pools)                                                                                         \
    X(_democrai_sandbox_subject)

#define NAME(name) static PyObject *name_##name = NULL;
NAMES(NAME)

static int texts_ready(void)
{
#define READY(name)                                                                                                    \
    if (name_##name == NULL && (name_##name = PyUnicode_InternFromString(#name)) == NULL) {                            \
        return -1;                                                                                                     \
    }
    NAMES(READY)
    return 0;
}

/* ---- reading objects ---------------------------------------------------------------------------------- */

/* NULL without an exception when the attribute is missing or fails: the wrapper handles that. */
static PyObject *attribute(PyObject *object, PyObject *name)
{
    PyObject *value = NULL;
#if PY_VERSION_HEX >= 0x030D0000
    int found = PyObject_GetOptionalAttr(object, name, &value);
#else
    int found = _PyObject_LookupAttr(object, name, &value);
#endif
    if (found < 0) {
        PyErr_Clear();
    }
    return value;
}

/* The same for attributes of the object itself, without __getattr__ of its class. */
PyObject *own_attribute(PyObject *object, PyObject *name)
{
    return Py_TYPE(object)->tp_getattro == PyObject_GenericGetAttr ? attribute(object, name) : NULL;
}

static bool attribute_is(PyObject *object, PyObject *name, bool (*test)(PyObject *, PyObject *), PyObject *with)
{
    PyObject *value = attribute(object, name);
    bool is = value != NULL && test(value, with);
    Py_XDECREF(value);
    return is;
}

static bool is_empty(PyObject *value, PyObject *unused)
{
    return value == Py_None || (PyUnicode_CheckExact(value) && PyUnicode_GET_LENGTH(value) == 0);
}

static bool is_something(PyObject *value, PyObject *unused)
{
    return value != Py_None;
}

static bool is_of_type(PyObject *value, PyObject *type)
{
    return (PyObject *)Py_TYPE(value) == type;
}

static bool is_dictionary_of(PyObject *value, PyObject *type, PyObject *or_this)
{
    PyObject *key, *item;
    Py_ssize_t at = 0;
    if (!PyDict_CheckExact(value) && !PyODict_CheckExact(value)) {
        return false;
    }
    while (PyDict_Next(value, &at, &key, &item)) {
        if ((PyObject *)Py_TYPE(item) != type && item != or_this) {
            return false;
        }
    }
    return true;
}

static bool holds_only(PyObject *value, PyObject *type)
{
    return is_dictionary_of(value, type, NULL);
}

/* None stands for the transport that the client has anyway. */
static bool mounts_only(PyObject *value, PyObject *type)
{
    return is_dictionary_of(value, type, Py_None);
}

/* ---- a request and its ticket --------------------------------------------------------------------------- */

/* Makes the call inside a ticket for this request. `method` and `address`, exact texts, are stolen. */
static PyObject *call_permitted(const FastPath *path, PyObject *method, PyObject *address, PyObject *const *args,
                                size_t nargs, PyObject *names)
{
    PyObject *asked[2] = {method, address};
    PyObject *ticket = core_request(NULL, asked, 2), *result = NULL;
    Py_DECREF(method);
    Py_DECREF(address);
    if (ticket != NULL && ticket_begin(ticket) == 0) {
        result = PyObject_Vectorcall(path->original, args, nargs, names);
        if (ticket_end(ticket) < 0) {
            Py_CLEAR(result);
        }
        if (result == NULL) {
            let_denial_out(path->objects[0]);
        }
    }
    Py_XDECREF(ticket);
    return result;
}

/* ---- pools beside the host's ------------------------------------------------------------------------------ */

/* The pool of this subject for `owner`; NULL when it does not exist yet. `latest`: only if no other subject has used
 * the client since, because the order of use decides which pool is closed first. */
static PyObject *pool_beside(PyObject *owner, PyObject *key, bool latest)
{
    PyObject *apart = own_attribute(owner, name__democrai_sandbox_pools);
    PyObject *pools = apart ? own_attribute(apart, name__pools) : NULL, *found = NULL;
    PyObject *last = pools && latest ? own_attribute(apart, name__latest) : NULL;
    bool current = !latest || (last && PyLong_CheckExact(last) && PyObject_RichCompareBool(last, key, Py_EQ) == 1);
    if (pools != NULL && PyDict_CheckExact(pools) && current) {
        found = Py_XNewRef(PyDict_GetItemWithError(pools, key));
        PyErr_Clear();
    }
    Py_XDECREF(apart);
    Py_XDECREF(pools);
    Py_XDECREF(last);
    return found;
}

/* Makes the call with another first argument. */
static PyObject *call_on(const FastPath *path, PyObject *self, PyObject *const *args, size_t nargs, PyObject *names)
{
    PyObject *argv[MAX_ARGS];
    Call call = {.args = args, .nargs = PyVectorcall_NARGS(nargs), .kwnames = names}, copy;
    if (call_copy(&call, argv, &copy) < 0) {
        return NULL;
    }
    argv[0] = self;
    return PyObject_Vectorcall(path->original, argv, (size_t)copy.nargs, names);
}

static bool has_few_arguments(size_t nargs, PyObject *names)
{
    return PyVectorcall_NARGS(nargs) + (names ? PyTuple_GET_SIZE(names) : 0) <= MAX_ARGS;
}

/* ---- urllib3, http.client ----------------------------------------------------------------------------------- */

static bool is_ascii_text(PyObject *value)
{
    return value != NULL && PyUnicode_CheckExact(value) && PyUnicode_IS_COMPACT_ASCII(value);
}

static char *put_ascii(char *out, PyObject *text)
{
    size_t length = (size_t)PyUnicode_GET_LENGTH(text);
    memcpy(out, PyUnicode_1BYTE_DATA(text), length);
    return out + length;
}

/* scheme://host:port/path of exact ASCII texts; NULL without an exception for other values. */
static PyObject *plain_address(const char *scheme, PyObject *host, PyObject *port, PyObject *path)
{
    enum { PORT_ROOM = 16 };
    long number = port && PyLong_CheckExact(port) ? PyLong_AsLong(port) : -1;
    if (number < 0 || number > MAX_PORT || !is_ascii_text(host) || !is_ascii_text(path) ||
        PyUnicode_GET_LENGTH(path) == 0 || PyUnicode_READ_CHAR(path, 0) != '/' ||
        memchr(PyUnicode_1BYTE_DATA(host), ':', (size_t)PyUnicode_GET_LENGTH(host)) != NULL) {
        PyErr_Clear();
        return NULL;
    }
    char digits[PORT_ROOM], *end = put_number(digits, (unsigned)number);
    size_t size = strlen(scheme) + 4 + (size_t)(end - digits);
    Py_ssize_t length = (Py_ssize_t)size + PyUnicode_GET_LENGTH(host) + PyUnicode_GET_LENGTH(path);
    PyObject *address = PyUnicode_New(length, 127);
    if (address != NULL) {
        char *out = put_text(put_text((char *)PyUnicode_1BYTE_DATA(address), scheme), "://");
        out = put_text(put_ascii(out, host), ":");
        memcpy(out, digits, (size_t)(end - digits));
        put_ascii(out + (end - digits), path);
        ((char *)PyUnicode_1BYTE_DATA(address))[length] = '\0';
    }
    PyErr_Clear();
    return address;
}

static PyObject *pool_address(PyObject *pool, PyObject *url)
{
    PyObject *scheme = attribute(pool, name_scheme), *host = attribute(pool, name_host),
             *port = attribute(pool, name_port);
    PyObject *address = is_ascii_text(scheme) && strlen((const char *)PyUnicode_1BYTE_DATA(scheme)) < 16
                            ? plain_address((const char *)PyUnicode_1BYTE_DATA(scheme), host, port, url)
                            : NULL;
    Py_XDECREF(scheme);
    Py_XDECREF(host);
    Py_XDECREF(port);
    return address;
}

/* The URL of a request on an open connection without a tunnel. */
static PyObject *connection_address(PyObject *connection, PyObject *path)
{
    enum { HTTP_PORT = 80, HTTPS_PORT = 443 };
    PyObject *number = attribute(connection, name_default_port), *address = NULL;
    long standard = number && PyLong_CheckExact(number) ? PyLong_AsLong(number) : -1;
    Py_XDECREF(number);
    if ((standard == HTTP_PORT || standard == HTTPS_PORT) && attribute_is(connection, name_sock, is_something, NULL) &&
        attribute_is(connection, name__tunnel_host, is_empty, NULL)) {
        PyObject *host = attribute(connection, name_host), *port = attribute(connection, name_port);
        address = plain_address(standard == HTTPS_PORT ? "https" : "http", host, port, path);
        Py_XDECREF(host);
        Py_XDECREF(port);
    }
    PyErr_Clear();
    return address;
}

/* HTTPConnection.putrequest(self, method, url, ...) on a connection that is kept: it needs no ticket to be opened. */
static PyObject *fast_putrequest(const FastPath *path, PyObject *const *args, size_t nargs, PyObject *names)
{
    if (PyVectorcall_NARGS(nargs) < 3 || !is_ascii_text(args[1]) || !PyUnicode_CheckExact(args[2]) ||
        PyUnicode_CompareWithASCIIString(args[1], "CONNECT") == 0) {
        return NULL;
    }
    PyObject *address = connection_address(args[0], args[2]);
    if (address == NULL) {
        return NULL;
    }
    PyObject *asked[2] = {args[1], address}, *ticket = core_request(NULL, asked, 2);
    Py_DECREF(address);
    Py_XDECREF(ticket);
    return ticket ? PyObject_Vectorcall(path->original, args, nargs, names) : NULL;
}

/* HTTPConnectionPool.urlopen(self, method, url, ...) */
static PyObject *fast_urlopen(const FastPath *path, PyObject *const *args, size_t nargs, PyObject *names)
{
    Call call = {.args = args, .nargs = PyVectorcall_NARGS(nargs), .kwnames = names};
    Py_ssize_t method = call_find(&call, 1, "method"), url = call_find(&call, 2, "url");
    if (call.nargs < 1 || method < 0 || url < 0 || !PyUnicode_CheckExact(args[method]) ||
        !PyUnicode_CheckExact(args[url])) {
        return NULL;
    }
    PyObject *address = pool_address(args[0], args[url]);
    return address ? call_permitted(path, Py_NewRef(args[method]), address, args, nargs, names) : NULL;
}

/* HTTPConnectionPool._get_conn(self, timeout) */
static PyObject *fast_get_conn(const FastPath *path, PyObject *const *args, size_t nargs, PyObject *names)
{
    if (PyVectorcall_NARGS(nargs) < 1 || !has_few_arguments(nargs, names) ||
        !attribute_is(args[0], name_pool, is_something, NULL)) {
        return NULL;
    }
    PyObject *key = core_subject_key(NULL, NULL), *share = key ? pool_beside(args[0], key, true) : NULL;
    PyObject *connection = share ? call_on(path, share, args, nargs, names) : NULL;
    if (connection != NULL && PyObject_SetAttr(connection, name__democrai_sandbox_subject, key) < 0) {
        Py_CLEAR(connection);
    }
    Py_XDECREF(share);
    Py_XDECREF(key);
    return connection;
}

/* HTTPConnectionPool._put_conn(self, conn), for unguarded callers too: a connection belongs to the chain that opened
 * it. */
static PyObject *fast_put_conn(const FastPath *path, PyObject *const *args, size_t nargs, PyObject *names)
{
    if (PyVectorcall_NARGS(nargs) != 2 || names != NULL || args[1] == Py_None ||
        Py_TYPE(args[1])->tp_getattro != PyObject_GenericGetAttr) {
        return NULL;
    }
    PyObject *key = own_attribute(args[1], name__democrai_sandbox_subject), *result = NULL;
    if (key == NULL) {
        return PyObject_Vectorcall(path->original, args, nargs, names);
    }
    if (PyLong_CheckExact(key) && PyObject_IsTrue(key) == 1 && attribute_is(args[0], name_pool, is_something, NULL)) {
        PyObject *share = pool_beside(args[0], key, false);
        result = share ? call_on(path, share, args, nargs, names) : NULL;
        Py_XDECREF(share);
    }
    Py_DECREF(key);
    return result;
}

/* ---- requests ------------------------------------------------------------------------------------------------ */

/* Whether the URL has neither a user nor a fragment, which urllib3 does not get. */
static bool is_plain_url(PyObject *url, PyObject *unused)
{
    if (!PyUnicode_CheckExact(url) || !PyUnicode_IS_ASCII(url)) {
        return false;
    }
    const char *text = (const char *)PyUnicode_1BYTE_DATA(url);
    size_t length = (size_t)PyUnicode_GET_LENGTH(url);
    bool web = strncmp(text, "http://", 7) == 0 || strncmp(text, "https://", 8) == 0;
    return web && memchr(text, '@', length) == NULL && memchr(text, '#', length) == NULL;
}

/* Session.send(self, request, **kwargs) */
static PyObject *fast_send(const FastPath *path, PyObject *const *args, size_t nargs, PyObject *names)
{
    if (PyVectorcall_NARGS(nargs) != 2 || !attribute_is(args[1], name_url, is_plain_url, NULL) ||
        !attribute_is(args[0], name_adapters, holds_only, path->objects[1])) {
        return NULL;
    }
    PyObject *result = PyObject_Vectorcall(path->original, args, nargs, names);
    if (result == NULL && PyErr_ExceptionMatches(PyExc_OSError)) {
        let_denial_out(path->objects[0]);
    }
    return result;
}

/* ---- httpx, httpcore ------------------------------------------------------------------------------------------ */

static bool has_plain_parts(PyObject *url, PyObject *unused)
{
    PyObject *parts = attribute(url, name__uri_reference);
    bool plain = parts && attribute_is(parts, name_userinfo, is_empty, NULL) &&
                 attribute_is(parts, name_fragment, is_empty, NULL);
    Py_XDECREF(parts);
    return plain;
}

/* Client._send_single_request(self, request), if the request continues in httpcore, where it is checked. */
static PyObject *fast_send_single(const FastPath *path, PyObject *const *args, size_t nargs, PyObject *names)
{
    if (PyVectorcall_NARGS(nargs) != 2 || names != NULL || !attribute_is(args[1], name_url, has_plain_parts, NULL) ||
        !attribute_is(args[0], name__transport, is_of_type, path->objects[1]) ||
        !attribute_is(args[0], name__mounts, mounts_only, path->objects[1])) {
        return NULL;
    }
    return PyObject_Vectorcall(path->original, args, nargs, names);
}

/* Whether the request opens no websocket, which is another operation. */
static bool has_no_upgrade(PyObject *headers, PyObject *unused)
{
    if (!PyList_CheckExact(headers)) {
        return false;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(headers); i++) {
        PyObject *item = PyList_GET_ITEM(headers, i);
        if (!PyTuple_CheckExact(item) || PyTuple_GET_SIZE(item) != 2 ||
            !PyBytes_CheckExact(PyTuple_GET_ITEM(item, 0)) ||
            strcasecmp(PyBytes_AS_STRING(PyTuple_GET_ITEM(item, 0)), "upgrade") == 0) {
            return false;
        }
    }
    return true;
}

static bool is_ascii_bytes(PyObject *value)
{
    if (value == NULL || !PyBytes_CheckExact(value)) {
        return false;
    }
    const char *text = PyBytes_AS_STRING(value);
    for (Py_ssize_t i = 0; i < PyBytes_GET_SIZE(value); i++) {
        if (text[i] == '\0' || (unsigned char)text[i] > 127) {
            return false;
        }
    }
    return true;
}

static PyObject *joined_address(PyObject *scheme, PyObject *host, long port, PyObject *target)
{
    bool secure = strcmp(PyBytes_AS_STRING(scheme), "https") == 0;
    bool web = secure || strcmp(PyBytes_AS_STRING(scheme), "http") == 0;
    if (!web || strchr(PyBytes_AS_STRING(host), ':') != NULL || PyBytes_AS_STRING(target)[0] != '/') {
        return NULL;
    }
    return PyUnicode_FromFormat("%s://%s:%ld%s", PyBytes_AS_STRING(scheme), PyBytes_AS_STRING(host),
                                port >= 0 ? port
                                : secure  ? 443L
                                          : 80L,
                                PyBytes_AS_STRING(target));
}

static PyObject *url_address(PyObject *url)
{
    PyObject *scheme = attribute(url, name_scheme), *host = attribute(url, name_host), *address = NULL;
    PyObject *port = attribute(url, name_port), *target = attribute(url, name_target);
    long number = port && PyLong_CheckExact(port) ? PyLong_AsLong(port) : -1;
    bool numbered = port == Py_None || (number >= 0 && number <= MAX_PORT);
    if (numbered && is_ascii_bytes(scheme) && is_ascii_bytes(host) && is_ascii_bytes(target)) {
        address = joined_address(scheme, host, number, target);
    }
    Py_XDECREF(scheme);
    Py_XDECREF(host);
    Py_XDECREF(port);
    Py_XDECREF(target);
    PyErr_Clear();
    return address;
}

static PyObject *request_address(PyObject *request)
{
    PyObject *url = attribute_is(request, name_headers, has_no_upgrade, NULL) ? attribute(request, name_url) : NULL;
    PyObject *address = url ? url_address(url) : NULL;
    Py_XDECREF(url);
    return address;
}

static PyObject *request_method(PyObject *request)
{
    PyObject *method = attribute(request, name_method);
    PyObject *text = is_ascii_bytes(method) ? PyUnicode_FromString(PyBytes_AS_STRING(method)) : NULL;
    Py_XDECREF(method);
    PyErr_Clear();
    return text;
}

/* ConnectionPool.handle_request(self, request) */
static PyObject *fast_handle(const FastPath *path, PyObject *const *args, size_t nargs, PyObject *names)
{
    if (PyVectorcall_NARGS(nargs) != 2 || names != NULL) {
        return NULL;
    }
    PyObject *key = core_subject_key(NULL, NULL), *pool = key ? pool_beside(args[0], key, true) : NULL;
    PyObject *address = pool ? request_address(args[1]) : NULL, *method = address ? request_method(args[1]) : NULL;
    PyObject *result = NULL;
    if (method != NULL) {
        PyObject *changed[2] = {pool, args[1]};
        result = call_permitted(path, method, address, changed, 2, NULL);
    }
    else {
        Py_XDECREF(address);
    }
    Py_XDECREF(pool);
    Py_XDECREF(key);
    return result;
}

/* ---- aiohttp --------------------------------------------------------------------------------------------------- */

static bool holds_no_upgrade(PyObject *headers, PyObject *unused)
{
    int found = PySequence_Contains(headers, name_upgrade); /* in upper or lower case */
    PyErr_Clear();
    return found == 0;
}

/* Whether str() shows this part of a URL as it is: it leaves out the ports that are a scheme's own. */
static bool is_shown_whole(PyObject *netloc)
{
    Py_ssize_t size;
    const char *text = PyUnicode_AsUTF8AndSize(netloc, &size);
    const char *port = text ? memrchr(text, ':', (size_t)size) : NULL;
    PyErr_Clear();
    return text != NULL && size > 0 && (port == NULL || (strcmp(port, ":80") != 0 && strcmp(port, ":443") != 0));
}

/* str() of a yarl.URL, without what that does for relative ones and for default ports; others by str(). */
static PyObject *text_of_url(PyObject *url, PyObject *type)
{
    PyObject *const names[] = {name__scheme, name__netloc, name__path, name__query, name__fragment};
    PyObject *parts[5] = {NULL}, *text = NULL;
    bool plain = (PyObject *)Py_TYPE(url) == type;
    for (int i = 0; i < 5 && plain; i++) {
        parts[i] = attribute(url, names[i]);
        plain = parts[i] != NULL && PyUnicode_CheckExact(parts[i]);
    }
    if (plain && is_empty(parts[4], NULL) && !is_empty(parts[0], NULL) && is_shown_whole(parts[1]) &&
        !is_empty(parts[2], NULL) && PyUnicode_READ_CHAR(parts[2], 0) == '/') {
        text = PyUnicode_FromFormat(is_empty(parts[3], NULL) ? "%U://%U%U" : "%U://%U%U?%U", parts[0], parts[1],
                                    parts[2], parts[3]);
    }
    else {
        text = PyObject_Str(url);
    }
    for (int i = 0; i < 5; i++) {
        Py_XDECREF(parts[i]);
    }
    return text;
}

/* BaseConnector.connect(self, req, ...) of the standard connector, which asks for a ticket where it opens a connection.
 */
static PyObject *fast_connect(const FastPath *path, PyObject *const *args, size_t nargs, PyObject *names)
{
    if (PyVectorcall_NARGS(nargs) < 2 || (PyObject *)Py_TYPE(args[0]) != path->objects[0] ||
        !attribute_is(args[1], name_headers, holds_no_upgrade, NULL)) {
        return NULL;
    }
    PyObject *url = attribute(args[1], name_url), *ticket = NULL;
    PyObject *address = url ? text_of_url(url, path->objects[1]) : NULL;
    PyObject *method = address ? attribute(args[1], name_method) : NULL;
    PyErr_Clear();
    bool plain = method && PyUnicode_CheckExact(method) && is_plain_url(address, NULL);
    if (plain) {
        PyObject *asked[2] = {method, address};
        ticket = core_request(NULL, asked, 2);
    }
    Py_XDECREF(url);
    Py_XDECREF(address);
    Py_XDECREF(method);
    Py_XDECREF(ticket);
    return ticket ? PyObject_Vectorcall(path->original, args, nargs, names) : NULL;
}

/* ClientSession._request: a coroutine. */
static PyObject *fast_session_request(const FastPath *path, PyObject *const *args, size_t nargs, PyObject *names)
{
    return outlet_new(PyObject_Vectorcall(path->original, args, nargs, names), path->objects[0]);
}

/* ClientRequest.connection_key: a tuple, in which the subject becomes a part of one item. */
static PyObject *fast_connection_key(const FastPath *path, PyObject *const *args, size_t nargs, PyObject *names)
{
    PyObject *key = PyObject_Vectorcall(path->original, args, nargs, names);
    Py_ssize_t size = key && PyTuple_Check(key) ? PyTuple_GET_SIZE(key) : 0;
    Py_ssize_t place = PyLong_AsSsize_t(path->objects[0]);
    if (key == NULL || place < 0 || place >= size) {
        Py_XDECREF(key);
        return NULL;
    }
    PyObject *subject = core_subject_key(NULL, NULL);
    PyObject *item = subject ? PyTuple_Pack(2, subject, PyTuple_GET_ITEM(key, place)) : NULL;
    PyObject *apart = item ? Py_TYPE(key)->tp_alloc(Py_TYPE(key), size) : NULL;
    for (Py_ssize_t i = 0; apart != NULL && i < size; i++) {
        PyTuple_SET_ITEM(apart, i, Py_NewRef(i == place ? item : PyTuple_GET_ITEM(key, i)));
    }
    Py_XDECREF(subject);
    Py_XDECREF(item);
    Py_DECREF(key);
    return apart;
}

/* ---- the ways ------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    FastPathCall way;
    int objects;
    bool everyone;
} ways[] = {
    {"urllib3.urlopen", fast_urlopen, 1, false},
    {"urllib3.get_conn", fast_get_conn, 0, false},
    {"urllib3.put_conn", fast_put_conn, 0, true},
    {"requests.send", fast_send, 2, false},
    {"httpx.send_single", fast_send_single, 2, false},
    {"httpcore.handle", fast_handle, 1, false},
    {"http_client.putrequest", fast_putrequest, 0, false},
    {"aiohttp.connect", fast_connect, 2, false},
    {"aiohttp.connection_key", fast_connection_key, 1, false},
    {"aiohttp.request", fast_session_request, 1, false},
};

/* Reads None, or a tuple of the name of a shortcut and the objects it needs, borrowed from the tuple. */
int fast_path_read(PyObject *given, PyObject *original, FastPath *out)
{
    memset(out, 0, sizeof *out);
    if (given == Py_None) {
        return 0;
    }
    Py_ssize_t size = PyTuple_CheckExact(given) ? PyTuple_GET_SIZE(given) : 0;
    for (size_t i = 0; size > 0 && i < sizeof ways / sizeof *ways; i++) {
        PyObject *name = PyTuple_GET_ITEM(given, 0);
        if (!PyUnicode_Check(name) || PyUnicode_CompareWithASCIIString(name, ways[i].name) != 0 ||
            size - 1 != ways[i].objects) {
            continue;
        }
        for (int k = 0; k < ways[i].objects; k++) {
            out->objects[k] = PyTuple_GET_ITEM(given, k + 1);
        }
        out->way = ways[i].way;
        out->everyone = ways[i].everyone;
        out->original = original;
        return texts_ready();
    }
    PyErr_SetString(PyExc_ValueError, "unknown fast path of an adapter");
    return -1;
}
