/* Starting a confined program: the parent's side.
 *
 * The child shares the memory of its parent, which stands still until the child executes its program or ends: its cost
 * does not depend on the size of the parent, and it can say what failed. All that it needs lies ready in plain C. */
#include "spawn.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STACK = 64 * 1024 };
#ifndef CLONE_PIDFD
#define CLONE_PIDFD 0x00001000
#endif

/* --- the parent ----------------------------------------------------------------------------------------------------
 */

/* Returns the pid, or a negative errno. No handler of the parent may run in the child, on the memory of both. */
static pid_t start_child(Order *order, int *pidfd)
{
    char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED) {
        return -errno;
    }
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    order->parent = getpid();
    pid_t pid = clone(spawn_child, stack + STACK, CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD, order, pidfd);
    pid = pid < 0 ? -errno : pid;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    munmap(stack, STACK);
    return pid;
}

static void forget_child(pid_t pid, int pidfd)
{
    kill(pid, SIGKILL); /* it is our own child, not waited for yet: the number is its own */
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

static PyObject *start(Order *order)
{
    int pidfd = -1;
    pid_t pid;
    Py_BEGIN_ALLOW_THREADS
    pid = start_child(order, &pidfd);
    Py_END_ALLOW_THREADS
    if (pid < 0) {
        return step_failed(-pid, "clone");
    }
    /* Without an error before its last step it was killed from outside. */
    bool executed = spawn_executed(order);
    PyObject *result = executed ? Py_BuildValue("ii", (int)pid, pidfd) : NULL;
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

/* A NULL-terminated array of the bytes objects of a tuple, which keeps them alive. */
static char **take_texts(PyObject *tuple)
{
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    char **texts = PyMem_Calloc((size_t)count + 1, sizeof *texts);
    if (texts == NULL) {
        return (char **)PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (PyBytes_AsStringAndSize(PyTuple_GET_ITEM(tuple, i), &texts[i], NULL) < 0) {
            PyMem_Free(texts);
            return NULL;
        }
    }
    return texts;
}

static bool is_pair(PyObject *value)
{
    bool pair = PyTuple_Check(value) && PyTuple_GET_SIZE(value) == 2;
    if (!pair) {
        PyErr_SetString(PyExc_TypeError, "expected pairs of numbers");
    }
    return pair;
}

static int take_descriptors(Order *order, PyObject *tuple)
{
    order->fd_count = PyTuple_GET_SIZE(tuple);
    order->fds = PyMem_Calloc((size_t)order->fd_count + 1, sizeof *order->fds);
    for (Py_ssize_t i = 0; order->fds != NULL && i < order->fd_count; i++) {
        Descriptor *fd = &order->fds[i];
        PyObject *pair = PyTuple_GET_ITEM(tuple, i);
        if (!is_pair(pair) || !PyArg_ParseTuple(pair, "ii", &fd->source, &fd->target)) {
            return -1;
        }
        if (fd->source < 0 || fd->target < 0 || fd->target == INT_MAX) {
            PyErr_SetString(PyExc_ValueError, "a descriptor is not negative");
            return -1;
        }
    }
    return order->fds == NULL ? (PyErr_NoMemory(), -1) : 0;
}

static int take_rulesets(Order *order, PyObject *tuple)
{
    order->ruleset_count = PyTuple_GET_SIZE(tuple);
    order->rulesets = PyMem_Calloc((size_t)order->ruleset_count + 1, sizeof *order->rulesets);
    for (Py_ssize_t i = 0; order->rulesets != NULL && i < order->ruleset_count; i++) {
        long ruleset = PyLong_AsLong(PyTuple_GET_ITEM(tuple, i));
        if (ruleset < 0 || ruleset > INT_MAX) {
            return PyErr_Occurred() ? -1 : (PyErr_SetString(PyExc_ValueError, "a ruleset is a descriptor"), -1);
        }
        order->rulesets[i] = (int)ruleset;
    }
    return order->rulesets == NULL ? (PyErr_NoMemory(), -1) : 0;
}

static int take_limits(Order *order, PyObject *tuple)
{
    order->limit_count = PyTuple_GET_SIZE(tuple);
    order->limits = PyMem_Calloc((size_t)order->limit_count + 1, sizeof *order->limits);
    for (Py_ssize_t i = 0; order->limits != NULL && i < order->limit_count; i++) {
        uint64_t most;
        PyObject *pair = PyTuple_GET_ITEM(tuple, i);
        if (!is_pair(pair) || !PyArg_ParseTuple(pair, "iO&", &order->limits[i].resource, native_bits, &most)) {
            return -1;
        }
        order->limits[i].most = (rlim_t)most;
    }
    return order->limits == NULL ? (PyErr_NoMemory(), -1) : 0;
}

enum { ARGV, ENV, FDS, RULESETS, LIMITS, LISTS };

/* Each list becomes a tuple of our own: nobody can change it while its items are in use. */
static int take_lists(Order *order, PyObject **lists)
{
    if ((order->argv = take_texts(lists[ARGV])) == NULL || (order->env = take_texts(lists[ENV])) == NULL) {
        return -1;
    }
    if (order->argv[0] == NULL) {
        PyErr_SetString(PyExc_ValueError, "argv is empty");
        return -1;
    }
    if (take_descriptors(order, lists[FDS]) < 0 || take_rulesets(order, lists[RULESETS]) < 0) {
        return -1;
    }
    return take_limits(order, lists[LIMITS]);
}

static void release(Order *order, PyObject **lists)
{
    PyMem_Free(order->argv);
    PyMem_Free(order->env);
    PyMem_Free(order->fds);
    PyMem_Free(order->rulesets);
    PyMem_Free(order->limits);
    for (int i = 0; i < LISTS; i++) {
        Py_XDECREF(lists[i]);
    }
}

PyObject *native_spawn(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"argv",   "program", "env",       "cwd",   "fds",      "rulesets", "filter",
                            "cgroup", "limits",  "keep_caps", "umask", "own_proc", "ignored",  NULL};
    Order order = {.ignored = UINT64_MAX};
    PyObject *given[LISTS], *lists[LISTS] = {NULL}, *result = NULL;
    if (native_announce("spawn") < 0 ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "OyOyO$Oy#iOO&iO&O&:spawn", names, &given[ARGV], &order.program,
                                     &given[ENV], &order.cwd, &given[FDS], &given[RULESETS], &order.filter,
                                     &order.filter_size, &order.cgroup, &given[LIMITS], native_bits, &order.keep_caps,
                                     &order.umask, native_bits, &order.own_proc, native_bits, &order.ignored)) {
        return NULL;
    }
    bool taken = true;
    for (int i = 0; taken && i < LISTS; i++) {
        taken = (lists[i] = PySequence_Tuple(given[i])) != NULL;
    }
    if (taken && take_lists(&order, lists) == 0) {
        result = start(&order);
    }
    release(&order, lists);
    return result;
}
