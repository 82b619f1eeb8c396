/* Replacing builtins, slots of types and methods in place, also in modules that are loaded later. */
#ifndef DEMOCRAI_PATCHING_H
#define DEMOCRAI_PATCHING_H

#include "core/core.h"

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
