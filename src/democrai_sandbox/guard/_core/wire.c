/* HTTP/1.x as it is written to a connection that was opened for requests.
 *
 * The connection was given for permitted requests and for nothing else, whoever holds the socket now. So what is sent on
 * it is read here, before it goes out: each request must be permitted, and framed so plainly that no server can see
 * other requests in it than we do (no bare line ends, no folded lines, one way to tell the length of a body). */
#include "core.h"
#include "network.h"

#include <stdio.h>
#include <string.h>

enum { LONGEST_HEAD = 256 * 1024 };

typedef enum {
    AT_START,   /* a request begins with the next byte */
    IN_HEAD,    /* collecting up to the empty line */
    IN_BODY,    /* `left` more bytes */
    IN_SIZE,    /* the line with the size of a chunk */
    IN_CHUNK,   /* `left` more bytes, then CRLF */
    AFTER,      /* the CRLF after a chunk; `left` says how much of it is missing */
    AT_LAST,    /* the CRLF after the last chunk */
    IN_TUNNEL,  /* after CONNECT: another connection begins */
    IN_FRAMES,  /* an open websocket */
    IN_RECORDS, /* TLS: only what a TLS object gave out that reads what it encrypts */
    IN_STREAMS, /* HTTP/2 */
    BROKEN
} Mode_;

typedef struct {
    Mode_ mode;
    WireOrigin origin;
    bool inner; /* what TLS encrypts */
    char *head;
    size_t used, room;
    uint64_t left;
    char line[20];
    int in_line;
    PyObject *socket_url; /* of an open websocket */
    bool may_send;        /* data may be sent on it */
    Pipe *pipe;           /* IN_RECORDS: where the records come from */
    uint64_t position;    /* of the next one there */
    Frames *frames;       /* IN_STREAMS */
} Reader;

struct Wire {
    int references;
    bool busy;
    Reader now, next;
    PyObject *refusal; /* why the last write was refused */
    PyObject *pending; /* what OpenSSL has taken but could not send: it will send that, whatever it is given next */
};

/* ---- readers ---------------------------------------------------------------------------------------- */

static int reader_copy(Reader *to, const Reader *from)
{
    *to = *from;
    to->head = NULL;
    if (from->used > 0) {
        to->head = PyMem_Malloc(from->used);
        if (to->head == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        memcpy(to->head, from->head, from->used);
    }
    to->room = from->used;
    Py_XINCREF(to->socket_url);
    pipe_share(to->pipe);
    to->frames = from->frames ? frames_copy(from->frames) : NULL;
    return from->frames != NULL && to->frames == NULL ? -1 : 0;
}

static void reader_clear(Reader *reader)
{
    PyMem_Free(reader->head);
    reader->head = NULL;
    reader->used = reader->room = 0;
    Py_CLEAR(reader->socket_url);
    pipe_drop(reader->pipe);
    reader->pipe = NULL;
    frames_drop(reader->frames);
    reader->frames = NULL;
}

static int keep(Reader *reader, const char *data, size_t length)
{
    if (reader->used + length > reader->room) {
        size_t room = (reader->used + length) * 2;
        char *grown = PyMem_Realloc(reader->head, room);
        if (grown == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        reader->head = grown;
        reader->room = room;
    }
    memcpy(reader->head + reader->used, data, length);
    reader->used += length;
    return 0;
}

static bool is_secure(const char *scheme)
{
    return strcmp(scheme, "https") == 0 || strcmp(scheme, "wss") == 0;
}

static int malformed(const char *why)
{
    char text[200];
    snprintf(text, sizeof text, "this connection was opened for HTTP requests, and %s", why);
    return refuse_target(text);
}

/* ---- one step per mode: how many bytes it took, -1 with an exception ---------------------------------- */

/* Line ends must be plain before the rest is there: a lenient server would act on a bare one at once. */
static int check_lines(const Reader *reader, size_t from)
{
    const char *head = reader->head;
    for (size_t i = from; i < reader->used; i++) {
        if (head[i] == '\n' && (i == 0 || head[i - 1] != '\r')) {
            return malformed("a line does not end in CR LF");
        }
        if (head[i] == '\r' && i + 1 < reader->used && head[i + 1] != '\n') {
            return malformed("a line does not end in CR LF");
        }
    }
    const char *first = reader->used ? memchr(head, '\n', reader->used) : NULL;
    if (first != NULL && (first - head < 10 || memcmp(first - 9, "HTTP/", 5) != 0)) {
        return malformed("a request line without a version was written to it");
    }
    return 0;
}

static void after_head(Reader *reader, const WireRequest *request)
{
    reader->used = 0;
    reader->left = request->body;
    reader->in_line = 0;
    if (request->connects) {
        reader->mode = IN_TUNNEL;
        reader->origin.host = request->tunnel;
        reader->origin.port = request->tunnel_port;
    }
    else if (request->websocket) {
        reader->mode = IN_FRAMES;
        reader->may_send = false;
    }
    else if (request->chunked) {
        reader->mode = IN_SIZE;
    }
    else {
        reader->mode = request->body ? IN_BODY : AT_START;
    }
}

static Py_ssize_t read_head(Reader *reader, State *state, const char *data, size_t length)
{
    size_t before = reader->used;
    if (keep(reader, data, length) < 0) {
        return -1;
    }
    size_t from = before > 3 ? before - 3 : 0;
    char *end = memmem(reader->head + from, reader->used - from, "\r\n\r\n", 4);
    if (end != NULL) {
        reader->used = (size_t)(end - reader->head) + 4;
    }
    if (check_lines(reader, from) < 0) {
        return -1;
    }
    if (end == NULL && memchr(reader->head, '\n', reader->used) != NULL && state != NULL &&
        line_check(state, &reader->origin, reader->head, reader->used) < 0) {
        return -1;
    }
    if (end == NULL) {
        return reader->used > LONGEST_HEAD ? malformed("a header of more than 256 KiB was written to it")
                                           : (Py_ssize_t)length;
    }
    Py_ssize_t taken = (Py_ssize_t)(reader->used - before);
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\n";
    if (reader->used == sizeof preface - 1 && memcmp(reader->head, preface, reader->used) == 0) {
        reader->mode = IN_STREAMS;
        reader->used = 0;
        reader->frames = frames_new();
        return reader->frames ? taken : -1;
    }
    WireRequest request = {.text = reader->head, .length = reader->used};
    Py_CLEAR(reader->socket_url);
    if (request_check(state, &reader->origin, &request, &reader->socket_url) < 0) {
        return -1;
    }
    after_head(reader, &request);
    return taken;
}

static Py_ssize_t read_start(Reader *reader, const char *data)
{
    bool tls = data[0] == 0x16;
    if (reader->mode == IN_TUNNEL) {
        strcpy(reader->origin.scheme, tls ? "https" : "http");
    }
    if (tls && !reader->inner && is_secure(reader->origin.scheme)) {
        reader->mode = IN_RECORDS;
        return 0;
    }
    if (!reader->inner && is_secure(reader->origin.scheme)) {
        return malformed("it needs TLS, but plain text was written to it");
    }
    if (data[0] < 'A' || data[0] > 'Z') {
        return malformed("something else than a request was written to it");
    }
    reader->mode = IN_HEAD;
    return 0;
}

/* A chunk's size: hexadecimal digits, CR LF, no extensions. */
static Py_ssize_t read_size(Reader *reader, const char *data)
{
    if (reader->in_line >= (int)sizeof reader->line - 1) {
        return malformed("the size of a chunk is too long");
    }
    reader->line[reader->in_line++] = *data;
    if (*data != '\n') {
        return 1;
    }
    reader->line[reader->in_line] = '\0';
    size_t digits = strspn(reader->line, "0123456789abcdefABCDEF");
    if (digits == 0 || digits > 15 || strcmp(reader->line + digits, "\r\n") != 0) {
        return malformed("the size of a chunk is not plain");
    }
    reader->left = strtoull(reader->line, NULL, 16);
    reader->in_line = 0;
    reader->mode = reader->left ? IN_CHUNK : AT_LAST;
    if (reader->mode == AT_LAST) {
        reader->left = 2;
    }
    return 1;
}

/* CR LF, of which `left` bytes are still missing. */
static Py_ssize_t read_line_end(Reader *reader, const char *data)
{
    if (*data != (reader->left == 2 ? '\r' : '\n')) {
        return malformed("a chunk does not end where it said");
    }
    reader->left--;
    if (reader->left == 0) {
        reader->mode = reader->mode == AFTER ? IN_SIZE : AT_START;
    }
    return 1;
}

static Py_ssize_t skip(Reader *reader, size_t length)
{
    size_t taken = reader->left < length ? (size_t)reader->left : length;
    reader->left -= taken;
    if (reader->left == 0) {
        bool chunk = reader->mode == IN_CHUNK;
        reader->mode = chunk ? AFTER : AT_START;
        reader->left = chunk ? 2 : 0;
    }
    return (Py_ssize_t)taken;
}

static int require_sending(Reader *reader, State *state)
{
    Url url;
    if (reader->may_send || state == NULL) {
        return 0;
    }
    if (reader->socket_url == NULL || url_of_object(reader->socket_url, &url) < 0) {
        return -1;
    }
    int allowed = net_require(state, NET_SEND, match_url, &url, reader->socket_url);
    url_clear(&url);
    reader->may_send = allowed == 0;
    return allowed;
}

/* How long a frame's header is, as far as the bytes that are there tell. */
static int header_length(const unsigned char *header)
{
    int length = header[1] & 0x7f;
    return 2 + (length == 126 ? 2 : length == 127 ? 8 : 0) + 4;
}

static uint64_t payload_length(const unsigned char *header)
{
    uint64_t length = header[1] & 0x7f;
    int extra = length == 126 ? 2 : length == 127 ? 8 : 0;
    for (int i = 0; i < extra; i++) {
        length = (i == 0 ? 0 : length << 8) | header[2 + i];
    }
    return length;
}

/* A client's frames as the standard has them. The server may have ignored the upgrade and still read requests: no word
 * of one passes for a masked frame. */
static int check_frame(Reader *reader, State *state, const unsigned char *header)
{
    int opcode = header[0] & 0x0f;
    bool control = opcode >= 8, known = opcode <= 2 || (opcode >= 8 && opcode <= 10);
    bool whole = !control || ((header[0] & 0x80) && (header[1] & 0x7f) <= 125);
    if (!known || !whole || (header[0] & 0x30) || !(header[1] & 0x80)) {
        return malformed("something else than a websocket's frame was written to it");
    }
    return control ? 0 : require_sending(reader, state);
}

/* Data needs `send`; what only keeps the connection up (ping, pong, close) does not. */
static Py_ssize_t read_frame(Reader *reader, State *state, const char *data, size_t length)
{
    if (reader->left > 0) {
        size_t taken = reader->left < length ? (size_t)reader->left : length;
        reader->left -= taken;
        return (Py_ssize_t)taken;
    }
    const unsigned char *header = (const unsigned char *)reader->line;
    reader->line[reader->in_line++] = *data;
    if (reader->in_line == 2 && check_frame(reader, state, header) < 0) {
        return -1;
    }
    if (reader->in_line >= 2 && reader->in_line == header_length(header)) {
        reader->left = payload_length(header);
        reader->in_line = 0;
    }
    return 1;
}

/* The records must be those that a TLS object of this process gave out, one after the other: what it encrypts is read
 * before. Records made in any other way could hold anything. */
static Py_ssize_t read_records(Reader *reader, State *state, const char *data, size_t length)
{
    if (reader->pipe == NULL) {
        reader->pipe = pipe_find(data, length, &reader->position);
        if (reader->pipe == NULL || pipe_bind(state, reader->pipe, &reader->origin) < 0) {
            return PyErr_Occurred() ? -1 : malformed("TLS records that no TLS object made were written to it");
        }
    }
    if (!pipe_holds(reader->pipe, reader->position, data, length)) {
        return malformed("TLS records that no TLS object made were written to it");
    }
    reader->position += length;
    return (Py_ssize_t)length;
}

static Py_ssize_t step(Reader *reader, State *state, const char *data, size_t length)
{
    switch (reader->mode) {
    case AT_START:
    case IN_TUNNEL:
        return read_start(reader, data);
    case IN_HEAD:
        return read_head(reader, state, data, length);
    case IN_BODY:
    case IN_CHUNK:
        return skip(reader, length);
    case IN_SIZE:
        return read_size(reader, data);
    case AFTER:
    case AT_LAST:
        return read_line_end(reader, data);
    case IN_FRAMES:
        return read_frame(reader, state, data, length);
    case IN_RECORDS:
        return read_records(reader, state, data, length);
    case IN_STREAMS:
        return frames_read(reader->frames, state, &reader->origin, data, length);
    default:
        return malformed("an earlier write on it failed half-way");
    }
}

/* `state` NULL: was checked before, only follow. */
static int feed(Reader *reader, State *state, const char *data, size_t length)
{
    while (length > 0) {
        Py_ssize_t taken = step(reader, state, data, length);
        if (taken < 0) {
            return -1;
        }
        data += taken;
        length -= (size_t)taken;
    }
    return 0;
}

/* ---- the wire ------------------------------------------------------------------------------------------ */

Wire *wire_new(const char *scheme, const Host *host, int port)
{
    Wire *wire = PyMem_Calloc(1, sizeof *wire);
    if (wire == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    wire->references = 1;
    snprintf(wire->now.origin.scheme, sizeof wire->now.origin.scheme, "%s", scheme);
    wire->now.origin.host = *host;
    wire->now.origin.port = port;
    return wire;
}

/* What TLS encrypts on the way to this origin. */
Wire *wire_inside(const WireOrigin *origin)
{
    Wire *wire = wire_new(origin->scheme, &origin->host, origin->port);
    if (wire != NULL) {
        wire->now.inner = true;
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
        reader_clear(&wire->now);
        reader_clear(&wire->next);
        Py_XDECREF(wire->pending);
        Py_XDECREF(wire->refusal);
        PyMem_Free(wire);
    }
}

bool wire_skips(const Wire *wire, size_t length)
{
    const Reader *now = &wire->now;
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

/* Some clients drop the error of a write and wait for an answer: they are told again when they read. */
int wire_answers(const Wire *wire)
{
    if (wire == NULL || wire->refusal == NULL) {
        return 0;
    }
    PyErr_SetObject((PyObject *)Py_TYPE(wire->refusal), wire->refusal);
    return -1;
}

/* Reads what is about to be sent. After 0, wire_end() must follow with what was. Two writers at once would each be read
 * as if they were alone, so there is only one. */
int wire_begin(State *state, Wire *wire, const char *data, size_t length)
{
    if (wire->busy) {
        return malformed("two threads write to it at once");
    }
    reader_clear(&wire->next);
    Py_CLEAR(wire->refusal);
    if (reader_copy(&wire->next, &wire->now) < 0) {
        return -1;
    }
    wire->busy = true; /* checking may ask the decider, and another thread come in meanwhile */
    wire_share(wire);
    if (feed(&wire->next, state, data, length) < 0) {
        wire->busy = false;
        reader_clear(&wire->next);
        keep_refusal(wire);
        wire_drop(wire);
        return -1;
    }
    return 0;
}

/* `sent` bytes went out; -1: nobody knows how many. */
void wire_end(Wire *wire, const char *data, Py_ssize_t sent, size_t length)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (sent < 0) {
        wire->now.mode = BROKEN;
    }
    else if ((size_t)sent == length) {
        reader_clear(&wire->now);
        wire->now = wire->next;
        memset(&wire->next, 0, sizeof wire->next);
        pipe_sent(wire->now.pipe, wire->now.position);
    }
    else if (feed(&wire->now, NULL, data, (size_t)sent) < 0) {
        wire->now.mode = BROKEN;
    }
    reader_clear(&wire->next);
    wire->busy = false;
    wire_drop(wire);
    PyErr_Clear();
    PyErr_Restore(type, value, trace);
}

/* Part of a body is about to go out without being looked at; wire_skipped() must follow. Nobody else writes meanwhile:
 * together they could send more than is left of the body. */
void wire_skip(Wire *wire)
{
    wire->busy = true;
    wire_share(wire);
}

void wire_skipped(Wire *wire, Py_ssize_t sent)
{
    Reader *now = &wire->now;
    wire->busy = false;
    if (sent < 0 || now->mode != IN_BODY || (uint64_t)sent > now->left) {
        now->mode = BROKEN;
    }
    else {
        skip(now, (size_t)sent);
    }
    wire_drop(wire);
}

/* From here on the socket carries TLS. What is encrypted is read by the wire that comes back. */
Wire *wire_start_tls(Wire *wire)
{
    Reader *now = &wire->now;
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
        now->mode = BROKEN; /* nobody writes plain text beside it */
    }
    return inner;
}

/* A write that OpenSSL could not finish must come again with the same bytes. */
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
    return &wire->now.origin.host;
}
