/* Guard states, bound callables, the owner of code, decisions and denials; replacing builtins, slots and methods. */
#ifndef DEMOCRAI_CORE_H
#define DEMOCRAI_CORE_H

#include "rules/rules.h"

/* ---- state.c ------------------------------------------------------------------------------------------------- */
typedef enum {
    MODE_MERGE,  /* own entries or those of the parent: contexts the runtime enters */
    MODE_EXACT,  /* own entries only: a tool's own declaration, MCP */
    MODE_NARROW, /* own entries and those of the parent: a context that guarded code opened */
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
    Policy *guest;           /* owner of the code that an entrance has called */
    PyObject *served;        /* the user that the host served on entry; inherited from the parent in guarded code */
    PyFrameObject *entering; /* frame of a with statement that entered a bypass; not owned */
} State;

typedef struct {
    State *floor;
    void *boundary;
    PyObject *previous;
    bool stays; /* the context carried the state before */
} Entered;

extern PyTypeObject State_Type;
extern Py_ssize_t live_states;
extern PyObject *state_variable;
extern Policy *runtime_policy, *code_policy;

/* Set by later folders that follow the current state. Each function is called only while its number says so. */
extern Py_ssize_t tracings;          /* trace functions and tools that subjects have installed */
extern void (*tracing_follow)(void); /* the state in force has changed */
extern void (*tracing_gone)(const State *state);
extern int wakeup_lent;              /* the number that guarded code has set for signals, or -1 */
extern void (*wakeup_restore)(void); /* the last guard of the thread was left */

int state_ready(void);
State *state_new(State *parent, Policy *policy, Mode mode, bool allow_subprocess, PyObject *identity);
State *state_current(void);  /* borrowed; bypass states included; may be NULL */
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
PyObject *state_view(State *state);
bool state_has_policy(const State *state, uint64_t policy_id);
bool state_has_subject(const State *state, const Policy *policy);
bool state_has_guest(const State *state, const Policy *policy);
PyObject *state_chain(const State *state);

/* ---- candidates.c -------------------------------------------------------------------------------------------- */
extern Py_ssize_t candidates_held; /* shadow checks are skipped while it is 0 */
extern bool by_candidate;
const Policy *candidate_of(const State *state);
int candidate_set(PyObject *label, PyObject *policy);

/* ---- chain_rules.c ------------------------------------------------------------------------------------------- */
unsigned state_mask(const State *state, const PathKey *key);
bool state_gives_below(const State *state, const char *path, bool owned);
bool state_allows_import(const State *state, PyObject *root);
unsigned state_declared_mask(const State *state, const PathKey *key);
bool state_guards_network_only(const State *state);
bool state_names_programs(const State *state);
unsigned state_net(const State *state, Matcher match, const void *what);
bool net_narrowed_away(const State *state, unsigned operation, Matcher match, const void *what);
bool declared_literally(const State *state, const Address *address);

/* ---- context_variables.c ------------------------------------------------------------------------------------- */
PyObject *variable_set(PyObject *variable, PyObject *value);
int variable_put(PyObject *variable, PyObject *value); /* without a token; does it or changes nothing */
int variables_ready(void);
int collection_pause(void);
void collection_resume(int paused);
void collection_release(void);
int collection_ready(void);

/* ---- carried_ticket.c ---------------------------------------------------------------------------------------- */
/* The part of a ticket that the core reads; network/tickets.c has the rest. */
typedef struct {
    PyObject_HEAD bool open;
} CarriedTicket;

extern PyObject *ticket_variable;
extern PyTypeObject *ticket_type;
extern Py_ssize_t open_tickets;
PyObject *ticket_carried(void);           /* new reference or NULL; for callables handed over */
PyObject *ticket_carry(PyObject *ticket); /* sets it, returns what was there; NULL on error */
void ticket_restore(PyObject *carried);   /* steals it; NULL: nothing to do */

/* ---- served_user.c ------------------------------------------------------------------------------------------- */
extern PyObject *served_variable;
int served_user_ready(void);
PyObject *served_save(void);
void served_restore(PyObject *saved);

/* ---- owned_process.c ----------------------------------------------------------------------------------------- */
extern bool process_owned;
extern bool process_confined;
PyObject *core_own_process(PyObject *module, PyObject *confined);

/* ---- bound.c ------------------------------------------------------------------------------------------------- */
extern PyTypeObject Bound_Type;
PyObject *call_outside(State *state, PyObject *function, PyObject *args);
PyObject *bind_to(State *state, PyObject *function);
PyObject *callback_of(State *state, PyObject *function, PyObject *future);
bool bound_is_own(PyObject *value);
PyObject *unbound_own(PyObject *value);
PyObject *bound_new(State *state, PyObject *function, PyObject *args, PyObject *kwargs);
void bound_for_signals(PyObject *bound);
PyObject *bound_equal(State *state, PyObject *function);
bool outside_is_running(void);

/* ---- guarded_awaitables.c ------------------------------------------------------------------------------------ */
extern PyTypeObject Steps_Type, Ready_Type;
void futures_patch(PyObject *module);
PyObject *steps_new(State *state, PyObject *inner);
PyObject *ready_new(PyObject *value);
void stop_with(PyObject *value);
int steps_isolate(PyObject *result);
int steps_settle(void);

/* ---- future_views.c ------------------------------------------------------------------------------------------ */
extern PyTypeObject Wake_Type;
PyObject *wake_new(State *state, PyObject *future);

/* ---- code_owner.c -------------------------------------------------------------------------------------------- */
extern Py_ssize_t residents; /* policies that have marked code */
bool code_is_ours(PyCodeObject *code);
bool code_is_hidden(State *state, PyCodeObject *code);
int code_owner_ready(void);
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

/* ---- callers.c ----------------------------------------------------------------------------------------------- */
extern PyObject *facade_files;
bool asker_is_library(void);
bool code_is_library(PyCodeObject *code);
bool caller_is_library(void);
bool caller_is_library_of(PyCodeObject *code);
bool frame_is_import_machinery(void);
bool caller_is_importlib(void);
int importlib_ready(void);

/* ---- library_import.c ---------------------------------------------------------------------------------------- */
/* The part of a bytes object that code was unmarshalled from. */
typedef struct {
    PyObject *bytes;
    Py_ssize_t start, length;
} Bytecode;

bool is_imported_library(PyObject *code);
bool called_by_library_import(void);
bool is_library_code(PyObject *code);
bool cache_path(const char *source, char *out);
bool bytecode_of(PyObject *data, Bytecode *out);
void bytecode_note(PyObject *made, Bytecode *from);
void bytecode_forget(void);

/* ---- audit_hook_list.c --------------------------------------------------------------------------------------- */
void audit_hook_list_found(int (*hook)(const char *, PyObject *, void *), PyMethodDef *id);
void audit_hook_list_follow(bool guarded);
bool audit_hook_list_is_ours(void);
void audit_hook_list_silence(bool silent);

/* ---- access_question.c --------------------------------------------------------------------------------------- */
/* A question to the decider, without the asking subject. */
typedef struct {
    const char *resource, *operation;
    PyObject *target;
    bool registers;
    const char *action; /* NULL unless guarded code asks explicitly */
    PyObject *context;  /* likewise */
} Asked;

PyObject *question_new(State *state, const Asked *asked);
int access_question_ready(PyObject *module);

/* ---- decisions.c --------------------------------------------------------------------------------------------- */
extern PyObject *decider, *check_failed;
extern _Thread_local bool probing;
void raise_check_failed(void);
PyObject *access_changed(PyObject *module, PyObject *unused);
State *answering(State *state);
PyObject *decisions_of(State *state);
int approved(State *state, const char *resource, const char *operation, PyObject *target, bool registers,
             PyObject **answer);
PyObject *core_tell_probes(PyObject *module, PyObject *unused);
PyObject *core_is_probe(PyObject *module, PyObject *unused);
PyObject *decision_explicit(State *state, const Asked *asked, PyObject *place);

/* ---- denials.c ----------------------------------------------------------------------------------------------- */
typedef enum {
    DENY_FILESYSTEM,
    DENY_DESCRIPTOR,
    DENY_MODULE,
    DENY_SUBPROCESS,
    DENY_ENVIRONMENT,
    DENY_TAMPER,
    DENY_NETWORK,
} DenialKind;

extern PyObject *denial_factory, *recorder, *decision_type;
extern bool recording;
extern size_t denials_made;
extern PyObject *usage_error;
PyObject *recent_denials(PyObject *module, PyObject *unused);
void operation_text(unsigned bits, char *out);
void *deny(State *state, DenialKind kind, const char *operation, PyObject *target);
void *deny_decided(State *state, DenialKind kind, const char *operation, PyObject *target, PyObject *decision);
void *deny_path(State *state, const char *path, unsigned missing, bool probe);
int deny_given(State *state, const PathText *given, const char *path, unsigned missing, bool probe);
void *deny_text(State *state, DenialKind kind, const char *text);
PyObject *errno_error(PyObject *filename);
bool error_is_denial(void);
void errno_filename(PyObject *filename, PyObject *second);

/* ---- shadow.c ------------------------------------------------------------------------------------------------ */
enum { WHEN_ASKED = 1, WHEN_DONE = 2 }; /* of one act: where it is asked for, and where it is done */

extern PyObject *watcher;
PyObject *core_candidate(PyObject *module, PyObject *args);
void shadow_path(State *state, const char *path, unsigned wanted);
void shadow_open(State *state, const char *path, unsigned must, unsigned either);
void shadow_import(State *state, PyObject *root, bool (*allows)(const State *, PyObject *));
bool shadow_concerns(const State *state);
unsigned candidate_net(const State *state, Matcher match, const void *what);
void shadow_net(State *state, unsigned operation, Matcher match, const void *what, PyObject *target, int height);
void shadow_url(State *state, unsigned operations, Matcher match, const Url *url, int height);
void shadow_told(State *state, unsigned operation, PyObject *target);
void shadow_socket(State *state, const Host *host, int port, bool allowed, int height);

/* ---- patch.c ------------------------------------------------------------------------------------------------- */
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

/* The callers that a handler is called for. */
typedef enum {
    SCOPE_GUARDED,     /* those of guarded code */
    SCOPE_ALL_CALLERS, /* those of unguarded code too, while any guard is active */
    SCOPE_ALWAYS       /* all */
} Scope;

/* A row of the table of patched builtins. Each column has one meaning; a handler reads those that it needs. */
struct Row {
    /* read on every call; `original` and `flags` are set when the row is patched */
    Handler handler;
    PyCFunction original;
    int flags;
    Scope scope;
    /* the checked argument, a path or a descriptor */
    const char *argument; /* its name; "" for an argument without one */
    int index;            /* its position, or -1 */
    unsigned operations;  /* on it: OP_READ ..., WANT_MANAGE ... */
    int how;              /* to resolve it: FOLLOW ... */
    /* for single handlers */
    const char *denied;        /* the target that a denial names */
    const char *public_module; /* by which subjects know the function: denials name "<public_module>.<name>" */
    const char *variables;     /* of the environment that name files, separated by blanks */
    int kind;                  /* what a function for tracing does: TRACE ..., TOOL_EVENTS ... */
    int least;                 /* how many arguments it needs */
    bool has_file;             /* loads a native module from a file */
    /* where it is */
    const char *module, *owner, *name; /* owner: a type of the module, or "" for a function */
    bool optional;                     /* absent in some interpreters or builds */
    PyCFunction trampolines[8];
    PyMethodDef *entry;
    PyObject *module_object;
};

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
int patch_row(Row *row, PyObject *module);
int patch_slot(PyTypeObject *type, const char *descriptor, void **slot, void *replacement);
int patch_type(PyObject *module, const char *name, const char *descriptor, size_t offset, void *replacement,
               void *original);
bool has_slot(PyTypeObject *type, size_t offset, const void *replacement);

/* ---- late_modules.c ------------------------------------------------------------------------------------------ */
typedef struct {
    const char *module;
    int (*patch)(PyObject *module); /* 1 when everything is patched, 0 when the module is still being imported */
    bool native;                    /* patched when it is created, under any name; see native_modules.c */
} LatePatch;

extern bool look_at_all_modules;
void late_modules_tables(Row *table, int count, const LatePatch *patches, size_t patch_count);
PyMethodDef *writable_entry(const char *name);
int patch_module(const char *name, PyObject *module);
int late_modules_ready(void);
void late_modules_settle(void);
int patch_added_modules(void);
int patch_loaded_modules(void);
bool modules_added(void);
bool modules_changed(void);
int adapters_set(PyObject *functions);
int diverted_await(PyObject *rows);

/* ---- replaced_methods.c -------------------------------------------------------------------------------------- */
extern PyTypeObject Diverted_Type;
int diverted_set(PyObject *rows);
int divert_module(const char *name, PyObject *module);

#endif
