/* HTTP/1.x on a connection that was opened for requests. Each request must be permitted, and framed so strictly that
 * no server can see other requests in it: no bare line ends, no folded lines, one way to give the length of a body. */
#include "network/network.h"

#include <stdio.h>
#include <string.h>

enum { LONGEST_HEAD = 256 * 1024 };

static void copy_origin(WireOrigin *to, const WireOrigin *from)
{
    memcpy(to->scheme, from->scheme, sizeof to->scheme);
    host_copy(&to->host, &from->host);
    host_copy(&to->shown, &from->shown);
    to->port = from->port;
}

int reader_copy(Reader *to, const Reader *from)
{
    char *head = from->used > 0 ? PyMem_Malloc(from->used) : NULL;
    Frames *frames = from->frames ? http2_copy(from->frames) : NULL;
    if ((from->used > 0 && head == NULL) || (from->frames != NULL && frames == NULL)) {
        PyMem_Free(head);
        http2_drop(frames);
        PyErr_NoMemory();
        return -1; /* nothing is shared: what is cleared later is as it was */
    }
    memcpy(to, from, offsetof(Reader, origin));
    copy_origin(&to->origin, &from->origin);
    to->head = head;
    to->frames = frames;
    if (head != NULL) {
        memcpy(head, from->head, from->used);
    }
    to->room = from->used;
    Py_XINCREF(to->socket_url);
    pipe_share(to->pipe);
    return 0;
}

void reader_clear(Reader *reader)
{
    PyMem_Free(reader->head);
    reader->head = NULL;
    reader->used = reader->room = 0;
    Py_CLEAR(reader->socket_url);
    pipe_drop(reader->pipe);
    reader->pipe = NULL;
    http2_drop(reader->frames);
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

int malformed(const char *why)
{
    char text[200];
    snprintf(text, sizeof text, "this connection was opened for HTTP requests, and %s", why);
    return refuse_target(text);
}

/* ---- one step per mode: how many bytes it took, -1 with an exception ---------------------------------- */

/* Line ends are checked before the head is complete: a lenient server would act on a bare line end at once. */
static int check_lines(const Reader *reader, size_t from)
{
    const char *head = reader->head, *end = head + reader->used, *p = head + from;
    while ((p = memchr(p, '\n', (size_t)(end - p))) != NULL) {
        if (p == head || p[-1] != '\r') {
            return malformed("a line does not end in CR LF");
        }
        p++;
    }
    p = head + from;
    while ((p = memchr(p, '\r', (size_t)(end - p))) != NULL) {
        if (p + 1 < end && p[1] != '\n') {
            return malformed("a line does not end in CR LF");
        }
        p++;
    }
    const char *first = reader->used ? memchr(head, '\n', reader->used) : NULL;
    if (first != NULL && (first - head < 10 || memcmp(first - 9, "HTTP/", 5) != 0)) {
        return malformed("a request line without a version was written to it");
    }
    return 0;
}

void reader_begin_body(Reader *reader, uint64_t length)
{
    reader->left = length;
    reader->mode = length > 0 ? IN_BODY : AT_START;
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
        reader_begin_body(reader, request->body);
    }
}

/* The length of the data that belongs to this head: up to its empty line, which may have begun before, or all of it.
 * The rest is not copied, because one write may contain many requests. */
static size_t rest_of_head(const Reader *reader, const char *data, size_t length)
{
    char edge[6];
    size_t before = reader->used < 3 ? reader->used : 3, after = length < 3 ? length : 3;
    if (before > 0) {
        memcpy(edge, reader->head + reader->used - before, before);
    }
    memcpy(edge + before, data, after);
    const char *end = memmem(edge, before + after, "\r\n\r\n", 4);
    if (end != NULL) {
        return (size_t)(end - edge) + 4 - before;
    }
    end = memmem(data, length, "\r\n\r\n", 4);
    return end ? (size_t)(end - data) + 4 : length;
}

static bool is_complete(const Reader *reader)
{
    return reader->used >= 4 && memcmp(reader->head + reader->used - 4, "\r\n\r\n", 4) == 0;
}

static Py_ssize_t read_head(Reader *reader, State *state, const char *data, size_t length)
{
    size_t before = reader->used, more = rest_of_head(reader, data, length);
    if (more > LONGEST_HEAD - before) {
        return malformed("a header of more than 256 KiB was written to it");
    }
    if (keep(reader, data, more) < 0 || check_lines(reader, before > 3 ? before - 3 : 0) < 0) {
        return -1;
    }
    Py_ssize_t taken = (Py_ssize_t)more;
    if (!is_complete(reader)) {
        bool checks = state != NULL && memchr(reader->head, '\n', reader->used) != NULL;
        return checks && line_check(state, &reader->origin, reader->head, reader->used) < 0 ? -1 : taken;
    }
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\n";
    bool first = !reader->began;
    reader->began = true;
    if (first && reader->used == sizeof preface - 1 && memcmp(reader->head, preface, reader->used) == 0) {
        reader->mode = IN_STREAMS;
        reader->used = 0;
        reader->frames = http2_new();
        return reader->frames ? taken : -1;
    }
    WireRequest request;
    memset(&request, 0, offsetof(WireRequest, tunnel));
    request.text = reader->head;
    request.length = reader->used;
    int result = request_check(state, &reader->origin, &request);
    Py_XSETREF(reader->socket_url, request.socket_url);
    if (result < 0) {
        return -1;
    }
    reader->heads++;
    reader->known = !request.asked && !request.chunked;
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

Py_ssize_t reader_skip(Reader *reader, size_t length)
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

/* The length of the header of a frame, as far as the available bytes tell. */
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

/* Frames of a client, read strictly. The server may have ignored the upgrade and still read requests, but no request
 * begins like the header of a masked frame. */
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

/* Data frames need `send`; ping, pong and close do not. */
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

/* The records must come from a TLS object of this process, in order, because its plain text was read before. Other
 * records could contain anything. */
static Py_ssize_t read_records(Reader *reader, State *state, const char *data, size_t length)
{
    if (reader->pipe == NULL) {
        reader->pipe = pipe_find(state, data, length, &reader->position);
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
        return reader_skip(reader, length);
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
        return http2_read(reader->frames, state, &reader->origin, data, length);
    default:
        return malformed("an earlier write on it failed half-way");
    }
}

/* `state` NULL: was checked before, only follow. */
int reader_feed(Reader *reader, State *state, const char *data, size_t length)
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
