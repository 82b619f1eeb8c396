/* Pipes: records that a TLS object over memory (of asyncio or anyio) has returned and that are not sent yet. When
 * they are sent, they tell to which connection the object belongs. */
#include "network/network.h"

#include <string.h>

enum { UNBOUND_ROOM = 64 * 1024 }; /* a first flight is far smaller */
static Pipe *unbound = NULL;

Pipe *pipe_share(Pipe *pipe)
{
    if (pipe != NULL) {
        pipe->references++;
    }
    return pipe;
}

static void unlist(Pipe *pipe)
{
    for (Pipe **at = &unbound; *at != NULL; at = &(*at)->next) {
        if (*at == pipe) {
            *at = pipe->next;
            return;
        }
    }
}

void pipe_drop(Pipe *pipe)
{
    if (pipe != NULL && --pipe->references == 0) {
        unlist(pipe);
        wire_drop(pipe->wire);
        PyMem_Free(pipe->data);
        PyMem_Free(pipe);
    }
}

Pipe *pipe_new(void)
{
    Pipe *pipe = PyMem_Calloc(1, sizeof *pipe);
    if (pipe == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    pipe->references = 1;
    pipe->next = unbound;
    unbound = pipe;
    return pipe;
}

/* Without a connection for requests, the records are not needed. */
static void let_loose(Pipe *pipe)
{
    unlist(pipe);
    pipe->loose = true;
    PyMem_Free(pipe->data);
    pipe->data = NULL;
    pipe->used = pipe->room = 0;
}

int pipe_add(Pipe *pipe, const char *data, size_t length)
{
    if (pipe->loose || length == 0) {
        return 0;
    }
    if (pipe->wire == NULL && pipe->used + length > UNBOUND_ROOM) {
        let_loose(pipe);
        return 0;
    }
    if (pipe->used + length > pipe->room) {
        size_t room = (pipe->used + length) * 2;
        char *grown = PyMem_Realloc(pipe->data, room);
        if (grown == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        pipe->data = grown;
        pipe->room = room;
    }
    memcpy(pipe->data + pipe->used, data, length);
    pipe->used += length;
    return 0;
}

bool pipe_holds(const Pipe *pipe, uint64_t position, const char *data, size_t length)
{
    uint64_t offset = position - pipe->start;
    return position >= pipe->start && offset + length <= pipe->used && memcmp(pipe->data + offset, data, length) == 0;
}

Pipe *pipe_find(const State *state, const char *data, size_t length, uint64_t *position)
{
    for (Pipe *pipe = unbound; pipe != NULL; pipe = pipe->next) {
        if (state != NULL && state_has_policy(state, pipe->policy) && pipe_holds(pipe, pipe->start, data, length)) {
            *position = pipe->start;
            return pipe_share(pipe);
        }
    }
    return NULL;
}

/* Binds the TLS object: from now on it encrypts requests to that origin. */
int pipe_bind(State *state, Pipe *pipe, const WireOrigin *origin)
{
    if (pipe->wire != NULL) {
        return 0;
    }
    bool same = pipe->name.key[0] == '\0' || strcmp(pipe->name.key, origin->host.key) == 0;
    if (!same && state != NULL && check_name(state, &pipe->name, 0) < 0) {
        return -1;
    }
    WireOrigin inside = *origin;
    inside.shown = pipe->name;
    pipe->wire = wire_inside(&inside);
    if (pipe->wire == NULL) {
        return -1;
    }
    unlist(pipe);
    return 0;
}

void pipe_sent(Pipe *pipe, uint64_t position)
{
    if (pipe == NULL || position <= pipe->start) {
        return;
    }
    size_t gone = (size_t)(position - pipe->start);
    gone = gone < pipe->used ? gone : pipe->used;
    if (gone == 0) {
        return; /* there may be nothing kept at all */
    }
    memmove(pipe->data, pipe->data + gone, pipe->used - gone);
    pipe->used -= gone;
    pipe->start += gone;
}
