/* One HTTP/1.x request on the wire: parses it strictly, and checks its target. */
#include "network/network.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

typedef struct {
    const char *text;
    size_t length;
} Span;

typedef struct {
    Span method, target, host;
    bool versioned; /* HTTP/1.1: a Host header is required */
    int hosts, lengths, encodings;
    bool upgrades, websocket;
} Head;

static int odd(const char *why)
{
    char text[160];
    snprintf(text, sizeof text, "not a plain HTTP request: %s", why);
    return refuse_target(text);
}

static bool is_token(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (!isalnum((unsigned char)text[i]) && text[i] != '-' &&
            (text[i] == '\0' || !strchr("!#$%&'*+.^_`|~", text[i]))) {
            return false;
        }
    }
    return length > 0;
}

static inline bool equals(Span span, const char *word)
{
    return span.length == strlen(word) && strncasecmp(span.text, word, span.length) == 0;
}

static Span trimmed(const char *start, const char *end)
{
    while (start < end && (*start == ' ' || *start == '\t')) {
        start++;
    }
    while (end > start && (end[-1] == ' ' || end[-1] == '\t')) {
        end--;
    }
    return (Span){start, (size_t)(end - start)};
}

/* ---- reading ------------------------------------------------------------------------------------------ */

static int read_request_line(const char *line, const char *end, Head *head)
{
    const char *first = memchr(line, ' ', (size_t)(end - line));
    const char *last = first ? memrchr(line, ' ', (size_t)(end - line)) : NULL;
    if (first == NULL || last == first || memchr(first + 1, ' ', (size_t)(last - first - 1)) != NULL) {
        return odd("the request line does not have three parts");
    }
    Span version = {last + 1, (size_t)(end - last - 1)};
    head->method = (Span){line, (size_t)(first - line)};
    head->target = (Span){first + 1, (size_t)(last - first - 1)};
    head->versioned = version.length == 8 && memcmp(version.text, "HTTP/1.1", 8) == 0;
    if (!head->versioned && !(version.length == 8 && memcmp(version.text, "HTTP/1.0", 8) == 0)) {
        return odd("its version is neither HTTP/1.0 nor HTTP/1.1");
    }
    if (memchr(head->target.text, '#', head->target.length) != NULL) {
        return odd("a request may not contain a fragment"); /* some servers take it for part of the path */
    }
    return is_token(head->method.text, head->method.length) ? 0 : odd("its method is not a token");
}

static int read_length(Span value, WireRequest *request)
{
    if (value.length == 0 || value.length > 18) {
        return odd("its Content-Length is not a number");
    }
    request->body = 0;
    for (size_t i = 0; i < value.length; i++) {
        if (value.text[i] < '0' || value.text[i] > '9') {
            return odd("its Content-Length is not a number");
        }
        request->body = request->body * 10 + (uint64_t)(value.text[i] - '0');
    }
    return 0;
}

/* Headers that Connection names are for the next hop only: a proxy drops them. */
static bool hides_framing(Span value)
{
    static const char *const names[] = {"content-length", "transfer-encoding", "host"};
    const char *end = value.text + value.length;
    for (const char *p = value.text; p < end;) {
        const char *comma = memchr(p, ',', (size_t)(end - p)), *stop = comma ? comma : end;
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            if (equals(trimmed(p, stop), names[i])) {
                return true;
            }
        }
        p = stop + 1;
    }
    return false;
}

static int read_header(Span name, Span value, Head *head, WireRequest *request)
{
    if (equals(name, "host")) {
        head->hosts++;
        head->host = value;
    }
    else if (equals(name, "content-length")) {
        head->lengths++;
        return read_length(value, request);
    }
    else if (equals(name, "transfer-encoding")) {
        head->encodings++;
        request->chunked = true;
        return equals(value, "chunked") ? 0 : odd("its Transfer-Encoding is not 'chunked'");
    }
    else if (equals(name, "connection")) {
        return hides_framing(value) ? odd("its Connection header takes away headers that frame it") : 0;
    }
    else if (equals(name, "expect")) {
        return odd("with an Expect header the server decides whether a body follows"); /* or another request */
    }
    else if (equals(name, "upgrade")) {
        head->upgrades = true;
        head->websocket = equals(value, "websocket");
    }
    return 0;
}

/* The next CR LF; every CR of a head has an LF behind it. */
static const char *line_end(const char *text, const char *end)
{
    const char *found = memchr(text, '\r', (size_t)(end - text));
    while (found != NULL && (found + 1 >= end || found[1] != '\n')) {
        found = memchr(found + 1, '\r', (size_t)(end - found - 1));
    }
    return found;
}

static int read_headers(const char *line, const char *end, Head *head, WireRequest *request)
{
    while (line < end) {
        const char *stop = line_end(line, end);
        const char *colon = memchr(line, ':', (size_t)(stop - line));
        if (stop == line) {
            return 0;
        }
        if (colon == NULL || !is_token(line, (size_t)(colon - line))) {
            return odd("a header line is folded or has no name");
        }
        if (memchr(line, '\0', (size_t)(stop - line)) != NULL) {
            return odd("a header holds a NUL");
        }
        if (read_header((Span){line, (size_t)(colon - line)}, trimmed(colon + 1, stop), head, request) < 0) {
            return -1;
        }
        line = stop + 2;
    }
    return 0;
}

static int read_all(WireRequest *request, Head *head)
{
    const char *end = request->text + request->length;
    const char *line = line_end(request->text, end);
    memset(head, 0, sizeof *head);
    if (read_request_line(request->text, line, head) < 0 || read_headers(line + 2, end, head, request) < 0) {
        return -1;
    }
    if (head->hosts > 1 || (head->hosts == 0 && head->versioned)) {
        return odd("it needs one Host header");
    }
    if (head->encodings > 0 && !head->versioned) {
        return odd("HTTP/1.0 knows no Transfer-Encoding");
    }
    if (head->lengths + head->encodings > 1) {
        return odd("it tells the length of its body more than once");
    }
    if (head->upgrades && !head->websocket) {
        return odd("it asks for an upgrade to something else than a websocket");
    }
    request->websocket = head->websocket;
    request->connects = head->method.length == 7 && memcmp(head->method.text, "CONNECT", 7) == 0;
    return 0;
}

/* ---- checking ----------------------------------------------------------------------------------------- */

static unsigned operation_of(const Head *head)
{
    bool receives = equals(head->method, "GET") || equals(head->method, "HEAD") || equals(head->method, "OPTIONS");
    return head->websocket ? NET_CONNECT : receives ? NET_RECEIVE : NET_SEND;
}

/* A body sends data, with any method. */
static unsigned operations_of(const Head *head, const WireRequest *request)
{
    return operation_of(head) | (request->body || request->chunked ? NET_SEND : 0);
}

/* The URL of this request, on a given authority. */
static int compose(const char *scheme, Span authority, Span target, Url *url)
{
    bool star = target.length == 1 && target.text[0] == '*';
    size_t first = strlen(scheme), path = star ? 0 : target.length, length = first + 3 + authority.length + path;
    char *text = PyMem_Malloc(length + 1);
    if (text == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(text, scheme, first);
    memcpy(text + first, "://", 3);
    memcpy(text + first + 3, authority.text, authority.length);
    memcpy(text + first + 3 + authority.length, target.text, path);
    int result = url_read(text, length, url);
    PyMem_Free(text);
    return result;
}

static int require_url(State *state, unsigned operations, Url *url, WireRequest *request)
{
    bool secure = is_secure(url->scheme), websocket = request->websocket;
    const char *scheme = websocket ? (secure ? "wss" : "ws") : (secure ? "https" : "http");
    if (url_with_scheme(url, scheme) < 0) {
        return -1;
    }
    if (UNLIKELY(candidates_held) && state != NULL) {
        shadow_url(state, operations, match_url, url, WHEN_DONE);
    }
    unsigned granted = state && !websocket ? state_net(state, match_url, url) : 0;
    if (!websocket && (state == NULL || (granted & operations) == operations)) {
        return 0; /* the usual case needs no text */
    }
    request->asked = true;
    PyObject *text = url_text(url);
    int result = text ? 0 : -1;
    for (unsigned bit = NET_CONNECT; bit <= NET_SEND; bit <<= 1) {
        if (result == 0 && state != NULL && (operations & bit)) {
            result = net_require(state, bit, match_url, url, text);
        }
    }
    if (result == 0 && websocket) {
        Py_XSETREF(request->socket_url, Py_NewRef(text));
    }
    Py_XDECREF(text);
    return result;
}

/* CONNECT host:port through a proxy: some request must be permitted there. */
static int check_tunnel(State *state, const Head *head, WireRequest *request)
{
    Url url;
    Span nothing = {"", 0};
    if (compose("https", head->target, nothing, &url) < 0) {
        return -1;
    }
    request->tunnel = url.host;
    request->tunnel_port = url.port;
    int result = 0;
    if (state != NULL && state_net(state, match_origin, &url) == 0 && !name_noted(state, &url.host)) {
        SocketTarget what = {&url.host, url.port};
        PyObject *target = host_target(url.host.text, url.port);
        result = target ? net_require(state, NET_CONNECT, match_socket, &what, target) : -1;
        Py_XDECREF(target);
    }
    url_clear(&url);
    return result;
}

static int compose_dialled(const WireOrigin *origin, Span target, Url *url)
{
    char authority[MAX_HOST + 16], *out = authority;
    bool six = strchr(origin->host.text, ':') != NULL;
    out = put_text(put_text(out, six ? "[" : ""), origin->host.text);
    out = put_number(put_text(out, six ? "]:" : ":"), (unsigned)origin->port);
    return compose(origin->scheme, (Span){authority, (size_t)(out - authority)}, target, url);
}

static bool same_origin(const Url *one, const Url *other)
{
    return strcmp(one->host.key, other->host.key) == 0 && one->port == other->port;
}

/* Whether the Host header equals the host of the URL, as in most requests. */
static bool names_same(Span host, const Url *url)
{
    size_t bare = strlen(url->host.text);
    if (host.length < bare || memcmp(host.text, url->host.text, bare) != 0) {
        return false;
    }
    if (host.length == bare) {
        return url->port == default_port(url->scheme);
    }
    char port[16];
    size_t length = (size_t)(put_number(put_text(port, ":"), (unsigned)url->port) - port);
    return host.length - bare == length && memcmp(host.text + bare, port, length) == 0;
}

/* If the Host header names another host than `url`, both must be permitted: a server or proxy may use either. */
static int require_both(State *state, Url *url, const Head *head, unsigned operations, WireRequest *request)
{
    Url named;
    int result = require_url(state, operations, url, request);
    if (result < 0 || head->hosts == 0 || names_same(head->host, url)) {
        return result;
    }
    Span path = {url_path(url), strlen(url_path(url))};
    result = compose(url->scheme, head->host, path, &named);
    if (result == 0) {
        result = same_origin(url, &named) ? 0 : require_url(state, operations, &named, request);
        url_clear(&named);
    }
    return result;
}

/* "GET http://host/path" for a proxy. Only a connection that was permitted as a proxy takes requests for other hosts.
 */
static int check_absolute_form(State *state, const WireOrigin *origin, const Head *head, unsigned operations,
                               WireRequest *request)
{
    Url url, dialled;
    int result = url_read(head->target.text, head->target.length, &url);
    if (result < 0) {
        return -1;
    }
    result = compose_dialled(origin, (Span){"", 0}, &dialled);
    if (result == 0) {
        bool relay =
            state == NULL || same_origin(&url, &dialled) || state_net(state, match_origin, &dialled) & NET_CONNECT;
        PyObject *target = relay ? NULL : url_text(&dialled);
        result = relay ? 0 : target ? net_deny(state, NET_CONNECT, target) : -1;
        Py_XDECREF(target);
        url_clear(&dialled);
    }
    result = result < 0 ? -1 : require_both(state, &url, head, operations, request);
    url_clear(&url);
    return result;
}

static int check_origin_form(State *state, const WireOrigin *origin, const Head *head, unsigned operations,
                             WireRequest *request)
{
    Url url;
    if (compose_dialled(origin, head->target, &url) < 0) {
        return -1;
    }
    int result = require_both(state, &url, head, operations, request);
    const Host *shown = &origin->shown; /* in the handshake: a server with many names goes by it */
    if (result == 0 && shown->key[0] != '\0' && strcmp(shown->key, url.host.key) != 0) {
        WireOrigin other = *origin;
        Url named;
        other.host = *shown;
        result = compose_dialled(&other, head->target, &named);
        if (result == 0) {
            result = require_url(state, operations, &named, request);
            url_clear(&named);
        }
    }
    url_clear(&url);
    return result;
}

/* A request of HTTP/2. */
int stream_check(State *state, const WireOrigin *origin, const char *method, const char *path, const char *host,
                 bool body)
{
    Head head = {.method = {method, strlen(method)}, .target = {path, strlen(path)}, .host = {host, strlen(host)}};
    WireRequest request = {.chunked = body};
    head.hosts = 1;
    if ((path[0] != '/' && strcmp(path, "*") != 0) || strchr(path, '#') != NULL) {
        return odd("its path does not begin with '/', or holds a fragment");
    }
    return check_origin_form(state, origin, &head, operations_of(&head, &request), &request);
}

static int check_line(State *state, const WireOrigin *origin, const Head *head)
{
    WireRequest request;
    Url url;
    memset(&request, 0, offsetof(WireRequest, tunnel));
    if (compose_dialled(origin, head->target, &url) < 0) {
        return -1;
    }
    int result = require_url(state, operation_of(head), &url, &request);
    url_clear(&url);
    return result;
}

/* Checks the method and path of a request that will be written. */
int target_check(State *state, const WireOrigin *origin, const char *method, const char *target)
{
    Head head = {.method = {method, strlen(method)}, .target = {target, strlen(target)}};
    return check_line(state, origin, &head);
}

/* Checks a request line that is sent before the rest of its head. */
int line_check(State *state, const WireOrigin *origin, const char *text, size_t length)
{
    Head head;
    const char *end = memchr(text, '\r', length);
    memset(&head, 0, sizeof head);
    if (end == NULL || read_request_line(text, end, &head) < 0) {
        return end ? -1 : 0;
    }
    return head.target.text[0] == '/' ? check_line(state, origin, &head) : odd("its head is sent in parts");
}

/* 0 when the request may be sent; sets the framing of its body. `state` NULL: sets the framing only. */
int request_check(State *state, const WireOrigin *origin, WireRequest *request)
{
    Head head;
    if (read_all(request, &head) < 0) {
        return -1;
    }
    if (request->connects) {
        return check_tunnel(state, &head, request);
    }
    bool star = head.target.length == 1 && head.target.text[0] == '*', plain = head.target.text[0] == '/' || star;
    return (plain ? check_origin_form : check_absolute_form)(state, origin, &head, operations_of(&head, request), request);
}
