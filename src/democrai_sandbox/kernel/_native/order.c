/* Parses a start request: numbers, a filter and texts, in the layout of spawn/protocol.py.
 *
 * All values are validated. Texts are used in place: the body stays alive during the start, and a null byte follows its
 * last text. */
#include "spawn.h"

#include <limits.h>
#include <string.h>

enum { HEAD = 9, WIDTH = 8, MOST_PASSED = 253, HIGHEST_RESOURCE = 15, FIRST_TARGET = 3, HIGHEST_TARGET = 1 << 20 };
enum { ARGV, ENV, PATHS, PORTS, LIMITS, PASS_FDS, METADATA, COUNTS };
enum { STREAMS = COUNTS, CGROUP = STREAMS + 3, VALUES };
enum { UMASK = VALUES, CAPS, WALL, FORK, NICE, HAS_PLAN, FS, NET, SCOPED, OWN_PROC, EXACT, WHOLE_PROC, FIXED };

static const int64_t ten_years = 10LL * 365 * 24 * 3600 * 1000000;
static const struct {
    const char *wrong;
    int64_t low, high;
} values[] = {
    {"umask: the number is out of range", -1, 0777},      {"caps: the number is out of range", 0, INT64_MAX},
    {"wall: the number is out of range", 0, ten_years},   {"fork: the number is out of range", 0, 1},
    {"nice: the number is out of range", 0, 19},
    {"has_plan: the number is out of range", 0, 1},       {"fs: the number is out of range", 0, INT64_MAX},
    {"net: the number is out of range", 0, INT64_MAX},    {"scoped: the number is out of range", 0, INT64_MAX},
    {"own_proc: the number is out of range", 0, INT64_MAX}, {"exact: the number is out of range", 0, 1},
    {"whole_proc: the number is out of range", 0, 1},
};

typedef struct {
    const char *numbers, *texts, *end;
    size_t count; /* of numbers */
    const int *files;
    Py_ssize_t file_count;
} Body;

static int64_t number(const Body *body, size_t index)
{
    int64_t value; /* unaligned in the body */
    memcpy(&value, body->numbers + index * WIDTH, sizeof value);
    return value;
}

/* The checks below return an error message, or NULL. */

static const char *find_parts(Body *body, Order *order, const char *data, size_t size)
{
    uint32_t count, filter;
    if (size < HEAD) {
        return "the start request is truncated";
    }
    memcpy(&count, data + 1, sizeof count);
    memcpy(&filter, data + 1 + sizeof count, sizeof filter);
    size_t middle = HEAD + (size_t)count * WIDTH;
    if (count < FIXED || middle + filter > size) {
        return "the start request is truncated";
    }
    if (filter % FILTER_INSTRUCTION || filter > FILTER_LONGEST * FILTER_INSTRUCTION) {
        return "filter: not a list of at most 4096 instructions";
    }
    body->numbers = data + HEAD;
    body->count = count;
    body->texts = data + middle + filter;
    body->end = data + size;
    order->filter = data + middle;
    order->filter_size = filter;
    return NULL;
}

static const char *check_fixed(const Body *body)
{
    int64_t most = body->end - body->numbers; /* a count cannot exceed the bytes, so sums do not overflow */
    for (size_t i = 0; i < COUNTS; i++) {
        if (number(body, i) < (i == ARGV ? 1 : 0) || number(body, i) > most) {
            return "argv is empty, or a count is negative or larger than the content";
        }
    }
    int64_t pairs = number(body, PORTS) + number(body, LIMITS) + number(body, PASS_FDS);
    if ((int64_t)body->count != FIXED + number(body, PATHS) + 2 * pairs) {
        return "the counts do not match the content";
    }
    for (size_t i = STREAMS; i < VALUES; i++) {
        if (number(body, i) < -1 || number(body, i) >= body->file_count) {
            return "a stream or the cgroup refers to a missing descriptor";
        }
    }
    for (size_t i = VALUES; i < FIXED; i++) {
        if (number(body, i) < values[i - VALUES].low || number(body, i) > values[i - VALUES].high) {
            return values[i - VALUES].wrong;
        }
    }
    return NULL;
}

/* Program, folder, arguments, environment; then the paths of the plan and those with metadata, which Python code parses. */
static const char *take_texts(const Body *body, Order *order)
{
    size_t argc = (size_t)number(body, ARGV), envc = (size_t)number(body, ENV), found = 0;
    order->env = order->argv + argc + 1;
    for (const char *text = body->texts; text <= body->end; text += strlen(text) + 1, found++) {
        if (found == 0) {
            order->program = text;
        }
        else if (found == 1) {
            order->cwd = text;
        }
        else if (found < 2 + argc) {
            order->argv[found - 2] = (char *)text;
        }
        else if (found < 2 + argc + envc) {
            order->env[found - 2 - argc] = (char *)text;
        }
    }
    if (found != 2 + argc + envc + (size_t)number(body, PATHS) + (size_t)number(body, METADATA)) {
        return "the counts do not match the content";
    }
    return *order->program == '/' && *order->cwd == '/' ? NULL : "program and folder: expected an absolute path";
}

static const char *take_limits(const Body *body, Order *order, size_t first)
{
    for (order->limit_count = 0; order->limit_count < number(body, LIMITS); order->limit_count++, first += 2) {
        int64_t resource = number(body, first), most = number(body, first + 1);
        if (resource < 0 || resource > HIGHEST_RESOURCE || most < 0) {
            return "limits: expected a resource and its limit";
        }
        order->limits[order->limit_count] = (Limit){(int)resource, (rlim_t)most};
    }
    return NULL;
}

static const char *take_descriptors(const Body *body, Order *order, size_t first, int null)
{
    for (int i = 0; i < FIRST_TARGET; i++) {
        int64_t index = number(body, STREAMS + (size_t)i);
        order->fds[i] = (Descriptor){index < 0 ? null : body->files[index], i};
    }
    for (order->fd_count = FIRST_TARGET; order->fd_count < FIRST_TARGET + number(body, PASS_FDS); first += 2) {
        int64_t index = number(body, first), target = number(body, first + 1);
        if (index < 0 || index >= body->file_count || target < FIRST_TARGET || target > HIGHEST_TARGET) {
            return "pass_fds: the descriptor is missing, or the target is a standard stream";
        }
        for (Py_ssize_t i = FIRST_TARGET; i < order->fd_count; i++) {
            if (order->fds[i].target == target) {
                return "pass_fds: duplicate target number";
            }
        }
        order->fds[order->fd_count++] = (Descriptor){body->files[index], (int)target};
    }
    return NULL;
}

static const char *make_room(const Body *body, Order *order)
{
    if (number(body, PASS_FDS) > MOST_PASSED) {
        return "pass_fds: too many descriptors";
    }
    order->argv = PyMem_Calloc((size_t)(number(body, ARGV) + number(body, ENV)) + 2, sizeof *order->argv);
    order->fds = PyMem_Calloc((size_t)number(body, PASS_FDS) + FIRST_TARGET, sizeof *order->fds);
    order->limits = PyMem_Calloc((size_t)number(body, LIMITS) + 1, sizeof *order->limits); /* and the mark */
    return order->argv && order->fds && order->limits ? NULL : "out of memory";
}

static void take_values(const Body *body, Order *order)
{
    int64_t cgroup = number(body, CGROUP);
    order->cgroup = cgroup < 0 ? -1 : body->files[cgroup];
    order->umask = (int)number(body, UMASK);
    order->keep_caps = (uint64_t)number(body, CAPS);
    order->own_proc = number(body, HAS_PLAN) ? (uint64_t)(number(body, OWN_PROC) & number(body, FS)) : 0;
    order->whole_proc = number(body, WHOLE_PROC) != 0;
}

const char *order_read(Order *order, PyObject *data, const int *files, Py_ssize_t file_count, int null)
{
    Body body = {.files = files, .file_count = file_count};
    const char *wrong = find_parts(&body, order, PyBytes_AS_STRING(data), (size_t)PyBytes_GET_SIZE(data));
    if (wrong == NULL && (wrong = check_fixed(&body)) == NULL && (wrong = make_room(&body, order)) == NULL) {
        size_t limits = FIXED + (size_t)(number(&body, PATHS) + 2 * number(&body, PORTS));
        size_t passed = limits + 2 * (size_t)number(&body, LIMITS);
        take_values(&body, order);
        if ((wrong = take_texts(&body, order)) == NULL && (wrong = take_limits(&body, order, limits)) == NULL) {
            wrong = take_descriptors(&body, order, passed, null);
        }
    }
    return wrong;
}

void order_release(Order *order)
{
    PyMem_Free(order->argv);
    PyMem_Free(order->fds);
    PyMem_Free(order->limits);
}
