/* The module itself: guards, the audit hook, the table of patched builtins, and what crosses a guard. */
#ifndef DEMOCRAI_EDGE_H
#define DEMOCRAI_EDGE_H

#include "rules/rules.h"
#include "core/core.h"
#include "network/network.h"
#include "io/io.h"
#include "interpreter/interpreter.h"

/* ---- table.c ------------------------------------------------------------------------------------------------- */
extern Row rows[];
extern const int row_count;
void table_ready(void);

/* ---- guards.c ------------------------------------------------------------------------------------------------ */
extern PyTypeObject Guard_Type;
extern bool sealed;
int guard_prepare(void);
PyObject *guarded_result(State *state, PyObject *result);
int guards_ready(void);
bool is_runtime_code(PyObject *code);
int register_runtime_code(PyObject *codes);
PyObject *guard_new(PyObject *module, PyObject *args, PyObject *kwargs);
PyObject *bypass_new(PyObject *module, PyObject *unused);

/* ---- audit.c ------------------------------------------------------------------------------------------------- */
PyObject *on_code_replace(State *state, Call *call);
int audit_ready(void);

/* ---- crossing.c ---------------------------------------------------------------------------------------------- */
extern PyTypeObject Door_Type, Entrance_Type;
PyObject *core_door(PyObject *module, PyObject *function);
PyObject *core_entrance(PyObject *module, PyObject *args);
int crossing_ready(void);

/* ---- plain_data.c -------------------------------------------------------------------------------------------- */
PyObject *plain_copy(PyObject *value, bool lists);
PyObject *core_plain(PyObject *module, PyObject *args);

/* ---- shared_values.c ----------------------------------------------------------------------------------------- */
enum { ARRIVAL_SPINS = 40000, ARRIVAL_PAUSES = 3 };
typedef struct {
    const void *counter; /* the bytes that have arrived, or NULL if all have */
    bool waits;          /* without a limit */
    int spins, pauses;   /* that are left, for all pieces together; with `waits`, pauses do not count */
} Arrival;
int arrival_of(Arrival *arrival, const Py_buffer *counter, bool waits);
int copy_arriving(Arrival *arrival, char *to, const char *memory, size_t offset, size_t size);
PyObject *core_write_values(PyObject *module, PyObject *args);

/* ---- worker_messages.c --------------------------------------------------------------------------------------- */
PyObject *core_read_frame(PyObject *module, PyObject *args);

/* ---- small_frames.c ------------------------------------------------------------------------------------------ */
PyObject *core_small_frame(PyObject *module, PyObject *message);

/* ---- explicit_ask.c ------------------------------------------------------------------------------------------ */
PyObject *core_ask(PyObject *module, PyObject *args);
PyObject *core_location(PyObject *module, PyObject *path);

#endif
