/* Decisions about network targets, and reading the requests that are written to a connection. */
#ifndef DEMOCRAI_NETWORK_H
#define DEMOCRAI_NETWORK_H

#include "rules/rules.h"
#include "core/core.h"

/* ---- net_decide.c -------------------------------------------------------------------------------------------- */
extern PyObject *observer;
int net_require(State *state, unsigned operation, Matcher match, const void *what, PyObject *target);
int net_granted(State *state, unsigned operation, Matcher match, const void *what, PyObject *target);
int net_deny(State *state, unsigned operation, PyObject *target);
int net_deny_text(State *state, unsigned operation, const char *target);
int endpoints_ready(PyObject *module);
int observe(State *state, const Host *name, const Address *address, int port);
int note_name(State *state, const Host *host);
bool name_noted(const State *state, const Host *host);

/* ---- resolver.c ---------------------------------------------------------------------------------------------- */
extern Row *getaddrinfo_row;
int each_name(const Address *address, int (*visit)(const Host *name, void *context), void *context);
PyObject *addresses_of(const Host *name, const char *dialled);
int resolver_ready(void);
int check_name(State *state, const Host *host, int port);
bool may_lead_to(const State *state, const Host *name, const Address *address);
int resolve_host(State *state, const Host *host, int family, int port, Address *out);
PyObject *on_getaddrinfo(State *state, Call *call);
PyObject *on_gethostbyname(State *state, Call *call);
PyObject *on_reverse(State *state, Call *call);

/* ---- tickets.c ----------------------------------------------------------------------------------------------- */
typedef struct {
    CarriedTicket carried;
    uint64_t policy; /* of the state that was permitted the request */
    char scheme[8];
    Host host;
    int port;
    PyObject *previous;
} Ticket;

extern PyTypeObject Ticket_Type;
int tickets_ready(void);
Ticket *ticket_current(const State *state); /* borrowed; NULL without an active request */
PyObject *core_request(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *core_origin(PyObject *module, PyObject *args);
PyObject *core_websocket(PyObject *module, PyObject *url);
PyObject *core_websocket_use(PyObject *module, PyObject *args);
PyObject *core_subject_key(PyObject *module, PyObject *unused);
PyObject *core_subject_field(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
int ticket_begin(PyObject *ticket); /* like its `with`; does nothing for None */
int ticket_end(PyObject *ticket);   /* keeps the current exception */
PyObject *core_read_url(PyObject *module, PyObject *text);
PyObject *core_url_mask(PyObject *module, PyObject *args);
PyObject *core_socket_mask(PyObject *module, PyObject *args);
PyObject *core_name_mask(PyObject *module, PyObject *args);

/* ---- unguarded_bypass.c -------------------------------------------------------------------------------------- */
PyObject *core_gate(PyObject *module, PyObject *args);

/* ---- client_errors.c ----------------------------------------------------------------------------------------- */
extern PyTypeObject Outlet_Type;
void let_denial_out(PyObject *lets_out);
PyObject *outlet_new(PyObject *inner, PyObject *lets_out);

/* ---- requests.c ---------------------------------------------------------------------------------------------- */
typedef struct {
    const char *text; /* from the method to the empty line */
    size_t length;
    bool chunked, websocket, connects;
    bool asked; /* not permitted by rules alone */
    uint64_t body;
    PyObject *socket_url; /* of a websocket: a new reference */
    int tunnel_port; /* of CONNECT */
    Host tunnel;     /* likewise, and not set otherwise */
} WireRequest;

typedef struct {
    char scheme[8];
    Host host, shown; /* shown: the name in the TLS handshake, if there was one */
    int port;
} WireOrigin;

int line_check(State *state, const WireOrigin *origin, const char *head, size_t length);
int stream_check(State *state, const WireOrigin *origin, const char *method, const char *path, const char *host,
                 bool body);
int target_check(State *state, const WireOrigin *origin, const char *method, const char *target);
int request_check(State *state, const WireOrigin *origin, WireRequest *request);

/* ---- wire.c -------------------------------------------------------------------------------------------------- */
typedef struct Wire Wire; /* see network.h: the socket was opened for requests, what is sent on it is read */

Wire *wire_new(const char *scheme, const Host *host, int port);
Wire *wire_share(Wire *wire);
void wire_drop(Wire *wire);
bool wire_skips(const Wire *wire, size_t length); /* so much is surely body: nothing to be read */
int wire_begin(State *state, Wire *wire, const char *data, size_t length);
void wire_end(Wire *wire, const char *data, Py_ssize_t sent, size_t length);
void wire_skip(Wire *wire);
void wire_skipped(Wire *wire, Py_ssize_t sent);
Wire *wire_start_tls(Wire *wire, const Host *shown);
int wire_answers(const Wire *wire);
int wire_again(Wire *wire, PyObject *data);
void wire_unfinished(Wire *wire, PyObject *data);
const Host *wire_host(const Wire *wire);
bool wire_repeats(const Wire *wire, const State *state, const char *method, const char *target);
int wire_check(State *state, const Wire *wire, const char *method, const char *target);
Wire *wire_inside(const WireOrigin *origin);

/* ---- tls_records.c ------------------------------------------------------------------------------------------- */
typedef struct Pipe Pipe;
struct Pipe {
    int references;
    char *data;
    size_t used, room;
    uint64_t start;  /* position of the first byte that is kept */
    Wire *wire;      /* reads what is encrypted; set when the first records go to a connection for requests */
    bool loose;      /* the records went elsewhere: never to be taken for those of a connection for requests */
    Host name;       /* that is shown to the server; empty when none is */
    uint64_t policy; /* under which its object was made */
    Pipe *next;      /* of those that are not bound yet */
};

Pipe *pipe_new(void);
int pipe_add(Pipe *pipe, const char *data, size_t length);
Pipe *pipe_share(Pipe *pipe);
void pipe_drop(Pipe *pipe);
Pipe *pipe_find(const State *state, const char *data, size_t length, uint64_t *position); /* new reference, or NULL */
int pipe_bind(State *state, Pipe *pipe, const WireOrigin *origin);
bool pipe_holds(const Pipe *pipe, uint64_t position, const char *data, size_t length);
void pipe_sent(Pipe *pipe, uint64_t position);

/* ---- http2.c ------------------------------------------------------------------------------------------------- */
typedef struct Frames Frames;

Frames *http2_new(void);
Frames *http2_copy(const Frames *from);
void http2_drop(Frames *frames);
Py_ssize_t http2_read(Frames *frames, State *state, const WireOrigin *origin, const char *data, size_t length);

/* ---- hpack.c ------------------------------------------------------------------------------------------------- */
typedef struct {
    const char *text;
    size_t length;
} HpackText;

typedef struct {
    uint32_t at, name, value; /* where its texts lie, and their lengths */
} HpackEntry;

typedef struct {
    HpackEntry *entries; /* the first of them are removed already */
    char *bytes;
    size_t first, count, used, size, limit;
    size_t room_for_entries, room_for_bytes;
} Hpack;

int hpack_copy(Hpack *to, const Hpack *from);
void hpack_clear(Hpack *table);
int hpack_decode(Hpack *table, const char *block, size_t length, int (*each)(HpackText, HpackText, void *),
                 void *context);

/* ---- reader.c ------------------------------------------------------------------------------------------------ */
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
    int heads;  /* that the current write has completed */
    bool known; /* the last of them has a body of a known length, and rules alone permit it */
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
void reader_begin_body(Reader *reader, uint64_t length);
int malformed(const char *why);

#endif
