/* Calls with which the self-test checks a filter: from a fixed table, with arguments that the kernel refuses or for
 * which it does nothing. A general system call function could be abused. */
#include "native.h"

#include <errno.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Older headers may lack numbers. */
#ifndef SYS_io_uring_setup
#define SYS_io_uring_setup 425
#endif

static const struct {
    const char *name;
    long number, first;
} PROBES[] = {
    /* all arguments except the first are zero */
    {"ptrace", SYS_ptrace, PTRACE_ATTACH},         /* process 0: ESRCH */
    {"unshare", SYS_unshare, 0},                   /* nothing to unshare: success */
    {"bpf", SYS_bpf, -1},                          /* EINVAL, or EPERM */
    {"perf_event_open", SYS_perf_event_open, 0},   /* no attributes: EFAULT */
    {"userfaultfd", SYS_userfaultfd, ~0L},         /* no such flags: EINVAL, or EPERM */
    {"io_uring_setup", SYS_io_uring_setup, 0},     /* no parameters: EFAULT */
    {"keyctl", SYS_keyctl, -1},                    /* no such operation: EOPNOTSUPP */
    {"process_vm_readv", SYS_process_vm_readv, 0}, /* nothing to read: success */
    {"setns", SYS_setns, -1},                      /* EBADF */
    {"mount", SYS_mount, 0},                       /* no target: EFAULT */
    {"mq_unlink", SYS_mq_unlink, 0},               /* no name: EFAULT */
    {"memfd_create", SYS_memfd_create, 0},         /* no name, and a file that can be executed: EFAULT */
    {"inotify_init1", SYS_inotify_init1, ~0L},     /* no such flags: EINVAL */
    {"pivot_root", SYS_pivot_root, 0},             /* no root: EFAULT, or EPERM */
    {"seccomp", SYS_seccomp, 2},                   /* SECCOMP_GET_ACTION_AVAIL without an action: EFAULT */
};

/* probe(name): 0 or the errno. Under a filter that kills, it does not return. */
PyObject *native_probe(PyObject *module, PyObject *value)
{
    if (native_announce("probe") < 0) {
        return NULL;
    }
    const char *name = PyUnicode_Check(value) ? PyUnicode_AsUTF8(value) : NULL;
    for (size_t i = 0; name != NULL && i < sizeof PROBES / sizeof *PROBES; i++) {
        if (strcmp(name, PROBES[i].name) == 0) {
            return PyLong_FromLong(syscall(PROBES[i].number, PROBES[i].first, 0L, 0L, 0L, 0L, 0L) < 0 ? errno : 0);
        }
    }
    if (!PyErr_Occurred()) {
        PyErr_Format(PyExc_ValueError, "unknown probe %R", value);
    }
    return NULL;
}
