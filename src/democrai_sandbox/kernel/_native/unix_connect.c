/* Connections of a child to sockets in its own folders.
 *
 * Neither Landlock nor a filter can restrict to which socket file a socket connects. So the supervisor connects the
 * child's socket to the file that it opened below a root, never to the child's address. The server at the other end
 * sees the supervisor as its peer, with the same user. */
#include "supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* Headers may be older than the kernel. */
enum { PIDFD_OPEN = 434, PIDFD_GETFD = 438, OF_A_THREAD = O_EXCL };
enum { LONGEST_WAIT = 1, PROC_LINK = 64, STATUS = 4096 };

/* Reads the path of an address. Abstract names belong to no folder. */
static int read_target(pid_t pid, uint64_t where, size_t size, char path[PATH_MAX])
{
    struct sockaddr_un address = {0};
    size_t front = offsetof(struct sockaddr_un, sun_path);
    if (size <= front || size > sizeof address) {
        return -EINVAL;
    }
    ssize_t count = child_read(pid, where, &address, size);
    if (count != (ssize_t)size) {
        return count == -EPERM ? -EPERM : -EFAULT;
    }
    if (address.sun_family != AF_UNIX) {
        return -EINVAL;
    }
    if (address.sun_path[0] == 0) {
        return -EPERM;
    }
    size_t length = strnlen(address.sun_path, size - front);
    memcpy(path, address.sun_path, length);
    path[length] = 0;
    return 0;
}

/* Opens what the path starts from: the file itself, with *whole, if the path names a descriptor of the child. */
static int open_start(pid_t pid, const char *path, bool *whole)
{
    int number;
    const char *rest = child_descriptor_in(path, &number);
    *whole = rest != NULL && *rest == 0;
    if (*whole) {
        return child_open(pid, number);
    }
    return *path == '/' ? open_how(AT_FDCWD, "/", 0, 0) : child_open(pid, AT_FDCWD);
}

/* Opens the socket file that the path leads to, below a root. */
static int find_target(int start, const char *path, bool whole, const Roots *roots)
{
    int meant = whole ? start : open_how(start, path, 0, NO_MAGIC_LINKS);
    if (meant < 0) {
        return meant == -ELOOP ? -EACCES : meant;
    }
    int found = file_below(meant, roots);
    if (!whole) {
        close(meant);
    }
    return found == -EPERM || found == -EAGAIN ? -EACCES : found;
}

/* The process of a thread, for kernels that have no handles of threads. */
static pid_t process_of(pid_t thread)
{
    char name[PROC_LINK], text[STATUS];
    snprintf(name, sizeof name, "/proc/%d/status", thread);
    int file = open(name, O_RDONLY | O_CLOEXEC);
    ssize_t count = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0) {
        close(file);
    }
    text[count > 0 ? count : 0] = 0;
    const char *line = strstr(text, "\nTgid:");
    int process;
    return line != NULL && sscanf(line, "\nTgid: %d", &process) == 1 ? process : -1;
}

/* Returns a duplicate of the child's socket. Its number may mean another one by now: one of the child, too. */
static int take_socket(pid_t thread, int number)
{
    int handle = (int)syscall(PIDFD_OPEN, thread, OF_A_THREAD);
    if (handle < 0) {
        handle = (int)syscall(PIDFD_OPEN, process_of(thread), 0);
    }
    if (handle < 0) {
        return -errno;
    }
    int found = (int)syscall(PIDFD_GETFD, handle, number, 0), failed = errno;
    close(handle);
    return found < 0 ? -failed : found;
}

static int option_of(int socket, int option)
{
    int value = -1;
    socklen_t size = sizeof value;
    return getsockopt(socket, SOL_SOCKET, option, &value, &size) < 0 ? -errno : value;
}

/* Whether the filter lets the child create such sockets: a datagram socket could send to other files later. */
static bool may_connect(int socket)
{
    int type = option_of(socket, SO_TYPE);
    return option_of(socket, SO_DOMAIN) == AF_UNIX && (type == SOCK_STREAM || type == SOCK_SEQPACKET);
}

/* Connects through the descriptor of the file, so nothing can replace it. Waits for a busy server, but not for long:
 * the thread serves other children, too. */
static int connect_to(int socket, int file)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct timeval own = {0}, most = {.tv_sec = LONGEST_WAIT};
    socklen_t size = sizeof own;
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d", file);
    if (getsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &own, &size) < 0) {
        return -errno;
    }
    bool shorter = (own.tv_sec == 0 && own.tv_usec == 0) || own.tv_sec >= LONGEST_WAIT;
    if (shorter) {
        setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
    }
    int failed = connect(socket, (struct sockaddr *)&address, sizeof address) < 0 ? -errno : 0;
    if (shorter) {
        setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &own, sizeof own);
    }
    return failed;
}

/* Finds the file and connects, both with the capabilities of the child. */
static int connect_below(int socket, int start, const char *path, bool whole, const Roots *roots)
{
    int file = find_target(start, path, whole, roots);
    if (file < 0) {
        return file;
    }
    int result = connect_to(socket, file);
    close(file);
    return result;
}

static int connect_socket(int listener, const struct seccomp_notif *notice, int socket, const Roots *roots)
{
    const __u64 *args = notice->data.args;
    char path[PATH_MAX];
    bool whole, limited = false;
    pid_t pid = (pid_t)notice->pid;
    int failed = may_connect(socket) ? read_target(pid, args[1], (uint32_t)args[2], path) : -EPERM;
    int start = failed == 0 ? open_start(pid, path, &whole) : failed;
    if (start < 0) {
        return start;
    }
    int result = take_capabilities_of(pid, &limited);
    /* If the caller still waits, the process id was its own until here. */
    if (result == 0 && ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &notice->id) < 0) {
        result = -EPERM;
    }
    if (result == 0) {
        result = connect_below(socket, start, path, whole, roots);
    }
    if (limited) {
        restore_capabilities();
    }
    close(start);
    return result;
}

int unix_connect(int listener, const struct seccomp_notif *notice, const Roots *roots)
{
    int socket = notice->pid == 0 ? -EPERM : take_socket((pid_t)notice->pid, (int)notice->data.args[0]);
    if (socket < 0) {
        return socket;
    }
    int result = connect_socket(listener, notice, socket, roots);
    close(socket);
    return result;
}
