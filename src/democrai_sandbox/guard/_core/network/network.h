/* Deciding on network targets: rules and approvals, name lookups, tickets for requests, and the way past the
 * adapters. */
#ifndef DEMOCRAI_NETWORK_H
#define DEMOCRAI_NETWORK_H

#include "rules/rules.h"
#include "core/core.h"
#include "patching/patching.h"

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

#endif
