/* What spawn.c prepares and the child in confined.c carries out. */
#ifndef DEMOCRAI_KERNEL_SPAWN_H
#define DEMOCRAI_KERNEL_SPAWN_H

#include "native.h"

#include <sys/resource.h>
#include <sys/types.h>

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
    int report; /* where a child with memory of its own says what failed; -1 for one that shares it */
    pid_t parent;
    volatile int step, error; /* written by the child, read by its parent afterwards */
} Order;

/* order.c: reads the body of an order, a bytes object that has to stay; NULL, or what is wrong with it. Files are what
 * came along, null is for streams that have none. There is room for one more limit. */
const char *order_read(Order *order, PyObject *data, const int *files, Py_ssize_t file_count, int null);
/* Gives back what reading has taken, also when it has failed. */
void order_release(Order *order);
/* Whether the child has to wait for the helper on its way. */
bool spawn_waits(const Order *order);
/* The child, from its first instruction to the program; the argument is an Order. Never returns. */
int spawn_child(void *data);
/* Whether the last step was come to and did not fail. */
bool spawn_executed(const Order *order);
/* The name of the step that the child was at. */
const char *spawn_step(const Order *order);

#endif
