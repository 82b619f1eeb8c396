/* What the network half of the core shares:
 *   hosts.c     names and addresses, canonical       urls.c      URLs, read strictly
 *   network_rules.c   matching against the rules           net_decide.c    from a target to a verdict
 *   unguarded_bypass.c     the way past the clients' adapters   fast_paths.c     the usual request, without their wrappers
 *   resolver.c  name lookups and what they led to    tickets.c   permitted requests and the connections they need
 *   sockets.c   connecting, receiving                endpoints.c which addresses may be dialled
 *   sending.c   sending                              binding.c   binding, listening, making sockets
 *   unix_sockets.c      AF_UNIX addresses                    wire.c      a connection that was opened for requests
 *   reader.c    HTTP/1.x as it is written            requests.c  one request
 *   http2.c    HTTP/2 as it is written              hpack.c     its compressed headers
 *   tls.c       TLS objects, and what they encrypt   tls_records.c     the records they give out
 *   client_errors.c   denials inside errors of clients
 */
#ifndef DEMOCRAI_NETWORK_H
#define DEMOCRAI_NETWORK_H

#include "core.h"

/* ---- hosts.c ------------------------------------------------------------------------------------- */
enum { MAX_HOST = 253, MAX_TARGET = 64 * 1024 - 1, MAX_PORT = 65535 };

typedef struct {
    int version; /* 4 or 6; a mapped address is a 4 */
    unsigned char bytes[16];
} Address;

typedef struct {
    char text[MAX_HOST + 3]; /* canonical */
    char key[MAX_HOST + 3];  /* the same, but one for all spellings of the loopback host */
    bool is_address;
    Address address;
} Host;

extern PyObject *invalid_target;
int refuse_target(const char *why);
char *put_text(char *out, const char *text);
char *put_number(char *out, unsigned number);
int address_read(const char *text, Address *out);
void address_text(const Address *address, char *out);
bool address_is_forbidden(const Address *address);
bool address_is_loopback(const Address *address);
void host_of_address(const Address *address, Host *out);
int host_read(const char *text, size_t length, bool colons, Host *out);
void host_clear(Host *host);
void host_copy(Host *to, const Host *from);
int host_of_object(PyObject *object, Host *out);
bool host_is_own(const Host *host);

/* ---- urls.c -------------------------------------------------------------------------------------- */
typedef struct {
    char *key;           /* "U<scheme>|<host key>|<port>|<path>", owned */
    size_t base, length; /* without the path; with it */
    const char *scheme;  /* points into `memory` */
    char *memory;
    int port;
    bool ambiguous;
    Host host;
} Url;

extern PyObject *parse_url, *normalise_host;
int default_ports_set(PyObject *ports);
int url_read(const char *text, size_t length, Url *out);
int url_of_object(PyObject *object, Url *out);
int url_with_scheme(Url *url, const char *scheme);
PyObject *url_text(const Url *url);
const char *url_path(const Url *url);
void url_clear(Url *url);
int default_port(const char *scheme);
bool is_secure(const char *scheme);
int port_of_object(PyObject *object, bool zero);

/* ---- network_rules.c ----------------------------------------------------------------------------------- */
typedef struct {
    const Host *host;
    int port; /* 0: none in particular */
} SocketTarget;

typedef unsigned (*Matcher)(const NetIndex *index, const void *what);
unsigned match_url(const NetIndex *index, const void *url);
unsigned match_origin(const NetIndex *index, const void *url);
unsigned match_socket(const NetIndex *index, const void *socket);
unsigned match_any_port(const NetIndex *index, const void *host);
unsigned match_name(const NetIndex *index, const void *host);
unsigned match_unix(const NetIndex *index, const void *text);
unsigned match_literal(const NetIndex *index, const void *host);
unsigned state_net(const State *state, Matcher match, const void *what);
bool net_narrowed_away(const State *state, unsigned operation, Matcher match, const void *what);
bool declared_literally(const State *state, const Address *address);

/* ---- shadow.c ------------------------------------------------------------------------------------ */
enum { WHEN_ASKED = 1, WHEN_DONE = 2 }; /* of one act: where it is asked for, and where it is done */
unsigned candidate_net(const State *state, Matcher match, const void *what);
void shadow_net(State *state, unsigned operation, Matcher match, const void *what, PyObject *target, int height);
void shadow_url(State *state, unsigned operations, Matcher match, const Url *url, int height);
void shadow_told(State *state, unsigned operation, PyObject *target);
void shadow_socket(State *state, const Host *host, int port, bool allowed, int height);

/* ---- net_decide.c ------------------------------------------------------------------------------------ */
extern PyObject *observer;
const char *net_operation(unsigned operation);
PyObject *host_target(const char *host, int port);
int net_require(State *state, unsigned operation, Matcher match, const void *what, PyObject *target);
int net_granted(State *state, unsigned operation, Matcher match, const void *what, PyObject *target);
int net_deny(State *state, unsigned operation, PyObject *target);
int net_deny_text(State *state, unsigned operation, const char *target);
int endpoints_ready(PyObject *module);
int observe(State *state, const Host *name, const Address *address, int port);
int note_name(State *state, const Host *host);
bool name_noted(const State *state, const Host *host);

/* ---- resolver.c ---------------------------------------------------------------------------------- */
int each_name(const Address *address, int (*visit)(const Host *name, void *context), void *context);
PyObject *addresses_of(const Host *name, const char *dialled);
int resolver_ready(void);
int check_name(State *state, const Host *host, int port);
bool may_lead_to(const State *state, const Host *name, const Address *address);
int resolve_host(State *state, const Host *host, int family, int port, Address *out);
PyObject *on_getaddrinfo(State *state, Call *call);
PyObject *on_gethostbyname(State *state, Call *call);
PyObject *on_reverse(State *state, Call *call);

/* ---- wire.c, requests.c -------------------------------------------------------------------------- */
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

typedef struct {
    const char *text; /* from the method to the empty line */
    size_t length;
    bool chunked, websocket, connects, closing;
    uint64_t body;
    int tunnel_port; /* of CONNECT */
    Host tunnel;     /* likewise, and not set otherwise */
} WireRequest;
typedef struct {
    char scheme[8];
    Host host, shown; /* shown: the name in the TLS handshake, if there was one */
    int port;
} WireOrigin;
Wire *wire_inside(const WireOrigin *origin);
int line_check(State *state, const WireOrigin *origin, const char *head, size_t length);
int stream_check(State *state, const WireOrigin *origin, const char *method, const char *path, const char *host,
                 bool body);
int request_check(State *state, const WireOrigin *origin, WireRequest *request, PyObject **socket_url);

/* ---- http2.c, hpack.c ----------------------------------------------------------------------------- */
typedef struct Frames Frames;
Frames *frames_new(void);
Frames *frames_copy(const Frames *from);
void frames_drop(Frames *frames);
Py_ssize_t frames_read(Frames *frames, State *state, const WireOrigin *origin, const char *data, size_t length);

/* ---- tls_records.c: what a TLS object gave out to be sent -------------------------------------------------- */
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

/* ---- tickets.c ----------------------------------------------------------------------------------- */
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
Ticket *ticket_current(const State *state); /* borrowed; NULL when no request is under way here */
PyObject *core_request(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *core_origin(PyObject *module, PyObject *args);
PyObject *core_websocket(PyObject *module, PyObject *url);
PyObject *core_websocket_use(PyObject *module, PyObject *args);
PyObject *core_subject_key(PyObject *module, PyObject *unused);
int ticket_begin(PyObject *ticket); /* as its `with` does; nothing to do for None */
int ticket_end(PyObject *ticket);   /* whatever is raised stays so */
PyObject *core_may_use(PyObject *module, PyObject *socket);
PyObject *core_read_url(PyObject *module, PyObject *text);
PyObject *core_url_mask(PyObject *module, PyObject *args);
PyObject *core_socket_mask(PyObject *module, PyObject *args);
PyObject *core_name_mask(PyObject *module, PyObject *args);

/* ---- unguarded_bypass.c, fast_paths.c, client_errors.c ------------------------------------------------------------------- */
typedef struct Usual Usual;
/* NULL without an exception: not the usual case, the wrapper has to see to it. */
typedef PyObject *(*UsualWay)(const Usual *usual, PyObject *const *args, size_t nargs, PyObject *names);
struct Usual {
    UsualWay way;
    PyObject *original, *objects[2]; /* objects: as each way needs them, such as the client's own transport */
    bool everyone;                   /* there is something to do for unguarded callers, too */
};
int usual_read(PyObject *given, PyObject *original, Usual *out);
PyObject *own_attribute(PyObject *object, PyObject *name);
void let_denial_out(PyObject *lets_out);
PyObject *outlet_new(PyObject *inner, PyObject *lets_out);
PyObject *core_gate(PyObject *module, PyObject *args);

/* ---- sockets.c, binding.c, unix_sockets.c, tls.c ---------------------------------------------------------- */
typedef struct {
    PyObject *value; /* what is passed on, owned */
    Wire *wire;
    int handle; /* an O_PATH handle that the address goes through, or -1 */
    bool asked; /* no rule allowed it, an approval did */
} Dial;

void dial_clear(Dial *dial);
int dial(State *state, PyObject *socket, PyObject *given, bool tickets, Dial *out);
int peer_is_permitted(State *state, int fd);
bool is_unnamed_pair(int fd);
int sockets_found(PyTypeObject *type);
void explain_new_socket(State *state, PyObject *args, PyObject *kwargs);
int check_new_socket(State *state, PyObject *args, PyObject *kwargs);
bool plain_numbers(PyObject *args, PyObject *kwargs);
int check_made_socket(State *state, int fd, int claimed);
bool is_socket_object(PyObject *object); /* of any copy of _socket */
int socket_number(PyObject *socket); /* -1 when closed or no socket object of the base type */
int socket_family(PyObject *socket);
int may_transfer(State *state, int fd, Wire **wire);
int permit_endpoint(State *state, const Address *address, int port, const Host *name, bool tickets, Wire **wire,
                    bool *asked);
int unix_connect(State *state, PyObject *address, PyObject **replacement, int *handle);
int unix_bind(State *state, PyObject *address, PyObject **replacement);
PyObject *on_connect(State *state, Call *call);
PyObject *on_sendto(State *state, Call *call);
PyObject *on_sendmsg(State *state, Call *call);
PyObject *on_send(State *state, Call *call);
PyObject *on_receive(State *state, Call *call);
bool lacks_peer(int fd);
PyObject *on_option(State *state, Call *call);
PyObject *on_afalg(State *state, Call *call);
PyObject *core_deny_foreign(PyObject *module, PyObject *unused);
PyObject *on_bind(State *state, Call *call);
PyObject *on_listen(State *state, Call *call);
PyObject *on_accept(State *state, Call *call);
PyObject *on_detach(State *state, Call *call);
PyObject *on_socketpair(State *state, Call *call);
PyObject *on_wrap_socket(State *state, Call *call);
PyObject *on_wrap_bio(State *state, Call *call);
PyObject *on_tls_write(State *state, Call *call);
PyObject *on_tls_read(State *state, Call *call);
PyObject *on_bio_read(State *state, Call *call);
PyObject *on_bio_write(State *state, Call *call);
int ssl_patch(PyObject *module);

#endif
