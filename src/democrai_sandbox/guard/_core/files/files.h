/* Paths and descriptors: from a path to a decision, and the calls that take one. */
#ifndef DEMOCRAI_FILES_H
#define DEMOCRAI_FILES_H

#include "rules/rules.h"
#include "core/core.h"
#include "patching/patching.h"
#include "wire/wire.h"

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

#endif
