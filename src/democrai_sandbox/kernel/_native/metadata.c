/* Changes of mode, owner and times that the supervisor makes for a child.
 *
 * The arguments are read once, and the call is made on a descriptor that was opened below a root, never on the child's
 * path: other threads of the child can change its memory, and other processes its folders. The call itself is never
 * let through. */
#include "supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>
#include <utime.h>

enum { FCHMODAT2 = 452 }; /* headers may be older than the kernel */
enum { PROC_PATH = 64, PAGE = 4096, MOST_MODE = 07777, MICRO = 1000, MOST_TRIES = 32 };

/* --- the call ----------------------------------------------------------------------------------------------------- */

typedef enum { MODE, OWNER, TIMES } Kind;
typedef enum { NANOSECONDS, MICROSECONDS, SECONDS } Unit;

typedef struct {
    Kind kind;
    bool by_descriptor; /* the file is the folder */
    int folder, flags;
    uint64_t path, times; /* addresses in the child */
    mode_t mode;
    uid_t uid;
    gid_t gid;
    Unit unit;
    bool now;
    struct timespec wanted[2];
} Change;

static void take_mode(Change *change, uint64_t mode)
{
    change->kind = MODE;
    change->mode = (mode_t)mode & MOST_MODE;
}

static void take_owner(Change *change, uint64_t uid, uint64_t gid)
{
    change->kind = OWNER;
    change->uid = (uid_t)uid;
    change->gid = (gid_t)gid;
}

static void take_times(Change *change, uint64_t times, Unit unit)
{
    change->kind = TIMES;
    change->times = times;
    change->unit = unit;
}

static void take_place(Change *change, uint64_t folder, uint64_t path, uint64_t flags)
{
    change->folder = (int)folder;
    change->path = path;
    change->flags = (int)flags;
}

static void take_descriptor(Change *change, uint64_t number)
{
    change->folder = (int)number;
    change->by_descriptor = true;
}

/* The calls that all architectures have. */
static bool decode(const struct seccomp_data *call, Change *change)
{
    const __u64 *args = call->args;
    switch (call->nr) {
    case SYS_fchmod:
        take_descriptor(change, args[0]);
        take_mode(change, args[1]);
        return true;
    case SYS_fchmodat:
        take_place(change, args[0], args[1], 0);
        take_mode(change, args[2]);
        return true;
    case FCHMODAT2:
        take_place(change, args[0], args[1], args[3]);
        take_mode(change, args[2]);
        return true;
    case SYS_fchown:
        take_descriptor(change, args[0]);
        take_owner(change, args[1], args[2]);
        return true;
    case SYS_fchownat:
        take_place(change, args[0], args[1], args[4]);
        take_owner(change, args[2], args[3]);
        return true;
    case SYS_utimensat:
        take_place(change, args[0], args[1], args[3]);
        change->by_descriptor = args[1] == 0 && change->folder != AT_FDCWD;
        take_times(change, args[2], NANOSECONDS);
        return true;
    default:
        return false;
    }
}

#ifdef SYS_chmod
/* The calls of older architectures. */
static bool decode_old(const struct seccomp_data *call, Change *change)
{
    const __u64 *args = call->args;
    switch (call->nr) {
    case SYS_chmod:
        take_place(change, (uint64_t)AT_FDCWD, args[0], 0);
        take_mode(change, args[1]);
        return true;
    case SYS_chown:
    case SYS_lchown:
        take_place(change, (uint64_t)AT_FDCWD, args[0], call->nr == SYS_lchown ? AT_SYMLINK_NOFOLLOW : 0);
        take_owner(change, args[1], args[2]);
        return true;
    case SYS_utime:
    case SYS_utimes:
        take_place(change, (uint64_t)AT_FDCWD, args[0], 0);
        take_times(change, args[1], call->nr == SYS_utime ? SECONDS : MICROSECONDS);
        return true;
    case SYS_futimesat:
        take_place(change, args[0], args[1], 0);
        change->by_descriptor = args[1] == 0 && change->folder != AT_FDCWD;
        take_times(change, args[2], MICROSECONDS);
        return true;
    default:
        return false;
    }
}
#else
static bool decode_old(const struct seccomp_data *call, Change *change)
{
    return false;
}
#endif

/* --- the child's memory ------------------------------------------------------------------------------------------- */

/* Reads up to the end of each page, because the next one may not exist. */
static int read_path(pid_t pid, uint64_t address, char path[PATH_MAX])
{
    for (size_t length = 0; length < PATH_MAX;) {
        size_t size = PAGE - (address + length) % PAGE;
        size = size < PATH_MAX - length ? size : PATH_MAX - length;
        ssize_t count = child_read(pid, address + length, path + length, size);
        if (count <= 0) {
            return count == -EPERM ? -EPERM : -EFAULT;
        }
        if (memchr(path + length, 0, (size_t)count) != NULL) {
            return 0;
        }
        length += (size_t)count;
    }
    return -ENAMETOOLONG;
}

static bool is_fraction(long value)
{
    return value >= 0 && value < 1000L * MICRO;
}

/* Reads the times, and converts them to nanoseconds; utimensat checks its own. */
static int read_times(pid_t pid, Change *change)
{
    union {
        struct timespec precise[2];
        struct timeval coarse[2];
        struct utimbuf seconds;
    } times;
    change->now = change->times == 0;
    if (change->now) {
        return 0;
    }
    size_t size = change->unit == SECONDS ? sizeof times.seconds : sizeof times.precise;
    ssize_t count = child_read(pid, change->times, &times, size);
    if (count != (ssize_t)size) {
        return count == -EPERM ? -EPERM : -EFAULT;
    }
    for (int i = 0; i < 2; i++) {
        struct timespec *wanted = &change->wanted[i];
        if (change->unit == NANOSECONDS) {
            *wanted = times.precise[i];
        }
        else if (change->unit == MICROSECONDS) {
            if (!is_fraction(times.coarse[i].tv_usec)) {
                return -EINVAL;
            }
            *wanted = (struct timespec){times.coarse[i].tv_sec, times.coarse[i].tv_usec * MICRO};
        }
        else {
            *wanted = (struct timespec){i == 0 ? times.seconds.actime : times.seconds.modtime, 0};
        }
    }
    return 0;
}

/* --- the file ----------------------------------------------------------------------------------------------------- */

/* Whether a descriptor of the child was opened for writing. */
static bool is_writable(pid_t pid, int number)
{
    char link[PROC_PATH];
    struct stat found;
    snprintf(link, sizeof link, "/proc/%d/fd/%d", pid, number);
    return lstat(link, &found) == 0 && (found.st_mode & S_IWUSR);
}

/* Finds the descriptor that the call is about, if any, or the one from which the path starts. */
static int find_descriptor(Change *change, char path[PATH_MAX])
{
    if (*path == 0) {
        change->by_descriptor = true;
        return change->flags & AT_EMPTY_PATH ? 0 : -ENOENT;
    }
    int number;
    const char *rest = child_descriptor_in(path, &number);
    if (rest == NULL || (*rest == 0 && (change->flags & AT_SYMLINK_NOFOLLOW))) {
        return 0;
    }
    change->folder = number;
    change->by_descriptor = *rest == 0;
    rest += strspn(rest, "/");
    memmove(path, rest, strlen(rest) + 1);
    if (*path == 0 && !change->by_descriptor) {
        strcpy(path, "."); /* a slash at the end means a folder */
    }
    return 0;
}

/* A file without a name is in no folder: the child may change those that it can write. */
static bool is_nameless(int file)
{
    struct stat found;
    return fstat(file, &found) == 0 && S_ISREG(found.st_mode) && found.st_nlink == 0;
}

/* --- the change --------------------------------------------------------------------------------------------------- */

/* No file may run with the rights of its owner or group. */
static int change_mode(int file, mode_t mode)
{
    struct stat found;
    if (fstat(file, &found) < 0) {
        return -errno;
    }
    if (S_ISLNK(found.st_mode)) {
        return -EOPNOTSUPP;
    }
    if ((mode & S_ISUID) || ((mode & S_ISGID) && !S_ISDIR(found.st_mode))) {
        return -EPERM;
    }
    if (syscall(FCHMODAT2, file, "", mode, AT_EMPTY_PATH) == 0) {
        return 0;
    }
    if (errno != ENOSYS) {
        return -errno;
    }
    char link[PROC_PATH]; /* before Linux 6.6 */
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    return chmod(link, mode) < 0 ? -errno : 0;
}

static int change_file(int file, const Change *change)
{
    if (change->kind == MODE) {
        return change_mode(file, change->mode);
    }
    if (change->kind == OWNER) {
        return fchownat(file, "", change->uid, change->gid, AT_EMPTY_PATH) < 0 ? -errno : 0;
    }
    /* The C library refuses an empty path here. */
    const struct timespec *times = change->now ? NULL : change->wanted;
    return syscall(SYS_utimensat, file, "", times, AT_EMPTY_PATH) < 0 ? -errno : 0;
}

/* Changes a file that was opened anywhere, if it is at or below a root. */
static int change_below(int meant, const Change *change, const Roots *roots)
{
    int found = file_below(meant, roots);
    if (found < 0) {
        return found;
    }
    int result = change_file(found, change);
    close(found);
    return result;
}

/* Finds the file from its folder or descriptor, and changes it. */
static int try_change(int start, const char *path, const Change *change, const Roots *roots, bool writable)
{
    if (change->by_descriptor) {
        return writable && is_nameless(start) ? change_file(start, change) : change_below(start, change, roots);
    }
    uint64_t last = change->flags & AT_SYMLINK_NOFOLLOW ? O_NOFOLLOW : 0;
    int meant = open_how(start, path, last, NO_MAGIC_LINKS);
    if (meant < 0) {
        return meant == -ELOOP ? -EPERM : meant;
    }
    int result = change_below(meant, change, roots);
    close(meant);
    return result;
}

/* A file may be moved or replaced meanwhile: try again, as if the call had come later. */
static int find_and_change(int start, const char *path, const Change *change, const Roots *roots, bool writable)
{
    int result = -EAGAIN;
    for (int tries = 0; result == -EAGAIN && tries < MOST_TRIES; tries++) {
        result = try_change(start, path, change, roots, writable);
    }
    return result == -EAGAIN ? -EPERM : result;
}

static int read_arguments(pid_t pid, Change *change, char path[PATH_MAX])
{
    *path = 0;
    if (change->flags & ~(AT_SYMLINK_NOFOLLOW | AT_EMPTY_PATH)) {
        return -EINVAL;
    }
    int failed = change->kind == TIMES ? read_times(pid, change) : 0;
    if (failed == 0 && !change->by_descriptor) {
        failed = read_path(pid, change->path, path);
        failed = failed < 0 ? failed : find_descriptor(change, path);
    }
    return failed;
}

int metadata_change(int listener, const struct seccomp_notif *notice, const Roots *roots)
{
    Change change = {.folder = AT_FDCWD};
    char path[PATH_MAX];
    pid_t pid = (pid_t)notice->pid;
    if (pid == 0 || (!decode(&notice->data, &change) && !decode_old(&notice->data, &change))) {
        return -EPERM;
    }
    int failed = read_arguments(pid, &change, path);
    if (failed < 0) {
        return failed;
    }
    int start = *path == '/' && !change.by_descriptor ? open_how(AT_FDCWD, "/", 0, 0) : child_open(pid, change.folder);
    if (start < 0) {
        return start;
    }
    bool writable = change.by_descriptor && is_writable(pid, change.folder), limited = false;
    int result = take_capabilities_of(pid, &limited);
    /* If the caller still waits, the process id was its own until here. */
    if (result == 0 && ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &notice->id) < 0) {
        result = -EPERM;
    }
    if (result == 0) {
        result = find_and_change(start, path, &change, roots, writable);
    }
    if (limited) {
        restore_capabilities();
    }
    close(start);
    return result;
}
