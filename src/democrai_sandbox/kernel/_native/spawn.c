/* Start a confined program: the parent's side.
 *
 * The child shares the memory of its parent, which is suspended until the child executes its program or ends. So the
 * cost does not depend on the parent's size, and the child can report a failed step. All its data is prepared in plain
 * C.
 *
 * A child that must wait for the helper has a copy of the memory instead, and a pipe for reporting a failed step, so
 * that its parent can start other programs meanwhile. */
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STACK = 32 * 1024 };
#ifndef CLONE_PIDFD
#define CLONE_PIDFD 0x00001000
#endif

/* --- the parent ----------------------------------------------------------------------------------------------------
 */

/* Returns the pid, or a negative errno. Signals are blocked: a handler must not run in the child on shared memory. */
static pid_t start_child(Order *order, int *pidfd)
{
    _Alignas(16) char stack[STACK]; /* stays valid: this frame is suspended while the child uses it */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    order->parent = getpid();
    int sharing = order->report < 0 ? CLONE_VM | CLONE_VFORK : 0;
    pid_t pid = clone(spawn_child, stack + STACK, sharing | CLONE_PIDFD | SIGCHLD, order, pidfd);
    pid = pid < 0 ? -errno : pid;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return pid;
}

static void forget_child(pid_t pid, int pidfd)
{
    kill(pid, SIGKILL); /* an unreaped child, so the pid is its own */
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
    close(pidfd);
}

static PyObject *step_failed(int number, const char *step)
{
    char text[128];
    snprintf(text, sizeof text, "%s: %s", step, strerror(number));
    PyObject *error = PyObject_CallFunction(PyExc_OSError, "is", number, text);
    if (error != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
    return NULL;
}

static PyObject *start(Order *order, int report)
{
    int pidfd = -1;
    pid_t pid;
    Py_BEGIN_ALLOW_THREADS
    pid = start_child(order, &pidfd);
    Py_END_ALLOW_THREADS
    if (pid < 0) {
        return step_failed(-pid, "clone");
    }
    /* If it ended without an error before its last step, it was killed by another process. */
    bool executed = order->report >= 0 || spawn_executed(order);
    PyObject *result = NULL;
    if (executed) {
        result = report < 0 ? Py_BuildValue("ii", (int)pid, pidfd) : Py_BuildValue("iii", (int)pid, pidfd, report);
    }
    if (result == NULL) {
        forget_child(pid, pidfd);
    }
    if (!executed) {
        return step_failed(order->error ? order->error : EINTR, spawn_step(order));
    }
    return result;
}

/* --- arguments -----------------------------------------------------------------------------------------------------
 */

Py_ssize_t spawn_descriptors(PyObject *list, int *numbers, Py_ssize_t room)
{
    Py_ssize_t count = PyList_GET_SIZE(list);
    if (count > room) {
        PyErr_SetString(PyExc_ValueError, "too many descriptors");
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        long number = PyLong_AsLong(PyList_GET_ITEM(list, i));
        if (number < 0 || number > INT_MAX) {
            return PyErr_Occurred() ? -1 : (PyErr_SetString(PyExc_ValueError, "invalid descriptor"), -1);
        }
        numbers[i] = (int)number;
    }
    return count;
}

static PyObject *read_and_start(Order *order, PyObject *body, PyObject *list, int null, Limit mark)
{
    int files[MOST_FILES];
    Py_ssize_t count = spawn_descriptors(list, files, MOST_FILES);
    if (count < 0) {
        return NULL;
    }
    const char *wrong = order_read(order, body, files, count, null);
    if (wrong != NULL) {
        PyErr_SetString(PyExc_ValueError, wrong);
        return NULL;
    }
    order->limits[order->limit_count++] = mark;
    int report[2] = {-1, -1};
    if (spawn_waits(order) && pipe2(report, O_CLOEXEC) < 0) {
        return step_failed(errno, "report");
    }
    order->report = report[1];
    PyObject *result = start(order, report[0]);
    if (report[1] >= 0) {
        close(report[1]);
    }
    if (result == NULL && report[0] >= 0) {
        close(report[0]);
    }
    return result;
}

PyObject *native_spawn(PyObject *module, PyObject *args)
{
    Order order = {.cgroup = -1, .pids = -1, .report = -1, .supervisor = -1};
    PyObject *body, *files, *rulesets;
    int null, layers[MOST_RULESETS];
    Limit mark;
    uint64_t most;
    if (native_announce("spawn") < 0 ||
        !PyArg_ParseTuple(args, "SO!O!i(iO&)O&|ii:spawn", &body, &PyList_Type, &files, &PyList_Type, &rulesets, &null,
                          &mark.resource, native_bits, &most, native_bits, &order.ignored, &order.supervisor,
                          &order.pids)) {
        return NULL;
    }
    mark.most = (rlim_t)most;
    order.rulesets = layers;
    order.ruleset_count = spawn_descriptors(rulesets, layers, MOST_RULESETS);
    PyObject *result = order.ruleset_count < 0 ? NULL : read_and_start(&order, body, files, null, mark);
    order_release(&order);
    return result;
}
