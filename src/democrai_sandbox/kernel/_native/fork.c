/* Workers that are forked from the template process: they continue in its interpreter, and are confined like a child of
 * spawn when they have a request.
 *
 * The template forks twice. The first fork shares its memory, and ends immediately, so the kernel makes the second one,
 * the worker, a child of the spawn server, which is the next subreaper. The template must have a single thread. */
#include "spawn.h"

#include <errno.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ENDED = 0, NOT_FORKED = 1 };

/* In the first fork, which shares the memory of the waiting template: leaves a second fork to the server. Returns only
 * in the second one, on its own copy of the stack. */
static pid_t fork_again(void)
{
    pid_t first = getpid();
    pid_t worker = fork();
    if (worker != 0) {
        _exit(worker < 0 ? NOT_FORKED : ENDED);
    }
    return first;
}

/* Waits until the first fork has ended: only then is the spawn server the parent. */
static void await_adoption(pid_t first)
{
    while (getppid() == first) {
        sched_yield();
    }
}

PyObject *native_fork_worker(PyObject *module, PyObject *unused)
{
    if (native_announce("fork_worker") < 0) {
        return NULL;
    }
    pid_t server = getppid();
    PyOS_BeforeFork();
    pid_t first = vfork(); /* without a copy of the page tables, which the kernel would have to take down again */
    if (first != 0) {
        int status = 0, failed = first < 0 ? errno : 0;
        PyOS_AfterFork_Parent();
        while (first > 0 && waitpid(first, &status, 0) < 0 && errno == EINTR) {
        }
        return failed || status ? native_failed(failed ? failed : EAGAIN) : PyLong_FromLong(0);
    }
    first = fork_again();
    PyOS_AfterFork_Child();
    await_adoption(first);
    return PyLong_FromLong(server);
}

static PyObject *as_texts(char **texts)
{
    PyObject *list = PyList_New(0);
    for (; list != NULL && *texts != NULL; texts++) {
        PyObject *text = PyUnicode_DecodeFSDefault(*texts);
        if (text == NULL || PyList_Append(list, text) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(text);
    }
    return list;
}

static PyObject *confine(Order *order)
{
    spawn_confine(order);
    spawn_report(order);
    close(order->report);
    PyObject *argv = as_texts(order->argv), *env = as_texts(order->env);
    PyObject *result = argv == NULL || env == NULL ? NULL : PyTuple_Pack(2, argv, env);
    Py_XDECREF(argv);
    Py_XDECREF(env);
    return result;
}

PyObject *native_confine_worker(PyObject *module, PyObject *args)
{
    Order order = {.cgroup = -1, .pids = -1, .report = -1, .supervisor = -1};
    PyObject *body, *files, *rulesets, *result = NULL;
    int null, numbers[MOST_FILES], layers[MOST_RULESETS];
    Limit mark;
    uint64_t most;
    if (native_announce("confine_worker") < 0 ||
        !PyArg_ParseTuple(args, "iSO!O!i(iO&)i|ii:confine_worker", &order.parent, &body, &PyList_Type, &files,
                          &PyList_Type, &rulesets, &null, &mark.resource, native_bits, &most, &order.report,
                          &order.supervisor, &order.pids)) {
        return NULL;
    }
    mark.most = (rlim_t)most;
    order.rulesets = layers;
    Py_ssize_t count = spawn_descriptors(files, numbers, MOST_FILES);
    order.ruleset_count = spawn_descriptors(rulesets, layers, MOST_RULESETS);
    if (count >= 0 && order.ruleset_count >= 0) {
        const char *wrong = order_read(&order, body, numbers, count, null);
        if (wrong == NULL) {
            order.limits[order.limit_count++] = mark;
            result = confine(&order);
        }
        else {
            PyErr_SetString(PyExc_ValueError, wrong);
        }
    }
    order_release(&order);
    return result;
}
