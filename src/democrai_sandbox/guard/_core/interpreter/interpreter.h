/* Imports, stored callbacks, frames, tracing, native code, the environment, child processes and process settings. */
#ifndef DEMOCRAI_INTERPRETER_H
#define DEMOCRAI_INTERPRETER_H

#include "rules/rules.h"
#include "core/core.h"
#include "io/io.h"

/* ---- handover.c ---------------------------------------------------------------------------------------------- */
PyObject *on_tamper(State *state, Call *call);
PyObject *on_context_run(State *state, Call *call);
PyObject *on_context_variable(State *state, Call *call);
PyObject *on_callable(State *state, Call *call);
PyObject *on_signal(State *state, Call *call);
PyObject *on_callables(State *state, Call *call);
PyObject *on_done_callback(State *state, Call *call);
bool signal_is_subjects(int number);
PyObject *on_unregister(State *state, Call *call);
int handover_ready(void);
bool is_foreign_context(State *state, PyObject *context);

/* ---- callback_holders.c -------------------------------------------------------------------------------------- */
extern PyObject *handle_code;
PyObject *bind_foreign(PyObject *module, PyObject *const *args, Py_ssize_t nargs);
int callback_holders_ready(void);
int executor_patch(PyObject *module);
int anyio_patch(PyObject *module);
int future_patch(PyObject *module);
int loop_patch(PyObject *module);
int pool_patch(PyObject *module);
int threading_patch(PyObject *module);
int finalize_patch(PyObject *module);
int task_patch(PyObject *module);
int asyncio_patch(PyObject *module);

/* ---- finalizers.c -------------------------------------------------------------------------------------------- */
#define FINALISER_NAME "__democrai_finaliser__" /* where a class keeps its finalizer; refused to guarded code */
int finalizers_ready(void);
int guard_finaliser(State *state, PyTypeObject *type);

/* ---- protected_names.c --------------------------------------------------------------------------------------- */
PyObject *on_display(State *state, Call *call);
int protected_names_ready(void);
int local_patch(PyObject *module);
int set_type_attribute(PyObject *type, PyObject *name, PyObject *value);

/* ---- module_views.c ------------------------------------------------------------------------------------------ */
int module_views_ready(void);
PyObject *type_dictionary(PyTypeObject *type);
int module_views_settle(void);
PyObject *on_method_reduce(State *state, Call *call);

/* ---- frame_views.c ------------------------------------------------------------------------------------------- */
int frame_views_ready(void);
PyObject *on_frame_clear(State *state, Call *call);

/* ---- context_views.c ----------------------------------------------------------------------------------------- */
PyObject *on_context_view(State *unused, Call *call);
int context_views_ready(void);

/* ---- imports.c ----------------------------------------------------------------------------------------------- */
extern bool finders_suspect;
extern PyObject *sensitive_roots;
int imports_ready(void);
bool import_allowed(const State *state, PyObject *root);
int import_check(State *state, PyObject *name, bool ask_frame);
int import_native_check(State *state, PyObject *path);

/* ---- native_modules.c ---------------------------------------------------------------------------------------- */
extern PyObject *native_allowed, *native_refused, *native_folder;
PyObject *on_create_native(State *state, Call *call);
PyObject *on_exec_native(State *state, Call *call);
int native_modules_ready(void);
bool native_is_refused(PyObject *name);

/* ---- tracing.c ----------------------------------------------------------------------------------------------- */
typedef enum { TRACE, PROFILE, MONITOR } TracingKind;

extern PyTypeObject Tracer_Type;
int tracing_ready(void);
PyObject *tracer_new(State *state, PyObject *function, TracingKind kind);
PyObject *tracer_function(State *state, PyObject *installed);
void tracing_failed(TracingKind kind);
bool tracing_has_place(const State *state);
uint64_t thread_here(void); /* a number that no other thread has or will have */
int tracing_event(State *state, const char *event, TracingKind kind);
PyObject *on_trace(State *state, Call *call);
PyObject *on_traced_by(State *state, Call *call);
PyObject *on_profiler(State *state, Call *call);

/* ---- monitoring.c -------------------------------------------------------------------------------------------- */
/* What a function of sys.monitoring does with a tool. */
enum { TOOL_CALLBACK = 1, TOOL_EVENTS, TOOL_LOCAL_EVENTS, TOOL_FREE };

bool monitoring_works(void);
void monitoring_follow(void);
void monitoring_gone(const State *state);
PyObject *on_use_tool(State *state, Call *call);
PyObject *on_tool(State *state, Call *call);
PyObject *on_restart_events(State *state, Call *call);

/* ---- environment.c ------------------------------------------------------------------------------------------- */
int environment_ready(void);
bool is_environment(PyObject *object);
bool is_environment_type(PyObject *type);
bool is_environment_name(PyObject *module, PyObject *name);
bool is_environment_globals(PyObject *dict);
bool is_environment_system(PyObject *module);
int environment_check(State *state, PyObject *name);
bool is_owned_variable(const char *text);

/* ---- foreign_functions.c ------------------------------------------------------------------------------------- */
extern PyObject *native_packages;
int foreign_event(State *state, const char *event, PyObject *args);
PyObject *on_foreign(State *state, Call *call);
PyObject *on_foreign_library(State *state, Call *call);
int ctypes_patch(PyObject *module);
int ctypes_functions(PyObject *module);
int foreign_check(State *state, const char *root, PyObject *function);
bool is_foreign_type(PyTypeObject *type);
int cffi_patch(PyObject *module);

/* ---- ctypes_memory.c ----------------------------------------------------------------------------------------- */
int pointers_patch(PyObject *module);

/* ---- made_code.c --------------------------------------------------------------------------------------------- */
PyObject *on_made_code(State *state, Call *call);

/* ---- children.c ---------------------------------------------------------------------------------------------- */
extern Row *spawn_row, *execve_row;
extern PyObject *child_environment;
PyObject *on_process(State *state, Call *call);
PyObject *on_fork(State *state, Call *call);
PyObject *on_process_handle(State *state, Call *call);
PyObject *on_own_signal(State *state, Call *call);
PyObject *on_spawn(State *state, Call *call);
PyObject *on_system(State *state, Call *call);
PyObject *on_fork_exec(State *state, Call *call);
PyObject *on_umask(State *state, Call *call);
PyObject *on_secret_database(State *state, Call *call);

/* ---- host_settings.c ----------------------------------------------------------------------------------------- */
PyObject *on_wait(State *state, Call *call);
PyObject *on_host_setting(State *state, Call *call);
PyObject *on_codec_search(State *state, Call *call);
PyObject *on_codec_removal(State *state, Call *call);
PyObject *on_shared_setting(State *state, Call *call);
PyObject *on_collector(State *state, Call *call);
PyObject *on_stack_size(State *state, Call *call);
PyObject *on_register_error(State *state, Call *call);
PyObject *on_nice(State *state, Call *call);
PyObject *on_screen(State *state, Call *call);
PyObject *on_own_thread(State *state, Call *call);
PyObject *on_enough_arguments(State *state, Call *call);
PyObject *on_signal_mask(State *state, Call *call);
void child_started(const State *state, PyObject *result);

/* ---- semaphores.c -------------------------------------------------------------------------------------------- */
int semaphores_patch(PyObject *module);

/* ---- signal_wakeup.c ----------------------------------------------------------------------------------------- */
PyObject *on_wakeup_number(State *state, Call *call);

#endif
