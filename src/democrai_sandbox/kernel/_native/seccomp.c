/* Install a seccomp filter. Python code assembles the program. */
#include "native.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { WAIT_KILLABLE = 1 << 5 }; /* headers may be older than the kernel */

_Static_assert(sizeof(struct sock_filter) == FILTER_INSTRUCTION, "a filter instruction has eight bytes");

/* With TSYNC the kernel returns the id of a thread that could not be covered, and installs nothing. A positive number
 * is therefore not a success, and is passed on. */
long kernel_filter(const void *program, size_t size, unsigned flags)
{
    size_t count = size / FILTER_INSTRUCTION;
    if (size % FILTER_INSTRUCTION != 0 || count == 0 || count > FILTER_LONGEST) {
        return -EINVAL;
    }
    long failed = kernel_set_no_new_privs();
    if (failed < 0) {
        return failed;
    }
    struct sock_fprog filter = {.len = (unsigned short)count, .filter = (struct sock_filter *)program};
    long result = syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &filter);
    return result < 0 ? -errno : result;
}

static void send_descriptor(int link, int fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } control = {.aligned = {.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    char byte = 0;
    struct iovec place = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &place, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    memcpy(CMSG_DATA(&control.aligned), &fd, sizeof fd);
    sendmsg(link, &message, MSG_NOSIGNAL | MSG_DONTWAIT); /* if it fails, the calls fail */
}

/* A process below a listener of another program, such as a container manager, cannot have a second one; without one,
 * the calls fail. The listener is closed here in any case, because it could let calls through. */
int kernel_supervised_filter(const void *program, size_t size, int supervisor)
{
    long listener = kernel_filter(program, size, SECCOMP_FILTER_FLAG_NEW_LISTENER | WAIT_KILLABLE);
    if (listener == -EINVAL) {
        listener = kernel_filter(program, size, SECCOMP_FILTER_FLAG_NEW_LISTENER); /* before Linux 5.19 */
    }
    if (listener < 0) {
        return (int)kernel_filter(program, size, 0);
    }
    send_descriptor(supervisor, (int)listener);
    return close((int)listener) < 0 ? -errno : 0;
}

PyObject *native_seccomp_install(PyObject *module, PyObject *args)
{
    const char *program;
    Py_ssize_t size;
    uint64_t flags;
    if (native_announce("seccomp_install") < 0 ||
        !PyArg_ParseTuple(args, "y#O&:seccomp_install", &program, &size, native_bits, &flags)) {
        return NULL;
    }
    if (flags > UINT32_MAX) {
        return native_failed(EINVAL);
    }
    /* The descriptor of a listener could not be distinguished from the id of a failing thread. */
    if (flags & SECCOMP_FILTER_FLAG_NEW_LISTENER) {
        PyErr_SetString(PyExc_ValueError, "filters with a listener are not supported");
        return NULL;
    }
    long result = kernel_filter(program, (size_t)size, (unsigned)flags);
    return result < 0 ? native_failed(result) : PyLong_FromLong(result);
}

/* PR_GET_SECCOMP kills a thread in strict mode, but no thread with Python code is in strict mode. */
PyObject *native_seccomp_mode(PyObject *module, PyObject *unused)
{
    if (native_announce("seccomp_mode") < 0) {
        return NULL;
    }
    int mode = prctl(PR_GET_SECCOMP, 0, 0, 0, 0);
    if (mode < 0 && errno != EINVAL) { /* EINVAL: the kernel was built without seccomp */
        return native_failed(errno);
    }
    return PyLong_FromLong(mode < 0 ? 0 : mode);
}
