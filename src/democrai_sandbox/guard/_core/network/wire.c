/* Wires: a connection that was opened for permitted requests only, whichever code holds the socket. Data is read
 * before it is sent. If a write sends less than it was given, the reader advances by that much only. */
#include "network/network.h"

#include <stdio.h>
#include <string.h>

/* The head of the latest request that rules alone permitted. Rules do not change during an activation, so the same head
 * needs no check in it. */
typedef struct {
    char *text;
    size_t length, room;
    uint64_t body;
    uint64_t serial; /* of the activation */
} KnownHead;

struct Wire {
    int references;
    bool busy, repeats; /* repeats: the current write begins with the known head */
    KnownHead known;
    Reader *now, *next; /* both of `readers` */
    Reader readers[2];
    PyObject *refusal; /* why the last write was refused */
    PyObject *pending; /* data that OpenSSL has accepted but could not send: it sends that data first */
};

Wire *wire_new(const char *scheme, const Host *host, int port)
{
    Wire *wire = PyMem_Calloc(1, sizeof *wire);
    if (wire == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    wire->references = 1;
    wire->now = &wire->readers[0];
    wire->next = &wire->readers[1];
    snprintf(wire->now->origin.scheme, sizeof wire->now->origin.scheme, "%s", scheme);
    host_copy(&wire->now->origin.host, host);
    wire->now->origin.port = port;
    return wire;
}

/* A wire for the plain text of TLS to this origin. */
Wire *wire_inside(const WireOrigin *origin)
{
    Wire *wire = wire_new(origin->scheme, &origin->host, origin->port);
    if (wire != NULL) {
        wire->now->inner = true;
        wire->now->origin.shown = origin->shown;
    }
    return wire;
}

Wire *wire_share(Wire *wire)
{
    if (wire != NULL) {
        wire->references++;
    }
    return wire;
}

void wire_drop(Wire *wire)
{
    if (wire != NULL && --wire->references == 0) {
        reader_clear(wire->now);
        reader_clear(wire->next);
        Py_XDECREF(wire->pending);
        Py_XDECREF(wire->refusal);
        PyMem_Free(wire->known.text);
        PyMem_Free(wire);
    }
}

bool wire_skips(const Wire *wire, size_t length)
{
    const Reader *now = wire->now;
    return !wire->busy && wire->pending == NULL && now->mode == IN_BODY && now->left >= length;
}

static void keep_refusal(Wire *wire)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    Py_XSETREF(wire->refusal, Py_XNewRef(value));
    PyErr_Restore(type, value, trace);
}

/* Some clients ignore the error of a write and wait for an answer: they get it again when they read. */
int wire_answers(const Wire *wire)
{
    if (wire == NULL || wire->refusal == NULL) {
        return 0;
    }
    PyErr_SetObject((PyObject *)Py_TYPE(wire->refusal), wire->refusal);
    return -1;
}

/* ---- known heads -------------------------------------------------------------------------------------- */

static bool is_current(const KnownHead *known, const State *state)
{
    return known->length > 0 && known->serial == state->serial && LIKELY(!candidates_held);
}

/* Whether the data is the known head with a part of its body, or all of it. */
static bool repeats_head(const Wire *wire, const State *state, const char *data, size_t length)
{
    const KnownHead *known = &wire->known;
    return wire->now->mode == AT_START && is_current(known, state) && length >= known->length &&
           length - known->length <= known->body && memcmp(data, known->text, known->length) == 0;
}

/* Keeps the head of a write that was one request, or its begin. */
static void keep_head(Wire *wire, const State *state, const char *data, size_t length)
{
    enum { LONGEST_KEPT = 4096 };
    const Reader *next = wire->next;
    KnownHead *known = &wire->known;
    bool plain = next->mode == AT_START || next->mode == IN_BODY;
    const char *end = memmem(data, length, "\r\n\r\n", 4);
    if (wire->now->mode != AT_START || next->heads != 1 || !next->known || !plain || end == NULL) {
        return;
    }
    size_t size = (size_t)(end - data) + 4;
    if (size > known->room) {
        char *grown = size > LONGEST_KEPT ? NULL : PyMem_Realloc(known->text, size);
        if (grown == NULL) {
            return;
        }
        known->text = grown;
        known->room = size;
    }
    memcpy(known->text, data, size);
    known->length = size;
    known->body = next->left + (length - size);
    known->serial = state->serial;
}

/* Whether the known head begins with this request line. */
bool wire_repeats(const Wire *wire, const State *state, const char *method, const char *target)
{
    const KnownHead *known = &wire->known;
    size_t first = strlen(method), second = strlen(target);
    return is_current(known, state) && known->length > first + second + 2 && known->text[first] == ' ' &&
           known->text[first + 1 + second] == ' ' && memcmp(known->text, method, first) == 0 &&
           memcmp(known->text + first + 1, target, second) == 0;
}

/* Checks a request line before its head is written: 1 if it is permitted, 0 if this connection cannot tell, -1 with a
 * denial. */
int wire_check(State *state, const Wire *wire, const char *method, const char *target)
{
    if (UNLIKELY(candidates_held) || target[0] != '/' || strchr(target, '#') != NULL) {
        return 0;
    }
    return target_check(state, &wire->now->origin, method, target) < 0 ? -1 : 1;
}

/* Reads data before it is sent. After 0, wire_end() must follow with the sent length. Only one thread writes at a time,
 * because concurrent writers would be read as if they were alone. */
int wire_begin(State *state, Wire *wire, const char *data, size_t length)
{
    if (wire->busy) {
        return malformed("two threads write to it at once");
    }
    Py_CLEAR(wire->refusal);
    if (repeats_head(wire, state, data, length)) {
        wire->repeats = wire->busy = true;
        wire_share(wire);
        return 0;
    }
    wire->known.length = 0;
    reader_clear(wire->next);
    if (reader_copy(wire->next, wire->now) < 0) {
        return -1;
    }
    wire->next->heads = 0;
    wire->busy = true; /* a check may ask the decider, and another thread may run */
    wire_share(wire);
    if (reader_feed(wire->next, state, data, length) < 0) {
        wire->busy = false;
        reader_clear(wire->next);
        keep_refusal(wire);
        wire_drop(wire);
        return -1;
    }
    keep_head(wire, state, data, length);
    return 0;
}

/* `sent` bytes were sent; -1: unknown. */
void wire_end(Wire *wire, const char *data, Py_ssize_t sent, size_t length)
{
    if (wire->repeats && (size_t)sent == length) {
        reader_begin_body(wire->now, wire->known.body);
        reader_skip(wire->now, length - wire->known.length);
        wire->repeats = wire->busy = false;
        wire_drop(wire);
        return;
    }
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (sent < 0) {
        wire->now->mode = BROKEN;
    }
    else if ((size_t)sent == length && !wire->repeats) {
        Reader *before = wire->now;
        wire->now = wire->next;
        wire->next = before;
        pipe_sent(wire->now->pipe, wire->now->position);
    }
    else {
        if (wire->now->pipe == NULL && wire->next->pipe != NULL) { /* found when it was checked */
            wire->now->pipe = pipe_share(wire->next->pipe);
            wire->now->position = wire->now->pipe->start;
        }
        if (reader_feed(wire->now, NULL, data, (size_t)sent) < 0) {
            wire->now->mode = BROKEN;
        }
        pipe_sent(wire->now->pipe, wire->now->position);
    }
    reader_clear(wire->next);
    wire->repeats = wire->busy = false;
    wire_drop(wire);
    PyErr_Clear();
    PyErr_Restore(type, value, trace);
}

/* Part of a body will be sent unread; wire_skipped() must follow. No other thread may write until then: together they
 * could send more than the rest of the body. */
void wire_skip(Wire *wire)
{
    wire->busy = true;
    wire_share(wire);
}

void wire_skipped(Wire *wire, Py_ssize_t sent)
{
    Reader *now = wire->now;
    wire->busy = false;
    if (sent < 0 || now->mode != IN_BODY || (uint64_t)sent > now->left) {
        now->mode = BROKEN;
    }
    else {
        reader_skip(now, (size_t)sent);
    }
    wire_drop(wire);
}

/* From now on the socket carries TLS. The returned wire reads the plain text. */
Wire *wire_start_tls(Wire *wire, const Host *shown)
{
    Reader *now = wire->now;
    bool fresh = now->mode == AT_START || now->mode == IN_TUNNEL;
    if (now->mode == IN_TUNNEL) {
        strcpy(now->origin.scheme, "https");
    }
    if (wire->busy || !fresh || !is_secure(now->origin.scheme)) {
        malformed("TLS was begun on it where a request belongs");
        return NULL;
    }
    Wire *inner = wire_inside(&now->origin);
    if (inner != NULL) {
        inner->now->origin.shown = *shown;
        now->mode = BROKEN; /* no plain text is written beside it */
    }
    return inner;
}

/* A write that OpenSSL could not finish must be repeated with the same bytes. */
int wire_again(Wire *wire, PyObject *data)
{
    PyObject *pending = wire->pending;
    if (pending == NULL) {
        return 0;
    }
    bool same = PyBytes_GET_SIZE(data) >= PyBytes_GET_SIZE(pending) &&
                memcmp(PyBytes_AS_STRING(data), PyBytes_AS_STRING(pending), (size_t)PyBytes_GET_SIZE(pending)) == 0;
    return same ? 0 : malformed("an unfinished write was followed by another one");
}

void wire_unfinished(Wire *wire, PyObject *data)
{
    Py_XSETREF(wire->pending, Py_XNewRef(data));
}

const Host *wire_host(const Wire *wire)
{
    return &wire->now->origin.host;
}
