/* Files, memory and capabilities of a supervised child, as the supervisor uses them. */
#include "supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPENAT2 = 437 }; /* headers may be older than the kernel */
enum { PROC_PATH = 64, CAPABILITY_WORDS = 2 };

typedef struct {
    uint64_t flags, mode, resolve; /* struct open_how */
} How;

ssize_t child_read(pid_t pid, uint64_t address, void *place, size_t size)
{
    struct iovec here = {place, size}, there = {(void *)(uintptr_t)address, size};
    ssize_t count = process_vm_readv(pid, &here, 1, &there, 1, 0);
    return count < 0 ? -errno : count;
}

int open_how(int folder, const char *path, uint64_t flags, uint64_t resolve)
{
    How how = {.flags = O_PATH | O_CLOEXEC | flags, .resolve = resolve};
    long fd = syscall(OPENAT2, folder, path, &how, sizeof how);
    return fd < 0 ? -errno : (int)fd;
}

/* Opens a descriptor of the child, or its folder. */
int child_open(pid_t pid, int number)
{
    char link[PROC_PATH];
    if (number == AT_FDCWD) {
        snprintf(link, sizeof link, "/proc/%d/cwd", pid);
    }
    else if (number < 0) {
        return -EBADF;
    }
    else {
        snprintf(link, sizeof link, "/proc/%d/fd/%d", pid, number);
    }
    int fd = open(link, O_PATH | O_CLOEXEC);
    return fd >= 0 ? fd : errno == ENOENT ? -EBADF : -errno;
}

/* The C library and the guard name open files and folders like this. Here it would mean those of the supervisor.
 * Returns the rest of the path after the number; NULL for another path. */
const char *child_descriptor_in(const char *path, int *number)
{
    static const char own[] = "/proc/self/fd/";
    if (strncmp(path, own, sizeof own - 1) != 0) {
        return NULL;
    }
    char *end;
    const char *digits = path + sizeof own - 1;
    long value = strtol(digits, &end, 10);
    if (*digits < '0' || *digits > '9' || (*end != 0 && *end != '/') || value > INT_MAX) {
        return NULL;
    }
    *number = (int)value;
    return end;
}

static bool is_same(int fd, dev_t device, ino_t inode)
{
    struct stat found;
    return fstat(fd, &found) == 0 && found.st_dev == device && found.st_ino == inode;
}

/* Opens a path below a root without following any link; -EPERM if the root has been replaced. */
static int open_below(const Root *root, const char *rest)
{
    int folder = open_how(AT_FDCWD, root->path, O_NOFOLLOW, NO_LINKS | NO_MAGIC_LINKS);
    if (folder < 0 || !is_same(folder, root->device, root->inode)) {
        if (folder >= 0) {
            close(folder);
        }
        return -EPERM;
    }
    if (*rest == 0) {
        return folder;
    }
    int fd = open_how(folder, rest, O_NOFOLLOW, BENEATH | NO_LINKS | NO_MAGIC_LINKS);
    close(folder);
    return fd;
}

/* Returns the part of a path below a root; NULL if it is elsewhere. */
static const char *below(const Root *root, const char *path)
{
    size_t length = strcmp(root->path, "/") == 0 ? 0 : root->length;
    if (strncmp(path, root->path, length) != 0 || (path[length] != '/' && path[length] != 0)) {
        return NULL;
    }
    path += length;
    return path + strspn(path, "/");
}

/* Opens the same file again, below a root; -EPERM if it is elsewhere, -EAGAIN if its path has changed meanwhile. */
int file_below(int file, const Roots *roots)
{
    char link[PROC_PATH], path[PATH_MAX];
    struct stat meant;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0 || *path != '/' || fstat(file, &meant) < 0) {
        return -EPERM;
    }
    path[length] = 0;
    int failed = -EPERM;
    for (Py_ssize_t i = 0; i < roots->count; i++) {
        const char *rest = below(&roots->list[i], path);
        if (rest == NULL) {
            continue;
        }
        int found = open_below(&roots->list[i], rest);
        if (found >= 0 && is_same(found, meant.st_dev, meant.st_ino)) {
            return found;
        }
        if (found >= 0) {
            close(found);
        }
        failed = -EAGAIN;
    }
    return failed;
}

/* Limits this thread's capabilities to those of the child, or restores them. */
int take_capabilities_of(pid_t pid, bool *limited)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = pid};
    struct __user_cap_data_struct theirs[CAPABILITY_WORDS] = {{0}}, own[CAPABILITY_WORDS] = {{0}};
    if (syscall(SYS_capget, &header, theirs) < 0) {
        return -errno;
    }
    header.pid = 0;
    if (syscall(SYS_capget, &header, own) < 0) {
        return -errno;
    }
    *limited = false;
    for (int word = 0; word < CAPABILITY_WORDS; word++) {
        uint32_t wanted = own[word].permitted & theirs[word].effective;
        *limited = *limited || wanted != own[word].effective;
        own[word].effective = wanted;
    }
    return *limited && syscall(SYS_capset, &header, own) < 0 ? -errno : 0;
}

void restore_capabilities(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
    struct __user_cap_data_struct own[CAPABILITY_WORDS] = {{0}};
    if (syscall(SYS_capget, &header, own) == 0) {
        for (int word = 0; word < CAPABILITY_WORDS; word++) {
            own[word].effective = own[word].permitted;
        }
        syscall(SYS_capset, &header, own);
    }
}
