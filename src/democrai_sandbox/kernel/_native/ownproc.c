/* Rules for a process's own folder in /proc. The folder differs for each process, so the process creates the rules
 * itself; a fork has none of them. Without /proc, they allow nothing. */
#include "native.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { READ_DIR = 1 << 3 };

/* Files about the process itself. The whole folder would also include "net", the network tables, which exist below each
 * thread as well. So threads can be listed, and a few files of the first thread can be read. */
static const char *const own_folders[] = {"fd", "fdinfo"};
static const char *const own_files[] = {
    "auxv",   "cgroup",    "cmdline", "comm",          "environ", "io",           "limits", "maps",
    "mounts", "mountinfo", "smaps",   "oom_score_adj", "stat",    "smaps_rollup", "statm",  "status",
};
static const char *const thread_files[] = {"comm", "stat", "status"};
#define LENGTH(array) ((int)(sizeof(array) / sizeof *(array)))

/* The files depend on the kernel: skip missing ones. */
static int open_file(int ruleset, int folder, const char *name, uint64_t access)
{
    int file = openat(folder, name, O_PATH | O_CLOEXEC);
    if (file < 0) {
        return 0;
    }
    int failed = access ? kernel_add_path(ruleset, file, access) : 0;
    close(file);
    return failed;
}

static int open_files(int ruleset, int folder, const char *const *names, int count, uint64_t access)
{
    int failed = 0;
    for (int i = 0; failed == 0 && i < count; i++) {
        failed = open_file(ruleset, folder, names[i], access);
    }
    return failed;
}

int kernel_open_own_proc(int ruleset, uint64_t access, bool whole)
{
    int folder = open("/proc/self", O_PATH | O_DIRECTORY | O_CLOEXEC), failed = 0;
    if (folder < 0) {
        return 0;
    }
    if (whole) {
        failed = open_file(ruleset, folder, ".", access);
        close(folder);
        return failed;
    }
    failed = open_files(ruleset, folder, own_folders, LENGTH(own_folders), access);
    if (failed == 0) {
        failed = open_files(ruleset, folder, own_files, LENGTH(own_files), access & ~(uint64_t)READ_DIR);
    }
    if (failed == 0) {
        failed = open_file(ruleset, folder, "task", access & READ_DIR);
    }
    close(folder);
    int thread = failed == 0 ? open("/proc/thread-self", O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
    if (thread >= 0) {
        failed = open_files(ruleset, thread, thread_files, LENGTH(thread_files), access & ~(uint64_t)READ_DIR);
        close(thread);
    }
    return failed;
}

PyObject *native_landlock_add_own_proc(PyObject *module, PyObject *args)
{
    int ruleset, whole = 0;
    uint64_t access;
    if (native_announce("landlock_add_own_proc") < 0 ||
        !PyArg_ParseTuple(args, "iO&|p:landlock_add_own_proc", &ruleset, native_bits, &access, &whole)) {
        return NULL;
    }
    int failed = kernel_open_own_proc(ruleset, access, whole);
    if (failed < 0) {
        return native_failed(failed);
    }
    Py_RETURN_NONE;
}
