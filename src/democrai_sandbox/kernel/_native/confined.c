/* Child of spawn: the steps from the clone to a confined program.
 *
 * The child shares the memory of its suspended parent, or has a copy. It makes system calls only and writes only to the
 * order. The program is executed only after every earlier step succeeded. A step returns 0 or a negative errno. */
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FIRST_SPARE = 64, NOT_STARTED = 127, CAPABILITY_WORDS = 2, HELPER_MILLISECONDS = 10000 };
/* Headers may be older than the kernel. */
enum { CLOSE_RANGE = 436, CLOSE_RANGE_ON_EXEC = 1 << 2 };

/* --- the steps of the child: 0, or a negative errno ----------------------------------------------------------------
 */

static int start_session(Order *order)
{
    return setsid() < 0 ? -errno : 0;
}

static bool is_socket(int fd)
{
    struct stat found;
    return fstat(fd, &found) == 0 && S_ISSOCK(found.st_mode);
}

bool spawn_waits(const Order *order)
{
    return order->cgroup >= 0 && is_socket(order->cgroup);
}

/* The helper moves the process that has written, and confirms it. */
static int await_helper(int fd)
{
    struct pollfd waiting = {.fd = fd, .events = POLLIN};
    int ready = poll(&waiting, 1, HELPER_MILLISECONDS);
    if (ready <= 0) {
        return ready < 0 ? -errno : -ETIMEDOUT;
    }
    char answer = 0;
    return read(fd, &answer, 1) == 1 && answer == '1' ? 0 : -EPERM;
}

/* The kernel reads 0 as the writing process, or thread. */
static int enter(int fd)
{
    return fd < 0 || write(fd, "0", 1) == 1 ? 0 : errno ? -errno : -EIO;
}

/* First step, so that no socket of the child is older than its cgroup. */
static int join_cgroup(Order *order)
{
    int failed = enter(order->cgroup);
    return failed == 0 && spawn_waits(order) ? await_helper(order->cgroup) : failed;
}

/* Moves the only thread of the child. Moving a process would wait for all processors, for milliseconds. */
static int limit_processes(Order *order)
{
    return enter(order->pids);
}

static int open_own_proc(Order *order)
{
    if (order->own_proc == 0 || order->ruleset_count == 0) {
        return 0;
    }
    return kernel_open_own_proc(order->rulesets[order->ruleset_count - 1], order->own_proc, order->whole_proc);
}

static int move_one(int *fd, int spare)
{
    if (*fd >= 0) {
        *fd = fcntl(*fd, F_DUPFD_CLOEXEC, spare);
        return *fd < 0 ? -errno : 0;
    }
    return 0;
}

/* The target number of one descriptor may be in use by another, so all are moved first. */
static int move_aside(Order *order, int spare)
{
    for (Py_ssize_t i = 0; i < order->fd_count; i++) {
        order->fds[i].source = fcntl(order->fds[i].source, F_DUPFD_CLOEXEC, spare);
        if (order->fds[i].source < 0) {
            return -errno;
        }
    }
    for (Py_ssize_t i = 0; i < order->ruleset_count; i++) {
        order->rulesets[i] = fcntl(order->rulesets[i], F_DUPFD_CLOEXEC, spare);
        if (order->rulesets[i] < 0) {
            return -errno;
        }
    }
    int failed = move_one(&order->report, spare);
    return failed == 0 ? move_one(&order->supervisor, spare) : failed;
}

static int close_all_on_exec(void)
{
    if (syscall(CLOSE_RANGE, 0U, ~0U, CLOSE_RANGE_ON_EXEC) == 0) {
        return 0;
    }
    struct rlimit open_files;
    if (getrlimit(RLIMIT_NOFILE, &open_files) < 0) {
        return -errno;
    }
    for (rlim_t fd = 0; fd < open_files.rlim_cur && fd < INT32_MAX; fd++) {
        if (fcntl((int)fd, F_SETFD, FD_CLOEXEC) < 0 && errno != EBADF) {
            return -errno;
        }
    }
    return 0;
}

static int place_descriptors(Order *order)
{
    int spare = FIRST_SPARE;
    for (Py_ssize_t i = 0; i < order->fd_count; i++) {
        spare = order->fds[i].target >= spare ? order->fds[i].target + 1 : spare;
    }
    int failed = move_aside(order, spare);
    if (failed == 0) {
        failed = close_all_on_exec();
    }
    for (Py_ssize_t i = 0; failed == 0 && i < order->fd_count; i++) {
        failed = dup2(order->fds[i].source, order->fds[i].target) < 0 ? -errno : 0;
    }
    return failed;
}

static int lowest(int known, int fd, unsigned first)
{
    return fd >= (int)first && (known < 0 || fd < known) ? fd : known;
}

/* A fork has no execve that closes the other descriptors. */
static int close_others(Order *order)
{
    unsigned first = 0;
    while (true) {
        int next = lowest(-1, order->report, first); /* the lowest descriptor to keep from first on */
        next = lowest(next, order->supervisor, first);
        for (Py_ssize_t i = 0; i < order->fd_count; i++) {
            next = lowest(next, order->fds[i].target, first);
        }
        unsigned last = next < 0 ? ~0U : (unsigned)next - 1;
        if (next != (int)first && syscall(CLOSE_RANGE, first, last, 0) < 0) {
            return -errno;
        }
        if (next < 0) {
            return 0;
        }
        first = (unsigned)next + 1;
    }
}

static int enter_folder(Order *order)
{
    return chdir(order->cwd) < 0 ? -errno : 0;
}

static int set_umask(Order *order)
{
    if (order->umask >= 0) {
        umask((mode_t)order->umask);
    }
    return 0;
}

/* Limits are only lowered. */
static int set_limits(Order *order)
{
    for (Py_ssize_t i = 0; i < order->limit_count; i++) {
        struct rlimit now;
        Limit limit = order->limits[i];
        if (getrlimit(limit.resource, &now) < 0) {
            return -errno;
        }
        now.rlim_cur = now.rlim_cur < limit.most ? now.rlim_cur : limit.most;
        now.rlim_max = now.rlim_max < limit.most ? now.rlim_max : limit.most;
        if (setrlimit(limit.resource, &now) < 0) {
            return -errno;
        }
    }
    return 0;
}

/* A parent that has dropped them passes nothing on. The bounding set may be wider: it only matters if execve grants
 * privileges, which no_new_privs prevents. Ambient capabilities are a subset of the permitted ones. */
static bool has_others(uint64_t keep)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    struct __user_cap_data_struct sets[CAPABILITY_WORDS] = {{0}};
    if (syscall(SYS_capget, &header, sets) < 0) {
        return true;
    }
    uint32_t others = 0;
    for (int word = 0; word < CAPABILITY_WORDS; word++) {
        others |= (sets[word].permitted | sets[word].inheritable) & ~(uint32_t)(keep >> (word * 32));
    }
    return others != 0;
}

static int keep_capabilities(Order *order)
{
    return has_others(order->keep_caps) ? kernel_keep_capabilities(order->keep_caps) : 0;
}

static int gain_nothing(Order *order)
{
    return kernel_set_no_new_privs();
}

static int apply_rulesets(Order *order)
{
    int failed = 0;
    for (Py_ssize_t i = 0; failed == 0 && i < order->ruleset_count; i++) {
        failed = kernel_restrict(order->rulesets[i], 0);
    }
    return failed;
}

static int apply_filter(Order *order)
{
    size_t size = (size_t)order->filter_size;
    if (order->supervisor >= 0) {
        int failed = size ? kernel_supervised_filter(order->filter, size, order->supervisor) : 0;
        close(order->supervisor);
        return failed;
    }
    long result = size ? kernel_filter(order->filter, size, 0) : 0;
    return result > 0 ? -ESRCH : (int)result;
}

/* An ignored or blocked signal would stay so in the program. Uses system calls, because the C library reserves two
 * signals, which may be inherited as ignored. The kernel's struct is a few words, in which SIG_DFL, no flags and no
 * mask are all zero. execve resets handled signals itself, so a parent that knows its ignored signals saves the other
 * calls. */
static int reset_signals(Order *order)
{
    const uint64_t ordinary[8] = {0}, none = 0;
    for (int number = 1; number <= LAST_SIGNAL; number++) {
        if (order->ignored >> (number - 1) & 1) {
            syscall(SYS_rt_sigaction, number, ordinary, NULL, sizeof none); /* fails for SIGKILL and SIGSTOP */
        }
    }
    return syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, sizeof none) < 0 ? -errno : 0;
}

/* Late, because the kernel resets it when credentials change. A parent that has already ended sends no signal. */
static int die_with_parent(Order *order)
{
    int failed = kernel_parent_death_signal(SIGKILL);
    return failed == 0 && getppid() != order->parent ? -ESRCH : failed;
}

static int execute(Order *order)
{
    execve(order->program, order->argv, order->env);
    return -errno;
}

enum { EXECUTED = 1, FORKED = 2, BOTH = EXECUTED | FORKED };
static const struct {
    const char *name;
    int (*run)(Order *order);
    int kind; /* of a child: one that executes a program, or one that continues as a worker */
} steps[] = {
    {"session", start_session, BOTH},          {"cgroup", join_cgroup, BOTH},
    {"pids", limit_processes, BOTH},           {"proc", open_own_proc, BOTH},
    {"descriptors", place_descriptors, BOTH},  {"folder", enter_folder, BOTH},
    {"umask", set_umask, BOTH},                {"limits", set_limits, BOTH},
    {"capabilities", keep_capabilities, BOTH}, {"no_new_privs", gain_nothing, BOTH},
    {"landlock", apply_rulesets, BOTH},        {"close", close_others, FORKED},
    {"seccomp", apply_filter, BOTH},           {"signals", reset_signals, EXECUTED},
    {"parent", die_with_parent, BOTH},         {"program", execute, EXECUTED},
};
enum { STEPS = sizeof steps / sizeof *steps };

/* One write: the error number, the step and the pid. After a successful execve the pipe closes without data. */
void spawn_report(const Order *order)
{
    struct {
        int32_t error;
        char step[16];
        int32_t pid;
    } told = {.error = order->error, .pid = getpid()};
    strncpy(told.step, steps[order->step].name, sizeof told.step - 1);
    if (order->report >= 0 && write(order->report, &told, sizeof told) != (ssize_t)sizeof told) {
        _exit(NOT_STARTED); /* the reader has closed, so this process is not wanted anymore */
    }
}

/* Runs the steps of one kind; reports the first failure and ends the process. */
static void run_steps(Order *order, int kind)
{
    for (int step = 0; step < STEPS; step++) {
        if ((steps[step].kind & kind) == 0) {
            continue;
        }
        order->step = step;
        int failed = steps[step].run(order);
        if (failed < 0) {
            order->error = -failed;
            spawn_report(order);
            _exit(NOT_STARTED);
        }
    }
}

int spawn_child(void *data)
{
    run_steps(data, EXECUTED);
    _exit(NOT_STARTED);
}

void spawn_confine(Order *order)
{
    run_steps(order, FORKED);
}

bool spawn_executed(const Order *order)
{
    return order->error == 0 && order->step == STEPS - 1;
}

const char *spawn_step(const Order *order)
{
    return steps[order->step].name;
}
