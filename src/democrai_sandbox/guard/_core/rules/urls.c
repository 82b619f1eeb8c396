/* URLs of requests: reads them strictly, like democrai_sandbox.policy.targets, with one spelling for each path. */
#include "rules/rules.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

PyObject *parse_url = NULL;      /* for a text that is not ASCII: its canonical ASCII form */
PyObject *normalise_host = NULL; /* likewise for a host */

static struct {
    char scheme[16];
    int port;
} default_ports[64];

static void forget_latest(void);

/* From democrai_sandbox.policy.DEFAULT_PORTS, the only table. */
int default_ports_set(PyObject *ports)
{
    PyObject *scheme, *port;
    int count = 0;
    forget_latest();
    for (Py_ssize_t at = 0; PyDict_Next(ports, &at, &scheme, &port); count++) {
        const char *text = PyUnicode_Check(scheme) ? PyUnicode_AsUTF8(scheme) : NULL;
        if (text == NULL || strlen(text) >= sizeof default_ports->scheme || !PyLong_Check(port) ||
            count >= (int)(sizeof default_ports / sizeof *default_ports)) {
            PyErr_SetString(PyExc_ValueError, "more or longer schemes than expected");
            return -1;
        }
        strcpy(default_ports[count].scheme, text);
        default_ports[count].port = (int)PyLong_AsLong(port);
    }
    return 0;
}

int default_port(const char *scheme)
{
    int i = 0;
    while (default_ports[i].port != 0 && strcmp(default_ports[i].scheme, scheme) != 0) {
        i++;
    }
    return default_ports[i].port;
}

bool is_secure(const char *scheme)
{
    return strcmp(scheme, "https") == 0 || strcmp(scheme, "wss") == 0;
}

/* A port from an argument: read once, by its number. -1 with an exception. */
int port_of_object(PyObject *object, bool zero)
{
    PyObject *number = PyNumber_Index(object);
    if (number == NULL) {
        return -1;
    }
    int overflow;
    long port = PyLong_AsLongAndOverflow(number, &overflow);
    Py_DECREF(number);
    if (overflow || port < (zero ? 0 : 1) || port > MAX_PORT) {
        return refuse_target("the port must be a number from 1 to 65535");
    }
    return (int)port;
}

/* ---- paths --------------------------------------------------------------------------------------- */

/* Whether this is an encoded dot, slash or backslash (at any depth of encoding), a control character, or a malformed
 * escape. */
static bool escape_is_ambiguous(const char *p, const char *end)
{
    if (end - p < 3 || hex_digit(p[1]) < 0 || hex_digit(p[2]) < 0) {
        return true;
    }
    int first = hex_digit(p[1]) * 16 + hex_digit(p[2]);
    if (first < 0x20 || first == 0x7f) {
        return true;
    }
    const char *q = p + 1;
    while (end - q >= 4 && q[0] == '2' && q[1] == '5') {
        q += 2;
    }
    int last =
        end - q >= 2 && hex_digit(q[0]) >= 0 && hex_digit(q[1]) >= 0 ? hex_digit(q[0]) * 16 + hex_digit(q[1]) : 0;
    return last == '.' || last == '/' || last == '\\';
}

/* Whether this is ";" or its escape, at any depth of encoding. */
static bool is_semicolon(const char *p, const char *end)
{
    if (p < end && *p == '%') {
        for (p++; end - p >= 4 && p[0] == '2' && p[1] == '5'; p += 2) {
        }
        return end - p >= 2 && p[0] == '3' && (p[1] == 'b' || p[1] == 'B');
    }
    return p < end && *p == ';';
}

/* Servers that know path parameters drop ";..." before they look for dots. */
static bool is_dot_segment(const char *p, const char *end)
{
    size_t dots = 0;
    while (p + dots < end && dots < 3 && p[dots] == '.') {
        dots++;
    }
    return (dots == 1 || dots == 2) && (p + dots == end || p[dots] == '/' || is_semicolon(p + dots, end));
}

static bool has_dot_segment(const char *path, const char *end)
{
    for (const char *p = path; p < end; p++) {
        if (*p == '/' && is_dot_segment(p + 1, end)) {
            return true;
        }
    }
    return false;
}

/* Decodes the escapes of a text in place. Returns their number, or -1 for an encoded dot, slash or backslash. */
static int decode_once(char *text, size_t *length)
{
    int number = 0;
    char *out = text;
    for (const char *p = text, *end = text + *length; p < end; p++) {
        bool escape = *p == '%' && end - p >= 3 && hex_digit(p[1]) >= 0 && hex_digit(p[2]) >= 0;
        int byte = escape ? hex_digit(p[1]) * 16 + hex_digit(p[2]) : (unsigned char)*p;
        if (escape && (byte == '.' || byte == '/' || byte == '\\')) {
            return -1;
        }
        number += escape;
        p += escape ? 2 : 0;
        *out++ = (char)byte;
    }
    *length = (size_t)(out - text);
    return number;
}

/* Each sign of an escape may be encoded itself: "%25%32%65" is "%2e" after one decoding. */
static bool hides_syntax(const char *path, const char *end)
{
    enum { MOST_DECODINGS = 8 };
    size_t length = (size_t)(end - path);
    if (memmem(path, length, "%25", 3) == NULL) {
        return false;
    }
    char *text = PyMem_Malloc(length);
    if (text == NULL) {
        return true;
    }
    memcpy(text, path, length);
    int number = 1;
    for (int i = 0; i < MOST_DECODINGS && number > 0; i++) {
        number = has_dot_segment(text, text + length) ? -1 : decode_once(text, &length);
    }
    PyMem_Free(text);
    return number != 0;
}

static bool path_is_ambiguous(const char *path, const char *end)
{
    const char *name = path;
    while (name < end && *name == '/') {
        name++;
    }
    if (name - path > 1 && name < end) {
        return true; /* some clients take "//v1" for "/v1" */
    }
    for (const char *p = path; p < end; p++) {
        if ((*p == '/' && is_dot_segment(p + 1, end)) || (*p == '%' && escape_is_ambiguous(p, end))) {
            return true;
        }
    }
    return hides_syntax(path, end);
}

static bool stays(char c)
{
    return isalnum((unsigned char)c) || (c != '\0' && strchr("_.-~/!$&'()*+,;=:@%", c) != NULL);
}

static char *put_escape(char *out, int byte)
{
    return out + sprintf(out, "%%%02X", (unsigned)byte);
}

/* Writes the canonical path: escapes of letters, digits and harmless signs are decoded, others are in upper case, and
 * reserved characters are escaped. An ambiguous path keeps its escapes. Slashes at the end are removed. Returns the
 * end. */
static char *put_path(char *out, const char *path, const char *end, bool ambiguous)
{
    char *start = out;
    for (const char *p = path; p < end; p++) {
        if (*p == '%' && !ambiguous) {
            int byte = hex_digit(p[1]) * 16 + hex_digit(p[2]);
            bool plain = byte < 128 && (isalnum(byte) || (byte != '\0' && strchr("-_~!$&'()*,:;=@", byte)));
            if (plain) {
                *out++ = (char)byte;
            }
            else {
                out = put_escape(out, byte);
            }
            p += 2;
        }
        else if (stays(*p)) {
            *out++ = *p;
        }
        else {
            out = put_escape(out, (unsigned char)*p);
        }
    }
    while (out > start && out[-1] == '/') {
        out--;
    }
    *out = '\0';
    return out;
}

/* ---- the whole ------------------------------------------------------------------------------------ */

void url_clear(Url *url)
{
    PyMem_Free(url->key);
    PyMem_Free(url->memory);
    url->key = url->memory = NULL;
}

const char *url_path(const Url *url)
{
    return url->key + url->base;
}

static int read_port(const char *digits, size_t length)
{
    int port = 0;
    if (length == 0 || length > 5 || digits[0] == '0') {
        return refuse_target("the port must be a number from 1 to 65535");
    }
    for (size_t i = 0; i < length; i++) {
        if (digits[i] < '0' || digits[i] > '9') {
            return refuse_target("the port must be a number from 1 to 65535");
        }
        port = port * 10 + digits[i] - '0';
    }
    return port > MAX_PORT ? refuse_target("the port must be a number from 1 to 65535") : port;
}

static int read_authority(const char *text, size_t length, Url *url)
{
    if (length == 0) {
        return refuse_target("the URL has no host");
    }
    if (memchr(text, '@', length) != NULL) {
        return refuse_target("the target holds user information ('@' before the host)");
    }
    const char *end = text + length, *colon;
    if (text[0] == '[') {
        const char *close = memchr(text, ']', length);
        if (close == NULL || (close + 1 < end && close[1] != ':') || !memchr(text, ':', (size_t)(close - text))) {
            return refuse_target("not an IPv6 address in brackets");
        }
        colon = close + 1 < end ? close + 1 : NULL;
        if (host_read(text + 1, (size_t)(close - text - 1), true, &url->host) < 0) {
            return -1;
        }
    }
    else {
        colon = memchr(text, ':', length);
        if (host_read(text, (size_t)((colon ? colon : end) - text), false, &url->host) < 0) {
            return -1;
        }
    }
    url->port = colon ? read_port(colon + 1, (size_t)(end - colon - 1)) : default_port(url->scheme);
    return url->port < 0    ? -1
           : url->port == 0 ? refuse_target("the scheme has no known port: write scheme://host:port")
                            : 0;
}

static size_t canonical_length(const Url *url)
{
    char port[16] = "";
    if (url->port != default_port(url->scheme)) {
        sprintf(port, ":%d", url->port);
    }
    return strlen(url->scheme) + 3 + strlen(url->host.text) + (strchr(url->host.text, ':') ? 2 : 0) + strlen(port) +
           url->length - url->base;
}

static int make_key(Url *url, const char *path, const char *end)
{
    url->key = PyMem_Malloc(strlen(url->scheme) + MAX_HOST + 16 + 3 * (size_t)(end - path));
    if (url->key == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    char *out = put_text(put_text(put_text(put_text(url->key, "U"), url->scheme), "|"), url->host.key);
    out = put_text(put_number(put_text(out, "|"), (unsigned)url->port), "|");
    url->base = (size_t)(out - url->key);
    url->length = (size_t)(put_path(out, path, end, url->ambiguous) - url->key);
    return canonical_length(url) > MAX_TARGET ? refuse_target("the target is longer than 65535 characters") : 0;
}

static size_t scheme_length(const char *text, size_t length)
{
    size_t n = 0;
    if (length == 0 || !isalpha((unsigned char)text[0])) {
        return 0;
    }
    while (n < length && (isalnum((unsigned char)text[n]) || (text[n] != '\0' && strchr("+.-", text[n])))) {
        n++;
    }
    return n + 3 <= length && memcmp(text + n, "://", 3) == 0 ? n : 0;
}

static void empty(Url *url)
{
    memset(url, 0, offsetof(Url, host));
    host_clear(&url->host);
}

static int parse(const char *text, size_t length, Url *out)
{
    empty(out);
    if (length == 0 || length > MAX_TARGET) {
        return refuse_target(length == 0 ? "" : "the target is longer than 65535 characters");
    }
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c <= ' ' || c >= 0x7f || c == '\\') {
            return refuse_target("the target holds white space, a control character or a backslash");
        }
    }
    size_t scheme = scheme_length(text, length);
    if (scheme == 0) {
        return refuse_target("not a URL of the form scheme://host");
    }
    const char *mark = memchr(text, '#', length);
    if (mark != NULL && memchr(mark + 1, '#', length - (size_t)(mark + 1 - text)) != NULL) {
        return refuse_target("the URL has two fragments"); /* some clients end the path at the last '#' */
    }
    out->memory = PyMem_Malloc(scheme + 1);
    if (out->memory == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < scheme; i++) {
        out->memory[i] = (char)tolower((unsigned char)text[i]);
    }
    out->memory[scheme] = '\0';
    out->scheme = out->memory;
    const char *authority = text + scheme + 3, *end = text + length, *path = authority;
    while (path < end && strchr("/?#", *path) == NULL) {
        path++;
    }
    const char *stop = path;
    while (stop < end && *stop != '?' && *stop != '#') {
        stop++;
    }
    out->ambiguous = path_is_ambiguous(path, stop);
    if (read_authority(authority, (size_t)(path - authority), out) < 0 || make_key(out, path, stop) < 0) {
        url_clear(out);
        return -1;
    }
    return 0;
}

/* The latest texts and their results: a request is read where it is made and again on the wire, and the next one is
 * often the same. The result depends only on the table of ports, so it is valid for all subjects. */
enum { LATEST = 4, LONGEST_KEPT = 256 };
static struct {
    char text[LONGEST_KEPT];
    size_t length; /* 0: nothing yet */
    Url url;
} latest[LATEST];
static unsigned next_kept = 0;

static void forget_latest(void)
{
    for (int i = 0; i < LATEST; i++) {
        url_clear(&latest[i].url);
        latest[i].length = 0;
    }
}

static int copy(const Url *from, Url *out)
{
    size_t scheme = strlen(from->scheme) + 1;
    memcpy(out, from, offsetof(Url, host));
    host_copy(&out->host, &from->host);
    out->key = PyMem_Malloc(from->length + 1);
    out->memory = PyMem_Malloc(scheme);
    if (out->key == NULL || out->memory == NULL) {
        url_clear(out);
        PyErr_NoMemory();
        return -1;
    }
    memcpy(out->key, from->key, from->length + 1);
    memcpy(out->memory, from->scheme, scheme);
    out->scheme = out->memory;
    return 0;
}

static void keep(const char *text, size_t length, const Url *url)
{
    unsigned at = next_kept++ % LATEST;
    if (latest[at].length > 0) {
        url_clear(&latest[at].url);
    }
    latest[at].length = copy(url, &latest[at].url) < 0 ? 0 : length;
    PyErr_Clear();
    memcpy(latest[at].text, text, length);
}

/* `text` is ASCII. 0, or -1 with an exception that says why it is refused. */
int url_read(const char *text, size_t length, Url *out)
{
    for (int i = 0; length > 0 && i < LATEST; i++) {
        if (latest[i].length == length && memcmp(latest[i].text, text, length) == 0) {
            return copy(&latest[i].url, out);
        }
    }
    int result = parse(text, length, out);
    if (result == 0 && length <= LONGEST_KEPT) {
        keep(text, length, out);
    }
    return result;
}

/* The same URL under another scheme: an upgrade to a websocket is asked for as ws:// or wss://. */
int url_with_scheme(Url *url, const char *scheme)
{
    if (strcmp(url->scheme, scheme) == 0) {
        return 0;
    }
    PyObject *text =
        PyUnicode_FromFormat("%s://%s%s%s:%d%s", scheme, strchr(url->host.text, ':') ? "[" : "", url->host.text,
                             strchr(url->host.text, ':') ? "]" : "", url->port, url_path(url));
    Py_ssize_t length;
    const char *plain = text ? PyUnicode_AsUTF8AndSize(text, &length) : NULL;
    Url changed;
    int result = plain ? url_read(plain, (size_t)length, &changed) : -1;
    if (result == 0) {
        url_clear(url);
        *url = changed;
    }
    Py_XDECREF(text);
    return result;
}

/* The canonical text, which is part of the identity of a decision. */
PyObject *url_text(const Url *url)
{
    bool six = strchr(url->host.text, ':') != NULL;
    char port[16] = "";
    if (url->port != default_port(url->scheme)) {
        sprintf(port, ":%d", url->port);
    }
    return PyUnicode_FromFormat("%s://%s%s%s%s%s", url->scheme, six ? "[" : "", url->host.text, six ? "]" : "", port,
                                url_path(url));
}

/* Any text as ASCII. Text that is not ASCII is passed to `convert`, and its result is read again here, so the checked
 * text is the used text. */
static PyObject *ascii_text(PyObject *object, PyObject *convert)
{
    PyObject *text = PyUnicode_Check(object) ? PyUnicode_FromObject(object) : NULL;
    if (text == NULL || PyUnicode_IS_ASCII(text)) {
        if (text == NULL && !PyErr_Occurred()) {
            refuse_target("expected a network target as text");
        }
        return text;
    }
    PyObject *converted = convert ? PyObject_CallOneArg(convert, text) : NULL;
    Py_DECREF(text);
    if (converted != NULL && PyUnicode_CheckExact(converted) && PyUnicode_IS_ASCII(converted)) {
        return converted;
    }
    Py_XDECREF(converted);
    if (!PyErr_Occurred()) {
        refuse_target("the target is not ASCII");
    }
    return NULL;
}

int url_of_object(PyObject *object, Url *out)
{
    empty(out);
    PyObject *text = ascii_text(object, parse_url);
    if (text == NULL) {
        return -1;
    }
    int result = url_read((const char *)PyUnicode_1BYTE_DATA(text), (size_t)PyUnicode_GET_LENGTH(text), out);
    Py_DECREF(text);
    return result;
}

/* A host as socket calls take it: text or bytes, IPv6 without brackets. */
int host_of_object(PyObject *object, Host *out)
{
    PyObject *text;
    if (PyBytes_Check(object) || PyByteArray_Check(object)) {
        const char *data = PyBytes_Check(object) ? PyBytes_AS_STRING(object) : PyByteArray_AS_STRING(object);
        text = PyUnicode_DecodeASCII(data, Py_SIZE(object), "replace");
    }
    else {
        text = ascii_text(object, normalise_host);
    }
    if (text == NULL) {
        return -1;
    }
    int result;
    if (!PyUnicode_IS_ASCII(text)) {
        result = refuse_target("the host is not ASCII");
    }
    else if (PyUnicode_GET_LENGTH(text) == 0) {
        result = refuse_target("");
    }
    else {
        result = host_read((const char *)PyUnicode_1BYTE_DATA(text), (size_t)PyUnicode_GET_LENGTH(text), true, out);
    }
    Py_DECREF(text);
    return result;
}
