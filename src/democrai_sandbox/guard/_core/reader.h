/* What reads a connection as it is written to: see reader.c. */
#ifndef DEMOCRAI_READER_H
#define DEMOCRAI_READER_H

#include "network.h"

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
} Stage;

typedef struct {
    Stage mode;
    bool inner; /* what TLS encrypts */
    bool began; /* requests have been written: HTTP/2 can no longer begin */
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
    WireOrigin origin;
} Reader;

int reader_copy(Reader *to, const Reader *from);
void reader_clear(Reader *reader);
int reader_feed(Reader *reader, State *state, const char *data, size_t length);
Py_ssize_t reader_skip(Reader *reader, size_t length);
int malformed(const char *why);

#endif
