/* Messages of the spawn server for each program that it starts. The functions of the standard library create several
 * objects per call, which would delay each start. */
#include "native.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_PASSED = 253, LARGEST_PACKET = 48 * 1024 + 1 }; /* SCM_MAX_FD; one byte more than a valid packet */

typedef struct {
    int fds[MOST_PASSED];
    int count;
    int sender; /* a pid; 0 if the kernel reports none */
    int flags;
    ssize_t size;
} Received;

static void take_control(Received *received, struct msghdr *message)
{
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part != NULL; part = CMSG_NXTHDR(message, part)) {
        size_t size = part->cmsg_len - CMSG_LEN(0);
        if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS) {
            received->count = (int)(size / sizeof(int));
            memcpy(received->fds, CMSG_DATA(part), (size_t)received->count * sizeof(int));
        }
        if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_CREDENTIALS && size >= sizeof(struct ucred)) {
            struct ucred sender;
            memcpy(&sender, CMSG_DATA(part), sizeof sender);
            received->sender = sender.pid;
        }
    }
}

static int receive(int link, char *packet, Received *received)
{
    union {
        char bytes[CMSG_SPACE(sizeof(struct ucred)) + CMSG_SPACE(MOST_PASSED * sizeof(int))];
        struct cmsghdr aligned;
    } control;
    struct iovec place = {.iov_base = packet, .iov_len = LARGEST_PACKET};
    struct msghdr message = {
        .msg_iov = &place, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    do {
        received->size = recvmsg(link, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    } while (received->size < 0 && errno == EINTR);
    if (received->size < 0) {
        return -errno;
    }
    received->flags = message.msg_flags;
    take_control(received, &message);
    return 0;
}

static bool is_socket(int fd)
{
    struct stat found;
    return fstat(fd, &found) == 0 && S_ISSOCK(found.st_mode);
}

static PyObject *as_list(const int *numbers, int count)
{
    PyObject *list = PyList_New(count);
    for (int i = 0; list != NULL && i < count; i++) {
        PyObject *number = PyLong_FromLong(numbers[i]);
        if (number == NULL) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, i, number);
    }
    return list;
}

/* receive(link): (packet, lifeline, other descriptors, sender, flags). The lifeline is the first descriptor if that is
 * a socket, and -1 otherwise. The caller closes the descriptors. */
PyObject *native_receive(PyObject *module, PyObject *value)
{
    char packet[LARGEST_PACKET];
    Received received = {.count = 0};
    int link = native_announce("receive") < 0 ? -1 : (int)PyLong_AsLong(value);
    if (PyErr_Occurred()) {
        return NULL;
    }
    int failed = receive(link, packet, &received);
    if (failed < 0) {
        return native_failed(failed);
    }
    int taken = received.count > 0 && is_socket(received.fds[0]) ? 1 : 0;
    PyObject *files = as_list(received.fds + taken, received.count - taken);
    PyObject *result = files == NULL
                           ? NULL
                           : Py_BuildValue("y#iNii", packet, (Py_ssize_t)received.size, taken ? received.fds[0] : -1,
                                           files, received.sender, received.flags);
    for (int i = 0; result == NULL && i < received.count; i++) {
        close(received.fds[i]);
    }
    return result;
}

/* tell(lifeline, packet, fd): sends a packet, with a descriptor unless that is -1. Never blocks. */
PyObject *native_tell(PyObject *module, PyObject *args)
{
    int lifeline, fd;
    Py_buffer packet;
    if (native_announce("tell") < 0 || !PyArg_ParseTuple(args, "iy*i:tell", &lifeline, &packet, &fd)) {
        return NULL;
    }
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } control = {.aligned = {.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    struct iovec place = {.iov_base = packet.buf, .iov_len = (size_t)packet.len};
    struct msghdr message = {.msg_iov = &place, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        memcpy(CMSG_DATA(&control.aligned), &fd, sizeof fd);
    }
    ssize_t sent = sendmsg(lifeline, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    int number = errno;
    PyBuffer_Release(&packet);
    return sent < 0 ? native_failed(number) : Py_NewRef(Py_None);
}

/* hear(lifeline): the number of a signal to forward; 0 without a valid packet; -1 at the end. */
PyObject *native_hear(PyObject *module, PyObject *value)
{
    int lifeline = native_announce("hear") < 0 ? -1 : (int)PyLong_AsLong(value);
    if (PyErr_Occurred()) {
        return NULL;
    }
    unsigned char packet[2] = {0};
    ssize_t size = recv(lifeline, packet, sizeof packet, MSG_DONTWAIT);
    if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR)) {
        return PyLong_FromLong(-1);
    }
    return PyLong_FromLong(size == 1 && packet[0] <= LAST_SIGNAL ? packet[0] : 0);
}
