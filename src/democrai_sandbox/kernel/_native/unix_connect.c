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
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

/* Headers may be older than the kernel. */
enum { PIDFD_OPEN = 434, PIDFD_GETFD = 438, OF_A_THREAD = O_EXCL };
enum { LONGEST_WAIT = 1, PROC_LINK = 64, STATUS = 4096 };

typedef struct {
    int socket;     /* number in the child */
    uint64_t where; /* address in the child */
    size_t length;
} Connect;

/* Reads the path of an address. Abstract names belong to no folder. */
static int read_target(pid_t pid, const Connect *connect, char path[PATH_MAX])
{
    struct sockaddr_un address = {0};
    size_t front = offsetof(struct sockaddr_un, sun_path);
    if (connect->length <= front || connect->length > sizeof address) {
        return -EINVAL;
    }
    ssize_t count = child_read(pid, connect->where, &address, connect->length);
    if (count != (ssize_t)connect->length) {
        return count == -EPERM ? -EPERM : -EFAULT;
    }
    if (address.sun_family != AF_UNIX) {
        return -EINVAL;
    }
    if (address.sun_path[0] == 0) {
        return -EPERM;
    }
    size_t longest = connect->length - front, length = strnlen(address.sun_path, longest);
    memcpy(path, address.sun_path, length);
    path[length] = 0;
    return 0;
}

/* Opens the socket file that a path of the child leads to, below a root. */
static int find_target(pid_t pid, const char *path, const Roots *roots)
{
    int number, meant;
    const char *rest = child_descriptor_in(path, &number);
    if (rest != NULL && *rest == 0) {
        meant = child_open(pid, number);
    }
    else {
        int start = *path == '/' ? open_how(AT_FDCWD, "/", 0, 0) : child_open(pid, AT_FDCWD);
        if (start < 0) {
            return start;
        }
        meant = open_how(start, path, 0, NO_MAGIC_LINKS);
        close(start);
    }
    if (meant < 0) {
        return meant == -ELOOP ? -EACCES : meant;
    }
    int found = file_below(meant, roots);
    close(meant);
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

static int connect_below(int listener, const struct seccomp_notif *notice, int socket, int file)
{
    bool limited = false;
    int result = take_capabilities_of((pid_t)notice->pid, &limited);
    /* If the caller still waits, the process id was its own until here. */
    if (result == 0 && ioctl(listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &notice->id) < 0) {
        result = -EPERM;
    }
    if (result == 0) {
        result = connect_to(socket, file);
    }
    if (limited) {
        restore_capabilities();
    }
    return result;
}

int unix_connect(int listener, const struct seccomp_notif *notice, const Roots *roots)
{
    const __u64 *args = notice->data.args;
    Connect connect = {.socket = (int)args[0], .where = args[1], .length = (size_t)(uint32_t)args[2]};
    char path[PATH_MAX];
    pid_t pid = (pid_t)notice->pid;
    if (pid == 0) {
        return -EPERM;
    }
    int socket = take_socket(pid, connect.socket);
    if (socket < 0) {
        return socket;
    }
    int result = may_connect(socket) ? read_target(pid, &connect, path) : -EPERM;
    int file = result == 0 ? find_target(pid, path, roots) : -1;
    if (result == 0) {
        result = file < 0 ? file : connect_below(listener, notice, socket, file);
    }
    if (file >= 0) {
        close(file);
    }
    close(socket);
    return result;
}
