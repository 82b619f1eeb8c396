/* HTTP/2 on a connection that was opened for requests: the headers of each stream are checked like a request in
 * HTTP/1.x. */
#include "network/network.h"

#include <stdio.h>
#include <string.h>

enum { DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION };
enum { END_STREAM = 1, END_HEADERS = 4, PADDED = 8, WITH_PRIORITY = 32 };
enum { HEADER = 9, LONGEST_BLOCK = 64 * 1024, MOST_STREAMS = 256 };

static const char magic[] = "SM\r\n\r\n"; /* the second half of the preface */

/* A request whose body is not complete. */
typedef struct {
    uint32_t id;
    bool counted; /* its content-length said how much is to come */
    uint64_t left;
} Stream;

struct Frames {
    unsigned char header[HEADER];
    int in_header, in_magic;
    uint32_t left, payload, stream, open_block; /* open_block: the stream whose headers are not complete */
    int type, flags, block_flags;
    char *block;
    size_t used;
    Stream streams[MOST_STREAMS];
    int open_streams;
    Hpack table;
};

/* ---- life
 * ------------------------------------------------------------------------------------------------------------ */

Frames *http2_new(void)
{
    Frames *frames = PyMem_Calloc(1, sizeof *frames);
    if (frames == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    frames->table.limit = 4096; /* what the standard starts with */
    return frames;
}

void http2_drop(Frames *frames)
{
    if (frames != NULL) {
        hpack_clear(&frames->table);
        PyMem_Free(frames->block);
        PyMem_Free(frames);
    }
}

Frames *http2_copy(const Frames *from)
{
    Frames *to = PyMem_Malloc(sizeof *to);
    if (to == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    *to = *from;
    to->block = from->block ? PyMem_Malloc(LONGEST_BLOCK) : NULL;
    if ((from->block != NULL && to->block == NULL) || hpack_copy(&to->table, &from->table) < 0) {
        PyMem_Free(to->block);
        PyMem_Free(to);
        PyErr_NoMemory();
        return NULL;
    }
    if (to->block != NULL) {
        memcpy(to->block, from->block, from->used);
    }
    return to;
}

/* ---- a complete block of headers -----------------------------------------------------------------------------------
 */

typedef struct {
    char method[32], scheme[16], length[24], *path, *authority, *host;
    int pseudo;
    bool odd;
} Request;

static int take(HpackText value, char *out, size_t room)
{
    if (out[0] != '\0' || value.length >= room || memchr(value.text, '\0', value.length) != NULL) {
        return -1;
    }
    memcpy(out, value.text, value.length);
    out[value.length] = '\0';
    return 0;
}

static int take_long(HpackText value, char **out)
{
    char *copy = *out == NULL ? PyMem_Malloc(value.length + 1) : NULL;
    if (copy == NULL || memchr(value.text, '\0', value.length) != NULL) {
        PyMem_Free(copy);
        return -1;
    }
    memcpy(copy, value.text, value.length);
    copy[value.length] = '\0';
    *out = copy;
    return 0;
}

static bool is(HpackText name, const char *word)
{
    return name.length == strlen(word) && memcmp(name.text, word, name.length) == 0;
}

/* A front server may convert the headers to HTTP/1.x: no header may then look like another line or frame another body.
 */
static bool is_plain(HpackText name, HpackText value)
{
    static const char *const connection_headers[] = {"connection", "transfer-encoding", "upgrade",
                                                     "keep-alive", "proxy-connection",  "expect"};
    for (size_t i = 0; i < sizeof connection_headers / sizeof *connection_headers; i++) {
        if (is(name, connection_headers[i])) {
            return false;
        }
    }
    for (size_t i = 0; i < name.length; i++) {
        char c = name.text[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (c != '\0' && strchr("!#$%&'*+-.^_`|~", c));
        if (!letter && !(i == 0 && c == ':')) {
            return false;
        }
    }
    return name.length > 0 && !memchr(value.text, '\r', value.length) && !memchr(value.text, '\n', value.length) &&
           !memchr(value.text, '\0', value.length);
}

static int each_header(HpackText name, HpackText value, void *context)
{
    Request *request = context;
    bool pseudo = name.length > 0 && name.text[0] == ':';
    request->pseudo += pseudo;
    request->odd = request->odd || !is_plain(name, value);
    int result = is(name, ":method")          ? take(value, request->method, sizeof request->method)
                 : is(name, ":scheme")        ? take(value, request->scheme, sizeof request->scheme)
                 : is(name, ":path")          ? take_long(value, &request->path)
                 : is(name, ":authority")     ? take_long(value, &request->authority)
                 : is(name, "host")           ? take_long(value, &request->host)
                 : is(name, "content-length") ? take(value, request->length, sizeof request->length)
                                              : (pseudo ? -1 : 0); /* :protocol, for one: a tunnel */
    request->odd = request->odd || result < 0;
    return 0; /* the table must follow in any case */
}

static int malformed_stream(const char *why)
{
    char text[160];
    snprintf(text, sizeof text, "not plain HTTP/2: %s", why);
    return refuse_target(text);
}

static int check_request(State *state, const WireOrigin *origin, const Request *request, bool body)
{
    const char *host = request->authority ? request->authority : request->host;
    bool two = request->authority && request->host && strcmp(request->authority, request->host) != 0;
    if (two || host == NULL || request->path == NULL || request->method[0] == '\0' ||
        strcmp(request->method, "CONNECT") == 0) {
        return malformed_stream("its method, path or host is missing, or there twice");
    }
    return stream_check(state, origin, request->method, request->path, host, body);
}

/* ---- streams with a body -------------------------------------------------------------------------------------------
 */

static Stream *find_stream(Frames *frames, uint32_t id)
{
    for (int i = 0; i < frames->open_streams; i++) {
        if (frames->streams[i].id == id) {
            return &frames->streams[i];
        }
    }
    return NULL;
}

static void close_stream(Frames *frames, uint32_t id)
{
    Stream *stream = find_stream(frames, id);
    if (stream != NULL) {
        *stream = frames->streams[--frames->open_streams];
    }
}

static int open_stream(Frames *frames, const char *length)
{
    bool counted = length[0] != '\0', ends = frames->block_flags & END_STREAM;
    uint64_t left = counted ? strtoull(length, NULL, 10) : 0;
    if (length[strspn(length, "0123456789")] != '\0' || (ends && left > 0) || strlen(length) > 18) {
        return malformed_stream("its content-length is not that of its body");
    }
    if (ends) {
        return 0;
    }
    if (frames->open_streams == MOST_STREAMS || find_stream(frames, frames->stream) != NULL) {
        return malformed_stream("too many requests at once, or one twice");
    }
    frames->streams[frames->open_streams++] = (Stream){frames->stream, counted, left};
    return 0;
}

/* Data must belong to a request that announced a body. A server without HTTP/2 would read requests in it. */
static int begin_data(Frames *frames)
{
    Stream *stream = find_stream(frames, frames->stream);
    bool ends = frames->flags & END_STREAM;
    if (stream == NULL || frames->flags & PADDED) {
        return malformed_stream("data that no request announced, or padded");
    }
    if (stream->counted && (frames->left > stream->left || (ends && frames->left != stream->left))) {
        return malformed_stream("more or less data than the content-length said");
    }
    stream->left -= stream->counted ? frames->left : 0;
    if (ends) {
        close_stream(frames, frames->stream);
    }
    return 0;
}

static int end_block(Frames *frames, State *state, const WireOrigin *origin)
{
    Request request = {.method = ""};
    int result = hpack_decode(&frames->table, frames->block ? frames->block : "", frames->used, each_header, &request);
    PyMem_Free(frames->block);
    frames->block = NULL;
    frames->used = 0;
    frames->open_block = 0;
    bool trailers = request.pseudo == 0 && find_stream(frames, frames->stream) && frames->block_flags & END_STREAM;
    if (result < 0 || request.odd) {
        result = malformed_stream("its headers cannot be read, or do not belong there");
    }
    else if (trailers) {
        close_stream(frames, frames->stream);
    }
    else {
        result = check_request(state, origin, &request, !(frames->block_flags & END_STREAM));
        result = result < 0 ? -1 : open_stream(frames, request.length);
    }
    PyMem_Free(request.path);
    PyMem_Free(request.authority);
    PyMem_Free(request.host);
    return result;
}

/* ---- frames --------------------------------------------------------------------------------------------------------
 */

/* Frames other than data and headers must have their exact or a limited length, so that they cannot contain other text.
 */
static bool has_its_length(const Frames *frames)
{
    switch (frames->type) {
    case DATA:
    case HEADERS:
    case CONTINUATION:
        return true;
    case PRIORITY:
        return frames->left == 5;
    case RST_STREAM:
    case WINDOW_UPDATE:
        return frames->left == 4;
    case SETTINGS:
        return frames->left % 6 == 0 && frames->left <= 120;
    case PING:
    case GOAWAY:
        return frames->left == 8;
    default:
        return false;
    }
}

static int begin_frame(Frames *frames)
{
    const unsigned char *h = frames->header;
    frames->left = (uint32_t)h[0] << 16 | (uint32_t)h[1] << 8 | h[2];
    frames->type = h[3];
    frames->flags = h[4];
    frames->stream = ((uint32_t)h[5] << 24 | (uint32_t)h[6] << 16 | (uint32_t)h[7] << 8 | h[8]) & 0x7fffffff;
    bool continues = frames->type == CONTINUATION;
    if (!has_its_length(frames) || continues != (frames->open_block != 0) ||
        (continues && frames->stream != frames->open_block)) {
        return malformed_stream("a frame that no client sends, or not there");
    }
    frames->payload = frames->left;
    if (frames->type == DATA) {
        return begin_data(frames);
    }
    if (frames->type == RST_STREAM) {
        close_stream(frames, frames->stream);
    }
    if (frames->type == HEADERS) {
        frames->open_block = frames->stream;
        frames->block_flags = frames->flags;
        frames->used = 0;
    }
    return 0;
}

/* Padding and priority lie around the headers in the first frame of a block. */
static int strip(Frames *frames, size_t from)
{
    size_t front = 0, back = 0;
    size_t length = frames->used - from;
    if (frames->type != HEADERS) {
        return 0;
    }
    if (frames->flags & PADDED) {
        back = length > 0 ? (unsigned char)frames->block[from] : 0;
        front = 1;
    }
    front += frames->flags & WITH_PRIORITY ? 5 : 0;
    if (front + back > length) {
        return malformed_stream("more padding than room");
    }
    if (front + back == 0) {
        return 0; /* there may be no block at all */
    }
    memmove(frames->block + from, frames->block + from + front, length - front - back);
    frames->used -= front + back;
    return 0;
}

static int keep(Frames *frames, const char *data, size_t length)
{
    if (frames->block == NULL) {
        frames->block = PyMem_Malloc(LONGEST_BLOCK);
    }
    if (frames->block == NULL || frames->used + length > LONGEST_BLOCK) {
        return malformed_stream("headers of more than 64 KiB");
    }
    memcpy(frames->block + frames->used, data, length);
    frames->used += length;
    return 0;
}

static bool holds_headers(const Frames *frames)
{
    return frames->type == HEADERS || frames->type == CONTINUATION;
}

static int end_frame(Frames *frames, State *state, const WireOrigin *origin)
{
    frames->in_header = 0;
    if (!holds_headers(frames)) {
        return 0;
    }
    /* a block in several frames comes without padding or priority but in the first: strip that when it is whole */
    if (strip(frames, 0) < 0) {
        return -1;
    }
    return frames->flags & END_HEADERS ? end_block(frames, state, origin) : 0;
}

/* How many bytes it took, -1 with an exception. */
Py_ssize_t http2_read(Frames *frames, State *state, const WireOrigin *origin, const char *data, size_t length)
{
    if (frames->in_magic < (int)sizeof magic - 1) {
        bool right = *data == magic[frames->in_magic++];
        return right ? 1 : malformed_stream("half a preface");
    }
    if (frames->in_header < HEADER) {
        frames->header[frames->in_header++] = (unsigned char)*data;
        if (frames->in_header < HEADER) {
            return 1;
        }
        return begin_frame(frames) < 0 || (frames->left == 0 && end_frame(frames, state, origin) < 0) ? -1 : 1;
    }
    size_t taken = frames->left < length ? frames->left : length;
    for (size_t i = 0; frames->type == SETTINGS && i < taken; i++) {
        if ((frames->payload - frames->left + i) % 6 == 0 && data[i] != 0) {
            return malformed_stream("unknown settings"); /* their numbers are below 256 */
        }
    }
    if (holds_headers(frames) && keep(frames, data, taken) < 0) {
        return -1;
    }
    frames->left -= (uint32_t)taken;
    return frames->left == 0 && end_frame(frames, state, origin) < 0 ? -1 : (Py_ssize_t)taken;
}
