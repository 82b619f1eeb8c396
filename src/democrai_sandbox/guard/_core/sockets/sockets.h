/* Socket and TLS objects: making, connecting, binding, sending and receiving. */
#ifndef DEMOCRAI_SOCKETS_H
#define DEMOCRAI_SOCKETS_H

#include "rules/rules.h"
#include "core/core.h"
#include "patching/patching.h"
#include "network/network.h"
#include "wire/wire.h"
#include "files/files.h"

/* ---- sockets.c ----------------------------------------------------------------------------------------------- */
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
int socket_number(PyObject *socket); /* -1 when closed or no socket object of the base type */
int socket_family(PyObject *socket);
int may_transfer(State *state, int fd, Wire **wire);
PyObject *on_connect(State *state, Call *call);
PyObject *on_receive(State *state, Call *call);

/* ---- new_sockets.c ------------------------------------------------------------------------------------------- */
int socket_patch(PyObject *module);
bool is_socket_object(PyObject *object); /* of any copy of _socket */

/* ---- endpoints.c --------------------------------------------------------------------------------------------- */
int permit_endpoint(State *state, const Address *address, int port, const Host *name, bool tickets, Wire **wire,
                    bool *asked);

/* ---- sending.c ----------------------------------------------------------------------------------------------- */
PyObject *core_may_use(PyObject *module, PyObject *socket);
PyObject *core_request_on(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
PyObject *on_sendto(State *state, Call *call);
PyObject *on_sendmsg(State *state, Call *call);
PyObject *on_send(State *state, Call *call);
bool lacks_peer(int fd);
PyObject *on_option(State *state, Call *call);
PyObject *on_afalg(State *state, Call *call);
PyObject *core_deny_foreign(PyObject *module, PyObject *unused);

/* ---- binding.c ----------------------------------------------------------------------------------------------- */
void explain_new_socket(State *state, PyObject *args, PyObject *kwargs);
int check_new_socket(State *state, PyObject *args, PyObject *kwargs);
bool plain_numbers(PyObject *args, PyObject *kwargs);
int check_made_socket(State *state, int fd, int claimed);
PyObject *on_bind(State *state, Call *call);
PyObject *on_listen(State *state, Call *call);
PyObject *on_accept(State *state, Call *call);
PyObject *on_detach(State *state, Call *call);
PyObject *on_socketpair(State *state, Call *call);

/* ---- unix_sockets.c ------------------------------------------------------------------------------------------ */
PyObject *on_system_log(State *state, Call *call);
int unix_connect(State *state, PyObject *address, PyObject **replacement, int *handle);
int unix_bind(State *state, PyObject *address, PyObject **replacement);

/* ---- tls.c --------------------------------------------------------------------------------------------------- */
PyObject *on_wrap_socket(State *state, Call *call);
PyObject *on_wrap_bio(State *state, Call *call);
PyObject *on_tls_write(State *state, Call *call);
PyObject *on_tls_read(State *state, Call *call);
PyObject *on_bio_read(State *state, Call *call);
PyObject *on_bio_write(State *state, Call *call);
int ssl_patch(PyObject *module);

#endif
