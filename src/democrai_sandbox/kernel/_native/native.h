/* Shared declarations of the extension.
 *
 * The kernel_* functions only make system calls: they use no Python objects, allocate nothing and return 0 or a
 * negative errno. So a child that shares its parent's memory may call them between clone and execve. */
#ifndef DEMOCRAI_KERNEL_NATIVE_H
#define DEMOCRAI_KERNEL_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FILTER_INSTRUCTION = 8, FILTER_LONGEST = 4096 }; /* struct sock_filter, and BPF_MAXINSNS */
enum { LAST_SIGNAL = 64 };

/* --- system calls, also for the child of spawn ------------------------------------------------------------------- */

int kernel_set_no_new_privs(void);
int kernel_restrict(int ruleset, unsigned flags);                     /* Landlock; no_new_privs first */
int kernel_add_path(int ruleset, int fd, uint64_t access);
/* Allows the calling process's folder in /proc; its network tables only if whole is set. */
int kernel_open_own_proc(int ruleset, uint64_t access, bool whole);
long kernel_filter(const void *program, size_t size, unsigned flags); /* seccomp; no_new_privs first; > 0: a thread */
/* Installs a filter with a listener, and sends that to the supervisor; without one, supervised calls fail. */
int kernel_supervised_filter(const void *program, size_t size, int supervisor);
int kernel_keep_capabilities(uint64_t keep);
int kernel_parent_death_signal(int number);

/* --- functions of the module ------------------------------------------------------------------------------------- */

/* Raises the audit event that the guard refuses. Call it first in every function; -1 with an exception set. */
int native_announce(const char *name);
/* Sets OSError from an errno, positive or negative. Always NULL. */
PyObject *native_failed(long number);
/* For "O&": converts a non-negative 64-bit integer to a uint64_t. */
int native_bits(PyObject *value, void *place);

PyObject *native_landlock_abi(PyObject *module, PyObject *unused);
PyObject *native_landlock_errno(PyObject *module, PyObject *unused);
PyObject *native_landlock_create(PyObject *module, PyObject *args);
PyObject *native_landlock_add_path(PyObject *module, PyObject *args);
PyObject *native_landlock_add_port(PyObject *module, PyObject *args);
PyObject *native_landlock_add_own_proc(PyObject *module, PyObject *args);
PyObject *native_landlock_restrict(PyObject *module, PyObject *args, PyObject *kwargs);

PyObject *native_seccomp_install(PyObject *module, PyObject *args);
PyObject *native_seccomp_mode(PyObject *module, PyObject *unused);

PyObject *native_no_new_privs(PyObject *module, PyObject *unused);
PyObject *native_set_subreaper(PyObject *module, PyObject *unused);
PyObject *native_set_dumpable(PyObject *module, PyObject *value);
PyObject *native_set_parent_death_signal(PyObject *module, PyObject *value);
PyObject *native_set_name(PyObject *module, PyObject *value);
PyObject *native_drop_capabilities(PyObject *module, PyObject *value);

PyObject *native_probe(PyObject *module, PyObject *value);

PyObject *native_receive(PyObject *module, PyObject *link);
PyObject *native_tell(PyObject *module, PyObject *args);
PyObject *native_hear(PyObject *module, PyObject *lifeline);

PyObject *native_exit_code(PyObject *module, PyObject *pidfd);
PyObject *native_strangers(PyObject *module, PyObject *args);

/* spawn.c: spawn(body, files, rulesets, null, mark, ignored, supervisor) */
PyObject *native_spawn(PyObject *module, PyObject *args);
/* fork.c: fork_worker(), confine_worker(parent, body, files, rulesets, null, mark, report, supervisor) */
PyObject *native_fork_worker(PyObject *module, PyObject *unused);
PyObject *native_confine_worker(PyObject *module, PyObject *args);

PyObject *native_supervise(PyObject *module, PyObject *args);

#endif
