/* Data prepared by spawn.c and used by the child in confined.c. */
#ifndef DEMOCRAI_KERNEL_SPAWN_H
#define DEMOCRAI_KERNEL_SPAWN_H

#include "native.h"

#include <sys/resource.h>
#include <sys/types.h>

enum { MOST_FILES = 253, MOST_RULESETS = 16 };

typedef struct {
    int source, target;
} Descriptor;

typedef struct {
    int resource;
    rlim_t most;
} Limit;

typedef struct {
    char **argv, **env;
    const char *program, *cwd, *filter;
    Descriptor *fds;
    int *rulesets;
    Limit *limits;
    Py_ssize_t fd_count, ruleset_count, limit_count, filter_size;
    uint64_t keep_caps, own_proc, ignored;
    bool whole_proc;
    int cgroup, umask;
    int pids; /* "tasks" of a cgroup that limits the processes; -1 for none */
    int supervisor; /* socket for the listener of the filter; -1 if no call is supervised */
    int report; /* pipe for the result of a child with a copy of the memory; -1 for one that shares it */
    pid_t parent;
    volatile int step, error; /* written by the child, read by its parent afterwards */
} Order;

/* order.c: parses the body of a start request, a bytes object that must stay alive; returns NULL or an error message.
 * files are the received descriptors, null is for missing streams. Leaves room for one more limit. */
const char *order_read(Order *order, PyObject *data, const int *files, Py_ssize_t file_count, int null);
/* Frees the memory, also after a failure. */
void order_release(Order *order);
/* Whether the child must wait for the helper. */
bool spawn_waits(const Order *order);
/* Runs the child up to the program; the argument is an Order. Never returns. */
int spawn_child(void *data);
/* Confines this process, a fork, like a child, without a program. Reports a failure and ends the process. */
void spawn_confine(Order *order);
/* Sends the state of the order to the report: error number, step, pid. */
void spawn_report(const Order *order);
/* Converts a list of descriptors, limited by room; -1 with an exception set. */
Py_ssize_t spawn_descriptors(PyObject *list, int *numbers, Py_ssize_t room);
/* Whether the last step was reached without an error. */
bool spawn_executed(const Order *order);
/* Name of the child's last step. */
const char *spawn_step(const Order *order);

#endif
