/* Supervisor: answers the calls that the filters of children hand over.
 *
 * Each child sends the listener of its filter through a socket. A few threads wait for all listeners. A listener is
 * served by one thread at a time, one call per turn, so children with many calls take turns, and a file system that
 * does not answer delays only its callers. The threads use no Python objects. They belong to the spawn server because
 * the kernel may permit reading a process's memory to its ancestors only. */
#include "supervisor.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Headers may be older than the kernel. */
#define SET_FLAGS SECCOMP_IOW(4, __u64)
#define WAKE_ON_SAME_CPU 1UL

enum { MOST_THREADS = 64, STACK = 512 * 1024 };

typedef struct {
    int fd; /* the socket, then the listener */
    bool listens;
    Roots roots;
} Supervised;

static int events = -1; /* of all sockets and listeners; -1 until the first child */
static atomic_int threads, waiting;

static void release(Supervised *child)
{
    if (child->fd >= 0) {
        close(child->fd);
    }
    for (Py_ssize_t i = 0; i < child->roots.count; i++) {
        free(child->roots.list[i].path);
    }
    free(child->roots.list);
    free(child);
}

static int watch(Supervised *child, int operation)
{
    struct epoll_event once = {.events = EPOLLIN | EPOLLONESHOT, .data.ptr = child};
    return epoll_ctl(events, operation, child->fd, &once) < 0 ? -errno : 0;
}

/* Returns the descriptor in a packet of one; -1 without one. */
static int take_descriptor(int link)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } control;
    char byte;
    int fd = -1;
    struct iovec place = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &place, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    if (recvmsg(link, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT) == 1) {
        struct cmsghdr *part = CMSG_FIRSTHDR(&message);
        if (part != NULL && part->cmsg_type == SCM_RIGHTS && part->cmsg_len == CMSG_LEN(sizeof fd)) {
            memcpy(&fd, CMSG_DATA(part), sizeof fd);
        }
    }
    return fd;
}

/* Replaces the socket by the listener that the child has sent. */
static bool take_listener(Supervised *child)
{
    int listener = take_descriptor(child->fd);
    if (listener < 0) {
        return false; /* the child ended before */
    }
    close(child->fd);
    child->fd = listener;
    child->listens = true;
    ioctl(listener, SET_FLAGS, WAKE_ON_SAME_CPU); /* faster on a busy machine; since Linux 6.6 */
    return watch(child, EPOLL_CTL_ADD) == 0;
}

static bool serve_call(Supervised *child)
{
    struct seccomp_notif notice = {.id = 0};
    if (ioctl(child->fd, SECCOMP_IOCTL_NOTIF_RECV, &notice) < 0) {
        return errno == ENOENT || errno == EINTR; /* the caller has ended, or was interrupted */
    }
    struct seccomp_notif_resp answer = {.id = notice.id};
    bool connects = notice.data.nr == SYS_connect;
    answer.error = (connects ? unix_connect : metadata_change)(child->fd, &notice, &child->roots);
    ioctl(child->fd, SECCOMP_IOCTL_NOTIF_SEND, &answer); /* fails if the caller has ended */
    return true;
}

static void take_turn(Supervised *child, uint32_t ready)
{
    bool open = child->listens ? (ready & EPOLLIN) && serve_call(child) && watch(child, EPOLL_CTL_MOD) == 0
                               : take_listener(child);
    if (!open) {
        release(child); /* no process with the filter is left; calls without a listener fail */
    }
}

static void *serve(void *unused);

/* Starts another thread if no thread waits, so that a call that takes long delays no other child. */
static int start_thread(void)
{
    pthread_attr_t attributes;
    pthread_t thread;
    if (atomic_fetch_add(&threads, 1) >= MOST_THREADS) {
        atomic_fetch_sub(&threads, 1);
        return EAGAIN;
    }
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    atomic_fetch_add(&waiting, 1);
    int failed = pthread_create(&thread, &attributes, serve, NULL);
    if (failed) {
        atomic_fetch_sub(&waiting, 1);
        atomic_fetch_sub(&threads, 1);
    }
    pthread_attr_destroy(&attributes);
    return failed;
}

static void *serve(void *unused)
{
    struct epoll_event event;
    while (true) {
        if (epoll_wait(events, &event, 1, -1) == 1) {
            if (atomic_fetch_sub(&waiting, 1) == 1) {
                start_thread();
            }
            take_turn(event.data.ptr, event.events);
            atomic_fetch_add(&waiting, 1);
        }
    }
    return NULL;
}

/* Starts the first thread. Threads take no signals: handlers run in the thread of the interpreter. */
static int start_serving(void)
{
    sigset_t all, before;
    events = epoll_create1(EPOLL_CLOEXEC);
    if (events < 0) {
        return -errno;
    }
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int failed = start_thread();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        close(events);
        events = -1;
    }
    return -failed;
}

static bool take_root(Root *root, PyObject *entry)
{
    const char *path;
    Py_ssize_t length;
    unsigned long long device, inode;
    if (!PyArg_ParseTuple(entry, "y#KK", &path, &length, &device, &inode)) {
        return false;
    }
    root->path = malloc((size_t)length + 1);
    if (root->path == NULL) {
        PyErr_NoMemory();
        return false;
    }
    memcpy(root->path, path, (size_t)length + 1);
    root->length = (size_t)length;
    root->device = (dev_t)device;
    root->inode = (ino_t)inode;
    return true;
}

static bool take_roots(Roots *roots, PyObject *list)
{
    Py_ssize_t count = PyList_GET_SIZE(list);
    roots->list = calloc((size_t)count + 1, sizeof(Root));
    if (roots->list == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (; roots->count < count; roots->count++) {
        PyObject *entry = PyList_GET_ITEM(list, roots->count);
        if (!PyTuple_Check(entry)) {
            PyErr_SetString(PyExc_TypeError, "a root is a tuple");
            return false;
        }
        if (!take_root(&roots->list[roots->count], entry)) {
            return false;
        }
    }
    return true;
}

/* supervise(socket, roots): serves the filter whose listener arrives on the socket, of which it keeps a duplicate. A
 * root is (path, device, inode). */
PyObject *native_supervise(PyObject *module, PyObject *args)
{
    int link;
    PyObject *list;
    if (native_announce("supervise") < 0 || !PyArg_ParseTuple(args, "iO!:supervise", &link, &PyList_Type, &list)) {
        return NULL;
    }
    Supervised *child = calloc(1, sizeof *child);
    if (child == NULL) {
        return PyErr_NoMemory();
    }
    child->fd = -1;
    if (!take_roots(&child->roots, list)) {
        release(child);
        return NULL;
    }
    child->fd = fcntl(link, F_DUPFD_CLOEXEC, 0);
    int failed = child->fd < 0 ? -errno : 0;
    if (failed == 0 && events < 0) {
        failed = start_serving();
    }
    if (failed == 0) {
        failed = watch(child, EPOLL_CTL_ADD);
    }
    if (failed < 0) {
        release(child);
        return native_failed(failed);
    }
    Py_RETURN_NONE;
}
