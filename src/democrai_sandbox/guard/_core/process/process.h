/* What belongs to the process: child processes, settings, semaphores, signals. */
#ifndef DEMOCRAI_PROCESS_H
#define DEMOCRAI_PROCESS_H

#include "rules/rules.h"
#include "core/core.h"
#include "patching/patching.h"
#include "files/files.h"
#include "sockets/sockets.h"
#include "interpreter/interpreter.h"

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
