/* HTTP/2 as it is written to a connection that was opened for requests: the headers of each stream are a request, and
 * are checked like one in HTTP/1.x. */
#include "core.h"
#include "hpack.h"
#include "network.h"

#include <string.h>

enum { DATA = 0, HEADERS = 1, PUSH_PROMISE = 5, CONTINUATION = 9 };
enum { END_STREAM = 1, END_HEADERS = 4, PADDED = 8, WITH_PRIORITY = 32 };
enum { HEADER = 9, LONGEST_BLOCK = 64 * 1024 };

static const char magic[] = "SM\r\n\r\n"; /* the second half of the preface */

struct Frames {
    unsigned char header[HEADER];
    int in_header, in_magic;
    uint32_t left, stream, open_block; /* open_block: the stream whose headers are not complete */
    int type, flags, block_flags;
    char *block;
    size_t used;
    Hpack table;
};

/* ---- life ------------------------------------------------------------------------------------------------------------ */

Frames *frames_new(void)
{
    Frames *frames = PyMem_Calloc(1, sizeof *frames);
    if (frames == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    frames->table.limit = 4096; /* what the standard starts with */
    return frames;
}

void frames_drop(Frames *frames)
{
    if (frames != NULL) {
        hpack_clear(&frames->table);
        PyMem_Free(frames->block);
        PyMem_Free(frames);
    }
}

Frames *frames_copy(const Frames *from)
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

/* ---- a complete block of headers ----------------------------------------------------------------------------------- */

typedef struct {
    char method[32], scheme[16], *path, *authority, *host;
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

static int each_header(HpackText name, HpackText value, void *context)
{
    Request *request = context;
    bool pseudo = name.length > 0 && name.text[0] == ':';
    request->pseudo += pseudo;
    int result = is(name, ":method")      ? take(value, request->method, sizeof request->method)
                 : is(name, ":scheme")    ? take(value, request->scheme, sizeof request->scheme)
                 : is(name, ":path")      ? take_long(value, &request->path)
                 : is(name, ":authority") ? take_long(value, &request->authority)
                 : is(name, "host")       ? take_long(value, &request->host)
                                          : (pseudo ? -1 : 0); /* :protocol, for one: a tunnel */
    request->odd = request->odd || result < 0;
    return 0; /* the table must follow in any case */
}

static int check_request(State *state, const WireOrigin *origin, const Request *request, bool body)
{
    const char *host = request->authority ? request->authority : request->host;
    bool two = request->authority && request->host && strcmp(request->authority, request->host) != 0;
    if (request->odd || two || host == NULL || request->path == NULL || request->method[0] == '\0' ||
        strcmp(request->method, "CONNECT") == 0) {
        return refuse_target("not a plain HTTP/2 request: its method, path or host is missing, or there twice");
    }
    return stream_check(state, origin, request->method, request->path, host, body);
}

static int end_block(Frames *frames, State *state, const WireOrigin *origin)
{
    Request request = {.method = ""};
    int result = hpack_decode(&frames->table, frames->block ? frames->block : "", frames->used, each_header, &request);
    PyMem_Free(frames->block);
    frames->block = NULL;
    frames->used = 0;
    frames->open_block = 0;
    if (result < 0) {
        result = refuse_target("HTTP/2 headers that cannot be read were written to this connection");
    }
    else if (request.pseudo > 0) { /* none: headers after a body */
        result = check_request(state, origin, &request, !(frames->block_flags & END_STREAM));
    }
    PyMem_Free(request.path);
    PyMem_Free(request.authority);
    PyMem_Free(request.host);
    return result;
}

/* ---- frames -------------------------------------------------------------------------------------------------------- */

static int begin_frame(Frames *frames)
{
    const unsigned char *h = frames->header;
    frames->left = (uint32_t)h[0] << 16 | (uint32_t)h[1] << 8 | h[2];
    frames->type = h[3];
    frames->flags = h[4];
    frames->stream = ((uint32_t)h[5] << 24 | (uint32_t)h[6] << 16 | (uint32_t)h[7] << 8 | h[8]) & 0x7fffffff;
    bool continues = frames->type == CONTINUATION;
    if (frames->type == PUSH_PROMISE || continues != (frames->open_block != 0) ||
        (continues && frames->stream != frames->open_block)) {
        return refuse_target("HTTP/2 frames in an order that no client sends were written to this connection");
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
    const unsigned char *data = (const unsigned char *)frames->block + from;
    size_t length = frames->used - from;
    if (frames->type != HEADERS) {
        return 0;
    }
    if (frames->flags & PADDED) {
        back = length > 0 ? data[0] : 0;
        front = 1;
    }
    front += frames->flags & WITH_PRIORITY ? 5 : 0;
    if (front + back > length) {
        return refuse_target("an HTTP/2 frame with more padding than room was written to this connection");
    }
    memmove(frames->block + from, data + front, length - front - back);
    frames->used -= front + back;
    return 0;
}

static int keep(Frames *frames, const char *data, size_t length)
{
    if (frames->block == NULL) {
        frames->block = PyMem_Malloc(LONGEST_BLOCK);
    }
    if (frames->block == NULL || frames->used + length > LONGEST_BLOCK) {
        return refuse_target("HTTP/2 headers of more than 64 KiB were written to this connection");
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
Py_ssize_t frames_read(Frames *frames, State *state, const WireOrigin *origin, const char *data, size_t length)
{
    if (frames->in_magic < (int)sizeof magic - 1) {
        bool right = *data == magic[frames->in_magic++];
        return right ? 1 : refuse_target("half a preface of HTTP/2 was written to this connection");
    }
    if (frames->in_header < HEADER) {
        frames->header[frames->in_header++] = (unsigned char)*data;
        if (frames->in_header < HEADER) {
            return 1;
        }
        return begin_frame(frames) < 0 || (frames->left == 0 && end_frame(frames, state, origin) < 0) ? -1 : 1;
    }
    size_t taken = frames->left < length ? frames->left : length;
    if (holds_headers(frames) && keep(frames, data, taken) < 0) {
        return -1;
    }
    frames->left -= (uint32_t)taken;
    return frames->left == 0 && end_frame(frames, state, origin) < 0 ? -1 : (Py_ssize_t)taken;
}
