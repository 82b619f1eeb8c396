/* The native core of the guard: what guarded Python must not be able to reach.
 *
 * One concern a file:
 *   policy.c    compiled roots and their lookup        state.c     guard states, floor, ContextVar
 *   paths.c     conversion, normalising, resolving     path_decide.c   deciding, denying, asking the decider
 *   patch.c     replacing method entries and slots     table.c     every patched entry, in one table
 *   files.c     path-taking calls                      opens.c     os.open, FileIO
 *   descriptors.c  numbers that name open files        children.c children and their environment
 *   imports.c   sensitive roots, native modules        audit.c     the audit hook
 *   bound.c     a callable with its state              handover.c  callables kept for later, contexts
 *   callback_holders.c   Python classes that keep callables     finalizers.c  what runs when an object goes
 *   protected_names.c     our own names, not to be replaced      guards.c  Guard objects: with, async with, run
 *   databases.c sqlite3, dbm                           listings.c  listdir, scandir
 *   access_question.c  what is put to the decider             library_import.c   library modules being imported
 *   guarded_awaitables.c     guarded coroutines and generators      denials.c   refusing, recording, who asks
 *   audit_hook_list.c  the hook is in only while needed       module.c    the module, settings, trying the patches
 *   decisions.c what the decider said                  late_modules.c      modules that are loaded later
 *   replaced_methods.c  methods of native types, exchanged for guarded code
 *   native_modules.c   native modules, each copy of them      host_settings.c  what of the process is the host's
 *   foreign_functions.c   use of ctypes and cffi                folder_calls.c   names in folders that are held open
 *   environment.c  os.environ, as guarded code sees it  context_views.c  contexts without our variables
 *   code_owner.c whose code it is, wherever it runs  shadow.c    a candidate beside what is in force
 *   plain_data.c     data that crosses a guard          worker_messages.c  frames of workers, read with limits
 *   tracing.c   trace and profile functions        monitoring.c  sys.monitoring
 *   stat_results.c     answers of os.stat
 * The network half is listed in network.h.
 */
#ifndef DEMOCRAI_CORE_H
#define DEMOCRAI_CORE_H

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030E0000
#error "the guard's core supports CPython 3.11 to 3.13"
#endif
#ifdef Py_GIL_DISABLED
#error "the guard's core does not support free-threaded builds: its tables rely on the GIL"
#endif

/* Found by an offset from the thread pointer, without a call: these are read on every file operation. */
#define FAST_THREAD_LOCAL _Thread_local __attribute__((tls_model("initial-exec")))

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* The value of a hexadecimal digit; -1 for any other character. */
static inline int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* ---- operations: the bits of democrai_sandbox.policy.FileAccess ---------------------------- */
enum {
    OP_READ = 1,
    OP_CREATE = 2,
    OP_MODIFY = 4,
    OP_DELETE = 8,
    OP_EXECUTE = 16,
    OP_ALL = 31,
    FLAG_CODE = 32,      /* a read-only code root: interpreter, standard library, site-packages */
    FLAG_IMPORT = 64,    /* a directory only the import machinery may look into */
    FLAG_OWNED = 128,    /* counts below a protected path too: the runtime gave it to this subject */
    FLAG_STREAM = 2048,  /* may be opened for writing, and nothing else be done to it: /dev/null */
    FLAG_IMPORTABLE = 8192, /* a folder of the application's: what the import system loads is readable, the rest is not */
    FLAG_PROTECTED = 256, /* nothing here or below, whatever other entries say */
    FLAG_ABOVE = 4096,    /* a folder around something protected: it cannot be moved or replaced, also with an approval */
    FLAG_READ_ONLY = 16384, /* code of the host: a wider grant does not make it writable, a narrower one below it does */
    FLAG_PINNED = 32768   /* a link on the way to code of the host: it stays where it is */
};
#define OP_WRITING ((unsigned)(OP_CREATE | OP_MODIFY | OP_DELETE))

/* ---- policy.c ------------------------------------------------------------------------------ */
#define MAX_PREFIXES (PATH_MAX / 2 + 2)

typedef struct {
    const char *path;
    int count;
    uint64_t hash[MAX_PREFIXES];
    uint16_t length[MAX_PREFIXES];
} PathKey;

typedef struct {
    uint64_t hash;
    uint32_t offset;
    uint16_t length;
    uint16_t declared;
    uint16_t owned;
    uint8_t is_protected;
    uint8_t above_protected;
    uint8_t read_only;
} Entry;

/* Network rules: the bits of democrai_sandbox.policy.NetworkAccess, by key. */
enum { NET_CONNECT = 1, NET_RECEIVE = 2, NET_SEND = 4, NET_ALL = 7 };

typedef struct {
    uint64_t hash;
    uint32_t offset, length;
    unsigned mask;
} NetEntry;

typedef struct {
    NetEntry *table;
    size_t slots;
    char *arena;
    int depth;                        /* segments of the deepest path */
    bool lengths4[33], lengths6[129]; /* which prefix lengths there are */
    bool has4, has6;
    unsigned kinds; /* a bit for each letter that a key begins with */
} NetIndex;

int net_index_build(NetIndex *index, PyObject *entries);
void net_index_clear(NetIndex *index);

typedef struct Policy {
    PyObject_HEAD Entry *table;
    size_t slots;     /* a power of two; 0 without entries */
    uint64_t *listed; /* a bit for each hash: most of the folders on the way to a path are not in the table */
    char *arena;
    uint32_t *order; /* the places in the table of all entries that give something, in the order of their paths */
    size_t given;
    uint64_t id;
    PyObject *subject, *kind; /* exact str */
    PyObject *imports;        /* frozenset of sensitive roots this subject may use */
    PyObject *declared;       /* what the Python face wants back for views: immutable values */
    PyObject *ancestors;      /* tuple of "kind:name": the chain of the process that started this one */
    NetIndex network;
    bool allow_subprocess;
    bool named_programs; /* names the programs that may be started, by entries to execute */
    bool include_runtime;
    bool network_only;   /* says nothing about files, imports and processes */
    PyObject *opened_by; /* exact str: the public function that the host called for it; empty for the runtime's own */
    const struct Policy *candidate; /* what its subject is held against; not owned, valid for its generation alone */
    uint64_t candidate_generation;
    struct State *resident; /* as which code runs that is marked as this subject's; not owned, NULL without any */
} Policy;

extern PyTypeObject Policy_Type;
PyObject *policy_new(PyObject *module, PyObject *args, PyObject *kwargs);
void path_key(PathKey *key, const char *path);
unsigned policy_mask(const Policy *policy, const PathKey *key);
unsigned policy_mask_beside(const Policy *policy, const PathKey *key, unsigned given_by_other);
bool policy_gives_below(const Policy *policy, const char *path, bool owned);
int file_may_be_subjects(const char *path);
PyObject *core_is_importable(PyObject *module, PyObject *args);

/* ---- state.c ------------------------------------------------------------------------------- */
typedef enum {
    MODE_MERGE,  /* own entries or those of the parent: contexts the runtime enters */
    MODE_EXACT,  /* own entries only: a tool's own declaration, MCP */
    MODE_NARROW, /* own entries and those of the parent: a context guarded code opened by itself */
    MODE_BYPASS  /* runtime internals: no guard, until it is left */
} Mode;

typedef struct State {
    PyObject_HEAD struct State *parent;
    Policy *policy; /* NULL only for MODE_BYPASS */
    Mode mode;
    bool allow_subprocess;
    PyObject *user, *organization, *session;
    PyObject *decisions; /* dict: resource, operation and target -> what the decider said */
    uint64_t generation; /* of approvals, when they were asked for */
    uint64_t serial;     /* of this activation */
    PyObject *view;      /* tuple for the Python face, made on first use */
    PyObject *dialled;   /* (address, port) that rules permitted last: most connections go where others went before */
    int dialled_family;
    Policy *guest;           /* whose code an entrance has called here */
    PyObject *served;        /* whom the host was serving when it entered; guarded code inherits it from around it */
    PyFrameObject *entering; /* of a with statement that entered a bypass; not owned, gone when it is left */
} State;

extern PyTypeObject State_Type;
extern Py_ssize_t live_states;
extern PyObject *state_variable, *served_variable, *ticket_variable;
extern Policy *runtime_policy, *code_policy;

typedef struct {
    State *floor;
    void *boundary;
    PyObject *previous;
} Entered;

/* Set by the parts that follow the state in force. Each is called only while its number says that it is needed. */
extern Py_ssize_t tracings;          /* trace functions and tools that subjects have installed */
extern void (*tracing_follow)(void); /* the state in force has changed */
extern void (*tracing_gone)(const State *state);
extern int wakeup_lent;              /* the number that guarded code has set for signals, or -1 */
extern void (*wakeup_restore)(void); /* the last guard of the thread was left */

/* The part of a ticket that the core reads; network/tickets.c has the rest. */
typedef struct {
    PyObject_HEAD bool open;
} CarriedTicket;
extern PyTypeObject *ticket_type;
extern Py_ssize_t open_tickets;
PyObject *ticket_carried(void);             /* new reference or NULL; for callables handed over */
PyObject *ticket_carry(PyObject *ticket);   /* sets it, returns what was there; NULL on error */
void ticket_restore(PyObject *carried);     /* steals it; NULL: nothing to do */

int state_ready(void);
State *state_new(State *parent, Policy *policy, Mode mode, bool allow_subprocess, PyObject *identity);
State *state_current(void);  /* borrowed; bypass states included; NULL when there is none */
PyObject *variable_set(PyObject *variable, PyObject *value);
int variable_put(PyObject *variable, PyObject *value); /* without a token; does it or changes nothing */
int variables_ready(void);
int collection_pause(void);
void collection_resume(int paused);
void collection_release(void);
int collection_ready(void);
State *state_guarding(void); /* borrowed; NULL when nothing restricts the caller */
bool state_descends(const State *state, const State *ancestor);
State *state_of_context(PyObject *context); /* borrowed */
int state_enter(State *state, Entered *entered);
void state_leave(Entered *entered);
bool context_is_clean(void);
void context_found_clean(void);
State *floor_get(void);
void floor_set(State *state);
void *boundary_get(void); /* the frame from which the floor was entered */
void boundary_set(void *frame);
unsigned state_mask(const State *state, const PathKey *key);
bool state_gives_below(const State *state, const char *path, bool owned);
PyObject *state_view(State *state);
bool state_allows_import(const State *state, PyObject *root);
bool state_has_policy(const State *state, uint64_t policy_id);
bool state_has_subject(const State *state, const Policy *policy);
bool state_has_guest(const State *state, const Policy *policy);
int frameviews_ready(void);
bool code_is_ours(PyCodeObject *code);
bool code_is_hidden(State *state, PyCodeObject *code);
int ownviews_ready(void);
PyObject *type_dictionary(PyTypeObject *type);
int ownviews_settle(void);
unsigned state_declared_mask(const State *state, const PathKey *key);
bool state_guards_network_only(const State *state);
bool state_names_programs(const State *state);

/* ---- shadow.c ------------------------------------------------------------------------------ */
extern PyObject *watcher;
extern Py_ssize_t candidates_held; /* nothing of this costs anything while there are none */
extern bool by_candidate;
const Policy *candidate_of(const State *state);
int candidate_set(PyObject *label, PyObject *policy);
PyObject *core_candidate(PyObject *module, PyObject *args);
void shadow_path(State *state, const char *path, unsigned wanted);
void shadow_open(State *state, const char *path, unsigned must, unsigned either);
void shadow_import(State *state, PyObject *root, bool (*allows)(const State *, PyObject *));
bool shadow_concerns(const State *state);

/* ---- code_owner.c --------------------------------------------------------------------------- */
extern Py_ssize_t residents; /* policies that have marked code */
int residents_ready(void);
const Policy *resident_owner(PyCodeObject *code);
int resident_take(State *state, PyObject *code);
void *frame_here(void);
bool frame_works_here(const PyFrameObject *frame);
bool frame_is_for(State *state, const PyFrameObject *frame);
Policy *state_subject(const State *state);
State *resident_running(const State *state, const void *boundary);
void resident_gone(State *state);
int resident_claim(State *state, PyObject *made);
int resident_exec(State *state, PyObject *code);
int resident_inherit(State *state, PyObject *code, PyObject *copy);
PyObject *core_own_code(PyObject *module, PyObject *code);

/* ---- paths.c ------------------------------------------------------------------------------- */
typedef struct {
    PyObject *object; /* exact str or bytes, owned */
    PyObject *shown;  /* in errors: the object that the caller gave, borrowed */
    char text[PATH_MAX];
    char raw[PATH_MAX]; /* absolute, as the kernel would walk it */
    bool directory;     /* ended in a slash: only a directory will do */
    size_t written;     /* where in `raw` the caller's own words begin, behind the working directory */
    bool dotted;        /* has "..": after a link that means the link's target, which only the kernel knows */
} PathText;

enum {
    FOLLOW = 1,    /* a link in the last place is followed (unless follow_symlinks says otherwise) */
    PARENT = 2,    /* hold the folder, not the object: it may not exist, or must not be followed */
    PROBE = 4,     /* an exists-style question: library code gets "not found" for an answer */
    ANY = 8,       /* one of the wanted operations is enough; the caller finds out which it is */
    STAT = 16,     /* ask the handle itself */
    DEFAULTS = 32, /* without an argument it means the working directory */
    ANSWERS = 64,  /* answers False where others raise */
    LOOK = 128,    /* tells that something is there and of what kind, and nothing of its content */
    TAKES_FOLDER = 256 /* takes a descriptor of the folder beside the name, and means the same by a path through it */
};

typedef struct {
    char path[PATH_MAX];
    int fd; /* O_PATH handle of the object, or of its parent; -1 */
    unsigned granted;
    bool told; /* whether the next one is filled, for STAT */
    struct stat info;
} Resolved;

int path_is_descriptor(PyObject *object);
PyObject *path_exact(PyObject *object);
int path_text(PyObject *object, PathText *out);
int path_text_at(PyObject *object, const char *base, PathText *out);
int path_canonical(const char *raw, int follow, char *out);
int path_normalise(const char *raw, char *out);
int path_of_descriptor(int fd, char *out);
int open_beneath(const char *path, int flags, int mode);
PyObject *path_object(const char *text, PyObject *like);
PyObject *path_handle_object(int fd, const char *base, PyObject *like);
int openat2_missing(void);

/* Whether this is the memory of a process, which is not a file wherever a rule puts it. */
static inline bool path_is_memory(const char *path)
{
    size_t length = strlen(path);
    return strncmp(path, "/proc/", 6) == 0 && length > 10 && strcmp(path + length - 4, "/mem") == 0;
}

/* ---- path_decide.c ----------------------------------------------------------------------------- */
typedef enum {
    DENY_FILESYSTEM,
    DENY_DESCRIPTOR,
    DENY_MODULE,
    DENY_SUBPROCESS,
    DENY_ENVIRONMENT,
    DENY_TAMPER,
    DENY_NETWORK,
} DenialKind;

/* decisions.c */
extern PyObject *decider, *check_failed, *decision_type;
void raise_check_failed(void);
PyObject *access_changed(PyObject *module, PyObject *unused);
State *answering(State *state);
PyObject *decisions_of(State *state);
/* A question to the decider, but for who asks. */
typedef struct {
    const char *resource, *operation;
    PyObject *target;
    bool registers;
    const char *action; /* NULL for what the guard asks by itself */
    PyObject *context;  /* likewise */
} Asked;

int approved(State *state, const char *resource, const char *operation, PyObject *target, bool registers,
             PyObject **answer);

extern PyObject *denial_factory, *recorder, *facade_files;
PyObject *recent_denials(PyObject *module, PyObject *unused);
extern bool recording;
extern size_t denials_made;

void operation_text(unsigned bits, char *out);
PyObject *call_outside(State *state, PyObject *function, PyObject *args);
unsigned never_approved(unsigned mask);
extern _Thread_local bool probing;
PyObject *core_tell_probes(PyObject *module, PyObject *unused);
PyObject *core_is_probe(PyObject *module, PyObject *unused);
int grant_quietly(State *state, const char *path, unsigned wanted, unsigned *granted); /* the host is told elsewhere */
int grant(State *state, const char *path, unsigned wanted, unsigned *granted);
int require(State *state, const char *path, unsigned wanted);
int resolve(State *state, PathText *text, unsigned wanted, int how, Resolved *out);
unsigned location_mask(State *state, const char *path);
int find_location(const PathText *text, int follow, char *path);
int location_of(const PathText *text, int follow, char *path);
int check_dots(State *state, const PathText *text);
void *deny(State *state, DenialKind kind, const char *operation, PyObject *target);
void *deny_decided(State *state, DenialKind kind, const char *operation, PyObject *target, PyObject *decision);
void *deny_path(State *state, const char *path, unsigned missing, bool probe);
int deny_given(State *state, const PathText *given, const char *path, unsigned missing, bool probe);
void *deny_text(State *state, DenialKind kind, const char *text);
bool asker_is_library(void);
bool code_is_library(PyCodeObject *code);
bool caller_is_library(void);
bool caller_is_library_of(PyCodeObject *code);
bool frame_is_import_machinery(void);
bool caller_is_importlib(void);
int importlib_ready(void);
PyObject *errno_error(PyObject *filename);
bool error_is_denial(void);
void errno_filename(PyObject *filename, PyObject *second);

/* ---- patch.c ------------------------------------------------------------------------------- */
typedef struct Row Row;

typedef struct {
    Row *row;
    PyObject *self;
    PyTypeObject *type; /* the defining class, for METH_METHOD */
    PyObject *const *args;
    Py_ssize_t nargs;
    PyObject *kwnames;
    PyObject *tuple; /* the same arguments as they came, to be passed on; NULL when they came otherwise */
} Call;

typedef PyObject *(*Handler)(State *state, Call *call);

enum { MAX_ARGS = 32 };

struct Row {
    const char *module, *owner, *name; /* owner: a type of the module, or "" for a function */
    Handler handler;
    unsigned operations;
    int how;
    const char *argument; /* name of the first path or descriptor argument */
    int index;            /* its position */
    bool optional;        /* absent in some interpreters or builds */
    int always;           /* 1: called for unguarded code too while any guard is alive; 2: at any time */
    PyCFunction trampolines[8];
    PyMethodDef *entry;
    PyObject *module_object;
    PyCFunction original;
    int flags;
};

extern Row rows[];
extern const int row_count;
extern Row *stat_row, *spawn_row, *execve_row, *getaddrinfo_row;
void table_ready(void);
typedef struct {
    const char *module;
    int (*patch)(PyObject *module); /* 1 when everything is patched, 0 when the module is still being imported */
    bool native;                    /* patched when it is created, under any name; see native_modules.c */
} LatePatch;
void late_tables(Row *table, int count, const LatePatch *patches, size_t patch_count);

PyObject *call_original(const Call *call);
PyObject *row_call(Row *row, PyObject *self, PyTypeObject *type, PyObject *const *args, Py_ssize_t nargs,
                   PyObject *kwnames);
PyObject *row_call_tuple(Row *row, PyObject *self, PyObject *args, PyObject *kwargs);
Py_ssize_t call_find(const Call *call, Py_ssize_t index, const char *name);

static inline Py_ssize_t call_count(const Call *call)
{
    return call->nargs + (call->kwnames ? PyTuple_GET_SIZE(call->kwnames) : 0);
}

int call_copy(const Call *call, PyObject **argv, Call *copy);
PyObject *call_with(const Call *call, Py_ssize_t at, PyObject *value);

/* folder_calls.c */
typedef struct {
    Py_ssize_t at;        /* place of the name among the arguments */
    const char *argument; /* name of the argument for the folder */
    const char *name;
    PyObject *like; /* what the name is written like: text or bytes */
    int folder;
} Place;

bool call_takes_folders(const Call *call, const Place *places, int count);
PyObject *call_in_folders(const Call *call, const Place *places, int count);
int patch_row(Row *row, PyObject *module);
int patch_slot(PyTypeObject *type, const char *descriptor, void **slot, void *replacement);
int patch_type(PyObject *module, const char *name, const char *descriptor, size_t offset, void *replacement,
               void *original);
bool has_slot(PyTypeObject *type, size_t offset, const void *replacement);
int patch_module(const char *name, PyObject *module);
int late_ready(void);
void late_settle(void);
int patch_loaded_modules(void);
bool modules_changed(void);
extern bool look_at_all_modules, finders_suspect;
int adapters_set(PyObject *functions);
int diverted_await(PyObject *rows);
extern PyTypeObject Diverted_Type;
int diverted_set(PyObject *rows);
int divert_module(const char *name, PyObject *module);

/* ---- handlers ------------------------------------------------------------------------------ */
PyObject *on_path(State *state, Call *call);
PyObject *on_path_pair(State *state, Call *call);
PyObject *on_symlink(State *state, Call *call);
PyObject *on_scan(State *state, Call *call);
PyObject *on_entry(State *state, Call *call);
PyObject *on_certificates(State *state, Call *call);
PyObject *on_file_argument(State *state, Call *call);
PyObject *on_device(State *state, Call *call);
PyObject *on_open(State *state, Call *call);
PyObject *on_descriptor(State *state, Call *call);
PyObject *on_descriptor_pair(State *state, Call *call);
PyObject *on_new_descriptor(State *state, Call *call);
PyObject *on_dup2(State *state, Call *call);
PyObject *on_close(State *state, Call *call);
PyObject *on_refuse_descriptor(State *state, Call *call);
PyObject *on_process(State *state, Call *call);
PyObject *on_fork(State *state, Call *call);
PyObject *on_process_handle(State *state, Call *call);
PyObject *on_own_signal(State *state, Call *call);
PyObject *on_spawn(State *state, Call *call);
PyObject *on_system(State *state, Call *call);
PyObject *on_fork_exec(State *state, Call *call);
PyObject *on_tamper(State *state, Call *call);
PyObject *on_context_run(State *state, Call *call);
PyObject *on_context_variable(State *state, Call *call);
PyObject *on_callable(State *state, Call *call);
PyObject *on_signal(State *state, Call *call);
PyObject *on_callables(State *state, Call *call);
PyObject *on_done_callback(State *state, Call *call);
PyObject *on_listdir(State *state, Call *call);
PyObject *bind_foreign(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
extern PyObject *handle_code;
PyObject *on_file_write(State *state, Call *call);
PyObject *on_file_place(State *state, Call *call);
int fcntl_check(State *state, PyObject *request, PyObject *argument);
int ioctl_check(State *state, PyObject *number, PyObject *request);
PyObject *on_wakeup_number(State *state, Call *call);
int refuse_internet_socket(State *state, PyObject *number);
PyObject *on_umask(State *state, Call *call);
PyObject *on_code_replace(State *state, Call *call);
PyObject *on_frame_clear(State *state, Call *call);
PyObject *on_method_reduce(State *state, Call *call);
PyObject *on_made_code(State *state, Call *call);
int listings_ready(void);
int stats_ready(void);
PyObject *stat_object(const struct stat *info);
bool entry_has_answer(PyObject *entry, bool follow);
PyObject *entry_path(PyObject *entry);
void entry_keep_answer(PyObject *entry, bool follow, PyObject *answer);
PyObject *on_fault_file(State *state, Call *call);
PyObject *on_named_by_environment(State *state, Call *call);
PyObject *on_bind_line(State *state, Call *call);
PyObject *on_catalogue(State *state, Call *call);
PyObject *on_system_log(State *state, Call *call);
int home_ready(void);
PyObject *on_wait(State *state, Call *call);
PyObject *on_host_setting(State *state, Call *call);
PyObject *on_codec_search(State *state, Call *call);
PyObject *on_codec_removal(State *state, Call *call);
PyObject *on_shared_setting(State *state, Call *call);
bool signal_is_subjects(int number);
PyObject *on_collector(State *state, Call *call);
PyObject *on_stack_size(State *state, Call *call);
PyObject *on_register_error(State *state, Call *call);
PyObject *on_nice(State *state, Call *call);
PyObject *on_screen(State *state, Call *call);
PyObject *on_own_thread(State *state, Call *call);
PyObject *on_display(State *state, Call *call);
PyObject *on_unregister(State *state, Call *call);
PyObject *on_enough_arguments(State *state, Call *call);
PyObject *on_signal_mask(State *state, Call *call);
void child_started(const State *state, PyObject *result);
PyObject *on_create_native(State *state, Call *call);
PyObject *on_exec_native(State *state, Call *call);
PyObject *on_authoriser(State *state, Call *call);
PyObject *on_sql(State *state, Call *call);
PyObject *on_dbm(State *state, Call *call);
PyObject *on_shared_memory(State *state, Call *call);
PyObject *on_secret_database(State *state, Call *call);

int directory_argument(State *state, const Call *call, const char *name, char *base, bool *given);

/* ---- descriptors.c ------------------------------------------------------------------------- */
typedef struct Wire Wire; /* see network.h: the socket was opened for requests, what is sent on it is read */
bool descriptor_owned(const State *state, int fd, Wire **wire);
void descriptor_attach(int fd, Wire *wire);
void descriptor_approved(const State *state, int fd);
bool descriptor_has_wire(const State *state, int fd);
void descriptor_adopt(State *state, int fd);
void descriptor_hold(int fd);
void descriptor_port_chosen(int fd);
bool descriptor_has_chosen_port(int fd);
PyObject *descriptor_number(PyObject *object);
int descriptor_exact(PyObject *number, int *fd);
int descriptor_check(State *state, PyObject *number, unsigned wanted);
extern bool process_owned;
PyObject *core_own_process(PyObject *module, PyObject *confined);
enum {
    WANT_MANAGE = 512, /* closing, duplicating over, changing flags: only one's own */
    WANT_PATH = 1024,  /* also for one's own: the kernel does not ask how it was opened (fchmod, utime, ...) */
    WANT_PLACE = 2048  /* at a place of the file, or its size: standard streams are only read and written in turn */
};

/* ---- environment.c ------------------------------------------------------------------------- */
int environment_ready(void);
bool is_environment(PyObject *object);
bool is_environment_type(PyObject *type);
bool is_environment_name(PyObject *module, PyObject *name);
bool is_environment_globals(PyObject *dict);
bool is_environment_system(PyObject *module);

/* ---- opens.c, databases.c, imports.c, handover.c, guards.c, children.c -------------------- */
int opens_ready(void);
int guarded_open(State *state, PathText *text, int flags, int mode);
int databases_patch(PyObject *module);
int semaphores_patch(PyObject *module);
int socket_patch(PyObject *module);
int fileio_patch(PyObject *module);
extern PyCFunction fileio_fileno;
int imports_ready(void);
int natives_ready(void);
bool import_allowed(const State *state, PyObject *root);
int import_check(State *state, PyObject *name, bool ask_frame);
int import_native_check(State *state, PyObject *path);
int environment_check(State *state, PyObject *name);
bool is_owned_variable(const char *text);
extern PyObject *sensitive_roots;
extern PyObject *native_allowed, *native_refused, *native_folder;
bool native_is_refused(PyObject *name);
int handover_ready(void);

/* ---- tracing.c, monitoring.c ------------------------------------------------------------------ */
typedef enum { TRACE, PROFILE, MONITOR } TracingKind;

extern PyTypeObject Tracer_Type;
int tracing_ready(void);
PyObject *tracer_new(State *state, PyObject *function, TracingKind kind);
PyObject *tracer_function(State *state, PyObject *installed);
void tracing_failed(TracingKind kind);
bool tracing_has_place(const State *state);
uint64_t thread_here(void); /* a number that no other thread has or will have */
int tracing_event(State *state, const char *event, TracingKind kind);
bool monitoring_works(void);
void monitoring_follow(void);
void monitoring_gone(const State *state);
PyObject *on_trace(State *state, Call *call);
PyObject *on_traced_by(State *state, Call *call);
PyObject *on_profiler(State *state, Call *call);
PyObject *on_use_tool(State *state, Call *call);
PyObject *on_tool(State *state, Call *call);
PyObject *on_restart_events(State *state, Call *call);

/* ---- context_views.c ------------------------------------------------------------------------- */
PyObject *on_context_view(State *unused, Call *call);
int contextviews_ready(void);

/* ---- foreign_functions.c ------------------------------------------------------------------------------ */
extern PyObject *native_packages;
extern bool process_confined;
int foreign_event(State *state, const char *event, PyObject *args);
PyObject *on_foreign(State *state, Call *call);
PyObject *on_foreign_library(State *state, Call *call);
int ctypes_patch(PyObject *module);
int ctypes_functions(PyObject *module);
int foreign_check(State *state, const char *root, PyObject *function);
int pointers_patch(PyObject *module);
bool is_foreign_type(PyTypeObject *type);
int cffi_patch(PyObject *module);
int finalisers_ready(void);
int names_ready(void);
int local_patch(PyObject *module);
int keepers_ready(void);
int guard_finaliser(State *state, PyTypeObject *type);
int set_type_attribute(PyObject *type, PyObject *name, PyObject *value);
extern PyObject *finaliser_name;
PyObject *bind_to(State *state, PyObject *function);
PyObject *callback_of(State *state, PyObject *function, PyObject *future);
bool is_foreign_context(State *state, PyObject *context);
int executor_patch(PyObject *module);
int anyio_patch(PyObject *module);
int future_patch(PyObject *module);
int loop_patch(PyObject *module);
int pool_patch(PyObject *module);
int threading_patch(PyObject *module);
int finalize_patch(PyObject *module);
int task_patch(PyObject *module);
void futures_patch(PyObject *module);
PyObject *steps_new(State *state, PyObject *inner);
PyObject *ready_new(PyObject *value);
void stop_with(PyObject *value);
PyObject *state_chain(const State *state);
PyObject *question_new(State *state, const Asked *asked);
PyObject *decision_explicit(State *state, const Asked *asked, PyObject *place);
bool path_narrowed_away(const State *state, const char *path, unsigned bit);
PyObject *core_ask(PyObject *module, PyObject *args);
int served_ready(void);
/* plain_data.c, worker_messages.c, crossing.c */
PyObject *plain_copy(PyObject *value, bool lists);
PyObject *core_plain(PyObject *module, PyObject *args);
PyObject *core_read_frame(PyObject *module, PyObject *args);
PyObject *core_door(PyObject *module, PyObject *function);
PyObject *core_entrance(PyObject *module, PyObject *args);
extern PyTypeObject Door_Type, Entrance_Type;
int doors_ready(void);
int guard_prepare(void);
int steps_isolate(PyObject *result);
int steps_settle(void);
PyObject *wake_new(State *state, PyObject *future);
extern PyTypeObject Wake_Type;
PyObject *guarded_result(State *state, PyObject *result);

PyObject *served_save(void);
void served_restore(PyObject *saved);
PyObject *core_serve(PyObject *module, PyObject *value);
PyObject *core_unserve(PyObject *module, PyObject *token);
PyObject *core_served(PyObject *module, PyObject *unused);
PyObject *core_location(PyObject *module, PyObject *path);
int question_ready(PyObject *module);
int asyncio_patch(PyObject *module);
bool bound_is_own(PyObject *value);
PyObject *unbound_own(PyObject *value);
PyObject *bound_new(State *state, PyObject *function, PyObject *args, PyObject *kwargs);
void bound_for_signals(PyObject *bound);
PyObject *bound_equal(State *state, PyObject *function);
bool outside_is_running(void);
extern PyTypeObject Bound_Type, Guard_Type, Steps_Type, Ready_Type, Outlet_Type;
extern PyObject *usage_error, *child_environment;
int contexts_ready(void);
bool is_runtime_code(PyObject *code);
bool is_imported_library(PyObject *code);
bool called_by_library_import(void);
bool is_library_code(PyObject *code);
bool cache_path(const char *source, char *out);

/* The part of a text of bytes that code was unmarshalled from. */
typedef struct {
    PyObject *bytes;
    Py_ssize_t start, length;
} Bytecode;

bool bytecode_of(PyObject *data, Bytecode *out);
void bytecode_note(PyObject *made, Bytecode *from);
void bytecode_forget(void);
int register_runtime_code(PyObject *codes);
PyObject *guard_new(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *bypass_new(PyObject *module, PyObject *unused);

/* ---- audit.c ------------------------------------------------------------------------------- */
extern FAST_THREAD_LOCAL bool checked_open; /* this thread is inside an open that we made ourselves */
int audit_ready(void);
void hooklist_found(int (*hook)(const char *, PyObject *, void *));
void hooklist_follow(bool guarded);
bool hooklist_is_ours(void);
void hooklist_silence(bool silent);
extern bool sealed;

#endif
