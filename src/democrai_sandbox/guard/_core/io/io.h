/* Decisions about paths and descriptors, and the calls that take them; socket and TLS objects. */
#ifndef DEMOCRAI_IO_H
#define DEMOCRAI_IO_H

#include "rules/rules.h"
#include "core/core.h"
#include "network/network.h"

/* ---- path_decide.c ------------------------------------------------------------------------------------------- */
enum {
    FOLLOW = 1,        /* a link in the last place is followed (unless follow_symlinks says otherwise) */
    PARENT = 2,        /* hold the folder, not the object: it may not exist, or must not be followed */
    PROBE = 4,         /* an exists-style question: library code gets "not found" for an answer */
    ANY = 8,           /* one of the wanted operations is enough; the caller finds out which it is */
    STAT = 16,         /* ask the handle itself */
    DEFAULTS = 32,     /* without an argument it means the working directory */
    ANSWERS = 64,      /* answers False where others raise */
    LOOK = 128,        /* tells that something is there and of what kind, and nothing of its content */
    TAKES_FOLDER = 256, /* takes a descriptor of the folder beside the name, or a path through it */
    REMOVES = 512,      /* resolve() also removes the name from the folder that it holds */
    REMOVES_FOLDER = 1024, /* the name is that of a folder */
};

typedef struct {
    char path[PATH_MAX];
    int fd; /* O_PATH handle of the object, or of its parent; -1 */
    unsigned granted;
    bool told; /* whether the next one is filled, for STAT */
    struct stat info;
    int unremoved; /* for REMOVES, which leaves no handle: 0 or the error */
} Resolved;

unsigned never_approved(unsigned mask);
int grant_quietly(State *state, const char *path, unsigned wanted, unsigned *granted); /* without the shadow check */
int grant(State *state, const char *path, unsigned wanted, unsigned *granted);
int require(State *state, const char *path, unsigned wanted);
int resolve(State *state, PathText *text, unsigned wanted, int how, Resolved *out);
unsigned location_mask(State *state, const char *path);
void location_masks_forget(void);
bool is_location_of_code(State *state, const PathText *text);
int find_location(const PathText *text, int follow, char *path);
int location_of(const PathText *text, int follow, char *path);
int check_dots(State *state, const PathText *text);
bool path_narrowed_away(const State *state, const char *path, unsigned bit);

/* ---- files.c ------------------------------------------------------------------------------------------------- */
extern Row *stat_row;
PyObject *on_path(State *state, Call *call);
PyObject *on_path_pair(State *state, Call *call);
PyObject *on_symlink(State *state, Call *call);
PyObject *on_entry(State *state, Call *call);
PyObject *on_certificates(State *state, Call *call);
PyObject *on_file_argument(State *state, Call *call);
PyObject *on_device(State *state, Call *call);
PyObject *on_named_by_environment(State *state, Call *call);
PyObject *on_bind_line(State *state, Call *call);
PyObject *on_catalogue(State *state, Call *call);
int home_ready(void);
PyObject *on_shared_memory(State *state, Call *call);
int directory_argument(State *state, const Call *call, const char *name, char *base, bool *given);

/* ---- folder_calls.c ------------------------------------------------------------------------------------------ */
typedef struct {
    Py_ssize_t at;        /* place of the name among the arguments */
    const char *argument; /* name of the argument for the folder */
    const char *name;
    PyObject *like; /* what the name is written like: text or bytes */
    int folder;
} Place;

bool call_takes_folders(const Call *call, const Place *places, int count);
PyObject *call_in_folders(const Call *call, const Place *places, int count);

/* ---- opens.c ------------------------------------------------------------------------------------------------- */
extern FAST_THREAD_LOCAL bool checked_open; /* this thread is inside an open that we made ourselves */
extern PyObject *opener;
PyObject *on_open(State *state, Call *call);
int announce_open(PyObject *path, const char *mode, int flags);
/* Returns a descriptor, or -1 with an exception. The mode in `info`, unless NULL, is 0 if fstat() failed. */
int guarded_open(State *state, PathText *text, int flags, int mode, struct stat *info);

/* ---- file_objects.c ------------------------------------------------------------------------------------------ */
extern PyCFunction fileio_fileno;
int file_objects_ready(void);
int fileio_patch(PyObject *module);

/* ---- listings.c ---------------------------------------------------------------------------------------------- */
PyObject *on_scan(State *state, Call *call);
PyObject *on_listdir(State *state, Call *call);
int listings_ready(void);
bool entry_has_answer(PyObject *entry, bool follow);
PyObject *entry_path(PyObject *entry);
void entry_keep_answer(PyObject *entry, bool follow, PyObject *answer);

/* ---- stat_results.c ------------------------------------------------------------------------------------------ */
int stat_results_ready(void);
PyObject *stat_object(const struct stat *info);

/* ---- descriptors.c ------------------------------------------------------------------------------------------- */
enum {
    WANT_MANAGE = 512, /* closing, duplicating over, changing flags: only one's own */
    WANT_PATH = 1024,  /* also for one's own: the kernel does not ask how it was opened (fchmod, utime, ...) */
    WANT_PLACE = 2048  /* at a place of the file, or its size: standard streams are only read and written in turn */
};

PyObject *on_descriptor(State *state, Call *call);
PyObject *on_descriptor_pair(State *state, Call *call);
PyObject *on_new_descriptor(State *state, Call *call);
PyObject *on_dup2(State *state, Call *call);
PyObject *on_close(State *state, Call *call);
PyObject *on_refuse_descriptor(State *state, Call *call);
PyObject *on_file_write(State *state, Call *call);
PyObject *on_file_place(State *state, Call *call);
int fcntl_check(State *state, PyObject *request, PyObject *argument);
int ioctl_check(State *state, PyObject *number, PyObject *request);
int refuse_internet_socket(State *state, PyObject *number);
PyObject *on_fault_file(State *state, Call *call);
bool descriptor_owned(const State *state, int fd, Wire **wire);
void descriptor_attach(int fd, Wire *wire);
void descriptor_approved(const State *state, int fd);
Wire *descriptor_wire(int fd);
bool descriptor_has_wire(const State *state, int fd);
void descriptor_adopt(State *state, int fd);
void descriptor_hold(int fd);
void descriptor_port_chosen(int fd);
bool descriptor_has_chosen_port(int fd);
PyObject *descriptor_number(PyObject *object);
int descriptor_exact(PyObject *number, int *fd);
int descriptor_check(State *state, PyObject *number, unsigned wanted);

/* ---- databases.c --------------------------------------------------------------------------------------------- */
PyObject *on_authoriser(State *state, Call *call);
PyObject *on_sql(State *state, Call *call);
PyObject *on_dbm(State *state, Call *call);
int databases_patch(PyObject *module);

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
