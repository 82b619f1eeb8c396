/* File descriptors. A subject owns the descriptors that it made; any other is checked by the file that it refers to.
 *
 * The system reuses a number after a close. Therefore the table of owners stores device and inode, and compares them
 * on every use. Files opened through FileIO are not entered, because open() is a hot path: their descriptors are
 * checked by their path, which passes. */
#include "io/io.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct {
    uint64_t policy;
    dev_t device;
    ino_t inode;
    bool held; /* a file or socket object has it: freeing the number would let that object read what the host opens next
                */
    Wire *wire;
    uint64_t activation; /* connected by an approval: for this activation; 0: by a rule, for all of the subject's */
    bool port_chosen;    /* bound to a port of the system's choice */
} Owner;

static Owner *owners = NULL;
static int owners_size = 0;

static size_t wires = 0; /* how many were ever attached */

/* A copy of a socket that was opened for requests is read on the wire as well. */
static Wire *shared_wire(const struct stat *info)
{
    for (int i = 0; wires > 0 && S_ISSOCK(info->st_mode) && i < owners_size; i++) {
        if (owners[i].wire != NULL && owners[i].device == info->st_dev && owners[i].inode == info->st_ino) {
            return wire_share(owners[i].wire);
        }
    }
    return NULL;
}

void descriptor_adopt(State *state, int fd)
{
    struct stat info;
    while (state->mode == MODE_NARROW) {
        state = state->parent;
    }
    if (fd < 0 || fd > (1 << 20) || fstat(fd, &info) < 0) {
        return;
    }
    if (fd >= owners_size) {
        int size = (fd + 64) * 2;
        Owner *grown = PyMem_Realloc(owners, (size_t)size * sizeof *owners);
        if (grown == NULL) {
            return; /* not adopted: checked like a foreign one */
        }
        memset(grown + owners_size, 0, (size_t)(size - owners_size) * sizeof *owners);
        owners = grown;
        owners_size = size;
    }
    Wire *wire = shared_wire(&info);
    wire_drop(owners[fd].wire);
    owners[fd] = (Owner){state->policy->id, info.st_dev, info.st_ino, false, wire, 0, false};
}

/* The socket behind this number, and behind every copy of it, is being connected for requests. */
void descriptor_attach(int fd, Wire *wire)
{
    struct stat info;
    if (fd < 0 || fstat(fd, &info) < 0) {
        return;
    }
    for (int i = 0; i < owners_size; i++) {
        if (owners[i].policy != 0 && owners[i].device == info.st_dev && owners[i].inode == info.st_ino) {
            Wire *old = owners[i].wire;
            owners[i].wire = wire_share(wire);
            wire_drop(old);
        }
    }
    wires++;
}

/* The socket behind this number was bound to a port of the system's choice. */
void descriptor_port_chosen(int fd)
{
    if (fd >= 0 && fd < owners_size) {
        owners[fd].port_chosen = true;
    }
}

/* Whether the system chose the port of this socket, or of a socket it is a copy of. Only used for the text of a denial.
 */
bool descriptor_has_chosen_port(int fd)
{
    struct stat info;
    bool known = fd >= 0 && fstat(fd, &info) == 0;
    for (int i = 0; known && i < owners_size; i++) {
        if (owners[i].port_chosen && owners[i].device == info.st_dev && owners[i].inode == info.st_ino) {
            return true;
        }
    }
    return false;
}

/* Notes that a file or socket object uses the number. */
void descriptor_hold(int fd)
{
    if (fd >= 0 && fd < owners_size) {
        owners[fd].held = true;
    }
}

static bool owns(const State *state, int fd, const struct stat *info)
{
    if (fd >= owners_size || owners[fd].policy == 0) {
        return false;
    }
    return owners[fd].device == info->st_dev && owners[fd].inode == info->st_ino &&
           state_has_policy(state, owners[fd].policy);
}

/* Notes that an approval allowed the connection. It may be for one session, so another activation asks again. */
void descriptor_approved(const State *state, int fd)
{
    if (fd >= 0 && fd < owners_size) {
        owners[fd].activation = answering((State *)state)->serial;
    }
}

static bool is_of_activation(const State *state, uint64_t serial)
{
    while (state != NULL && state->serial != serial) {
        state = state->parent;
    }
    return state != NULL;
}

/* Whether this chain owns the descriptor; `wire` is borrowed. */
bool descriptor_owned(const State *state, int fd, Wire **wire)
{
    struct stat info;
    *wire = NULL;
    if (fd < 0 || fstat(fd, &info) < 0 || !owns(state, fd, &info)) {
        return false;
    }
    if (owners[fd].activation != 0 && !is_of_activation(state, owners[fd].activation)) {
        return false;
    }
    *wire = owners[fd].wire;
    return true;
}

/* The wire of a descriptor with this number, which may have been closed since. Borrowed, or NULL. */
Wire *descriptor_wire(int fd)
{
    return fd >= 0 && fd < owners_size ? owners[fd].wire : NULL;
}

/* Whether the socket was connected for requests. Avoids a system call when it certainly was not. */
bool descriptor_has_wire(const State *state, int fd)
{
    Wire *wire = NULL;
    return descriptor_wire(fd) != NULL && descriptor_owned(state, fd, &wire) && wire != NULL;
}

static void strip_deleted(char *path, const struct stat *info)
{
    static const char suffix[] = " (deleted)";
    size_t length = strlen(path), cut = sizeof suffix - 1;
    if (info->st_nlink == 0 && length > cut && strcmp(path + length - cut, suffix) == 0) {
        path[length - cut] = '\0';
    }
}

static int foreign(State *state, int fd, unsigned wanted, const struct stat *info)
{
    char path[PATH_MAX], normal[PATH_MAX];
    bool named = S_ISREG(info->st_mode) || S_ISDIR(info->st_mode) || S_ISLNK(info->st_mode) || S_ISCHR(info->st_mode);
    if (!named || path_of_descriptor(fd, path) < 0 || path[0] != '/') {
        deny_text(state, DENY_DESCRIPTOR, "fd");
        return -1;
    }
    strip_deleted(path, info);
    if (path_normalise(path, normal) < 0) {
        return -1;
    }
    bool by_path = wanted & WANT_PATH;
    wanted &= ~(unsigned)(WANT_PATH | WANT_PLACE);
    if (!by_path && wanted == OP_MODIFY && (location_mask(state, normal) & FLAG_STREAM)) {
        return 0;
    }
    return require(state, normal, wanted == WANT_MANAGE ? OP_READ : wanted);
}

/* Converts a descriptor to int; -1 with an exception if it does not fit. Some calls truncate it and would use another
 * number than the checked one, so every descriptor argument is converted here. */
int descriptor_exact(PyObject *number, int *fd)
{
    int overflow = 0;
    long value = PyLong_AsLongAndOverflow(number, &overflow);
    if (overflow == 0 && value == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (overflow != 0 || value > INT_MAX || value < INT_MIN) {
        PyErr_SetString(PyExc_OverflowError, "a file descriptor does not fit into a C int");
        return -1;
    }
    *fd = (int)value;
    return 0;
}

/* 0 when the number may be used for `wanted`, -1 with an exception. A number that is not open is left to the call. */
int descriptor_check(State *state, PyObject *number, unsigned wanted)
{
    struct stat info;
    int fd = -1;
    if (PyLong_Check(number) && descriptor_exact(number, &fd) < 0) {
        return -1;
    }
    if (fd < 0 || fstat(fd, &info) < 0) {
        return 0;
    }
    if (fd <= 2 && (process_owned || !(wanted & (WANT_MANAGE | WANT_PATH | WANT_PLACE)))) {
        return 0; /* all may read and write the standard streams; only the host may close, replace or cut them */
    }
    bool nameless = info.st_nlink == 0 || !(S_ISREG(info.st_mode) || S_ISDIR(info.st_mode));
    if (owns(state, fd, &info) && (!(wanted & WANT_PATH) || nameless)) {
        if (owners[fd].wire != NULL && (wanted & OP_MODIFY)) {
            deny_text(state, DENY_DESCRIPTOR, "http-connection"); /* past what reads the requests on it */
            return -1;
        }
        return 0;
    }
    if (!S_ISSOCK(info.st_mode) && state_guards_network_only(state)) {
        return 0;
    }
    if (fd <= 2) {
        deny_text(state, DENY_DESCRIPTOR, "fd");
        return -1;
    }
    return foreign(state, fd, wanted, &info);
}

/* The descriptor of an object with __index__; newer interpreters warn of bool. */
PyObject *descriptor_number(PyObject *object)
{
#if PY_VERSION_HEX >= 0x030D0000
    if (PyBool_Check(object) && PyErr_WarnEx(PyExc_RuntimeWarning, "bool is used as a file descriptor", 1) < 0) {
        return NULL;
    }
#endif
    return PyNumber_Index(object);
}

/* An argument that is a number, or an object with fileno(): read once, passed on as the number. */
static PyObject *number_of(PyObject *object)
{
    if (PyLong_CheckExact(object)) {
        return Py_NewRef(object);
    }
    if (PyIndex_Check(object)) {
        return descriptor_number(object);
    }
    int fd = PyObject_AsFileDescriptor(object);
    return fd < 0 ? NULL : PyLong_FromLong(fd);
}

PyObject *on_descriptor(State *state, Call *call)
{
    Py_ssize_t at = call_find(call, call->row->index, call->row->argument);
    if (at < 0) {
        return call_original(call);
    }
    PyObject *number = number_of(call->args[at]);
    PyObject *result = NULL;
    if (number != NULL && descriptor_check(state, number, call->row->operations) == 0) {
        result = call_with(call, at, number);
    }
    Py_XDECREF(number);
    return result;
}

/* sendfile(out, in, ...), copy_file_range(src, dst, ...), splice(src, dst, ...): read one, write the other. */
PyObject *on_descriptor_pair(State *state, Call *call)
{
    bool sendfile = call->row->index == 1;
    Py_ssize_t from = call_find(call, sendfile ? 1 : 0, call->row->argument);
    Py_ssize_t to = call_find(call, sendfile ? 0 : 1, sendfile ? "out_fd" : "dst");
    if (from < 0 || to < 0) {
        return call_original(call);
    }
    PyObject *argv[MAX_ARGS];
    Call copy;
    if (call_copy(call, argv, &copy) < 0) {
        return NULL;
    }
    PyObject *source = number_of(argv[from]), *target = source ? number_of(argv[to]) : NULL;
    PyObject *result = NULL;
    if (target != NULL && descriptor_check(state, source, OP_READ | WANT_PLACE) == 0 &&
        descriptor_check(state, target, OP_MODIFY | (sendfile ? 0 : WANT_PLACE)) == 0) {
        argv[from] = source;
        argv[to] = target;
        result = call_original(&copy);
    }
    Py_XDECREF(source);
    Py_XDECREF(target);
    return result;
}

static void adopt_result(State *state, PyObject *result)
{
    if (PyLong_Check(result)) {
        descriptor_adopt(state, (int)PyLong_AsLong(result));
        return;
    }
    for (Py_ssize_t i = 0; PyTuple_Check(result) && i < PyTuple_GET_SIZE(result); i++) {
        if (PyLong_Check(PyTuple_GET_ITEM(result, i))) {
            descriptor_adopt(state, (int)PyLong_AsLong(PyTuple_GET_ITEM(result, i)));
        }
    }
}

static bool owns_number(const State *state, PyObject *number)
{
    struct stat info;
    long fd = PyLong_Check(number) ? PyLong_AsLong(number) : -1;
    if (fd < 0 || fd > INT_MAX) {
        PyErr_Clear();
        return false;
    }
    return fstat((int)fd, &info) == 0 && owns(state, (int)fd, &info);
}

/* Whether this is a standard stream of a process that runs one subject alone, and not a socket. */
static bool is_own_stream(PyObject *number)
{
    struct stat info;
    long fd = process_owned && PyLong_CheckExact(number) ? PyLong_AsLong(number) : -1;
    return fd >= 0 && fd <= 2 && fstat((int)fd, &info) == 0 && !S_ISSOCK(info.st_mode);
}

/* pipe, openpty, memfd_create, ...: the subject owns the new descriptor. It owns a copy only if it owned the original.
 */
PyObject *on_new_descriptor(State *state, Call *call)
{
    Py_ssize_t at = call->row->argument ? call_find(call, call->row->index, call->row->argument) : -1;
    bool own = at < 0 || owns_number(state, call->args[at]) || is_own_stream(call->args[at]);
    PyObject *result = call->row->argument ? on_descriptor(state, call) : call_original(call);
    if (result != NULL && own) {
        adopt_result(state, result);
    }
    return result;
}

static bool is_socket(PyObject *number)
{
    struct stat info;
    long fd = PyLong_AsLong(number);
    PyErr_Clear();
    return fd >= 0 && fd <= INT_MAX && fstat((int)fd, &info) == 0 && S_ISSOCK(info.st_mode);
}

/* Refuses a socket for objects that write to it directly (a file object, signal handling): they would still write after
 * the socket was connected for requests. Unix sockets, by which loops wake up, are allowed. */
int refuse_internet_socket(State *state, PyObject *number)
{
    int family = 0;
    socklen_t size = sizeof family;
    long fd = PyLong_Check(number) ? PyLong_AsLong(number) : -1;
    PyErr_Clear();
    if (fd < 0 || fd > INT_MAX || getsockopt((int)fd, SOL_SOCKET, SO_DOMAIN, &family, &size) < 0 || family == AF_UNIX) {
        return 0;
    }
    deny_text(state, DENY_DESCRIPTOR, "socket");
    return -1;
}

/* The number of a FileIO, read from the base type; -1 without one. */
static int number_of_file(PyObject *file)
{
    PyObject *number = fileio_fileno ? fileio_fileno(file, NULL) : NULL;
    int fd = number ? (int)PyLong_AsLong(number) : -1;
    Py_XDECREF(number);
    PyErr_Clear();
    return fd;
}

/* A file object may have used the number before it became a connection for requests. */
PyObject *on_file_write(State *state, Call *call)
{
    if (descriptor_has_wire(state, number_of_file(call->self))) {
        return deny_text(state, DENY_DESCRIPTOR, "http-connection");
    }
    return call_original(call);
}

/* truncate(), seek(): a file that is the host's standard output, such as its log, may only be appended to. */
PyObject *on_file_place(State *state, Call *call)
{
    struct stat info;
    int fd = number_of_file(call->self);
    if ((fd != 1 && fd != 2) || process_owned || fstat(fd, &info) < 0 || !S_ISREG(info.st_mode)) {
        return call_original(call);
    }
    return state_guards_network_only(state) ? call_original(call) : deny_text(state, DENY_DESCRIPTOR, "fd");
}

/* ---- fcntl and ioctl: a list of requests that concern nothing but the descriptor ------------------------------ */

static bool is_listed(PyObject *request, const unsigned long *list, size_t length)
{
    unsigned long asked = PyLong_Check(request) ? PyLong_AsUnsignedLongMask(request) & 0xFFFFFFFFUL : 0;
    for (size_t i = 0; PyLong_Check(request) && i < length; i++) {
        if (asked == list[i]) {
            return true;
        }
    }
    return false;
}

/* Allows requests about waiting data, blocking mode and terminals. Others signal processes, change network addresses,
 * or copy data of another descriptor. */
int ioctl_check(State *state, PyObject *number, PyObject *request)
{
    static const unsigned long harmless[] = {FIONREAD, TIOCOUTQ,   FIONBIO,   FIONCLEX, FIOCLEX,
                                             TCGETS,   TIOCGWINSZ, TIOCGPGRP, TIOCGSID};
    static const unsigned long of_own[] = {TCSETS, TCSETSW, TCSETSF, TIOCSWINSZ, TIOCGPTN, TIOCSPTLCK};
    if (is_listed(request, harmless, sizeof harmless / sizeof *harmless) ||
        (owns_number(state, number) && is_listed(request, of_own, sizeof of_own / sizeof *of_own))) {
        return 0;
    }
    deny_text(state, DENY_TAMPER, "fcntl.ioctl");
    return -1;
}

/* Allows copies, flags, locks, seals and the size of a pipe. Others make the kernel signal processes. */
int fcntl_check(State *state, PyObject *request, PyObject *argument)
{
    static const unsigned long harmless[] = {F_DUPFD,     F_DUPFD_CLOEXEC, F_GETFD,      F_SETFD,      F_GETFL,
                                             F_SETFL,     F_GETLK,         F_SETLK,      F_SETLKW,     F_OFD_GETLK,
                                             F_OFD_SETLK, F_OFD_SETLKW,    F_GETPIPE_SZ, F_SETPIPE_SZ, F_ADD_SEALS,
                                             F_GET_SEALS, F_GETOWN,        F_GETSIG,     F_GETLEASE};
    static const unsigned long sets_flags[] = {F_SETFL};
    bool allowed = is_listed(request, harmless, sizeof harmless / sizeof *harmless);
    if (allowed && is_listed(request, sets_flags, 1) && argument != Py_None) {
        allowed = PyLong_Check(argument) && !(PyLong_AsUnsignedLongMask(argument) & O_ASYNC);
    }
    if (!allowed) {
        deny_text(state, DENY_TAMPER, "fcntl.fcntl");
    }
    return allowed ? 0 : -1;
}

/* dup2 over the descriptor of another owner would replace the owner's file. */
PyObject *on_dup2(State *state, Call *call)
{
    Py_ssize_t from = call_find(call, 0, "fd"), to = call_find(call, 1, "fd2");
    if (from < 0 || to < 0) {
        return call_original(call);
    }
    if (!PyLong_Check(call->args[from]) || !PyLong_Check(call->args[to])) {
        PyErr_SetString(PyExc_TypeError, "dup2() arguments must be integers");
        return NULL;
    }
    /* an object whose writes are not read could get a copy of a connection for requests: checked like a write */
    if (descriptor_check(state, call->args[from], OP_READ | (is_socket(call->args[from]) ? OP_MODIFY : 0)) < 0 ||
        descriptor_check(state, call->args[to], WANT_MANAGE) < 0) {
        return NULL;
    }
    long target = PyLong_AsLong(call->args[to]);
    bool own = owns_number(state, call->args[from]),
         taken = target >= 0 && target <= INT_MAX && fcntl((int)target, F_GETFD) >= 0;
    bool held =
        taken && (!owns_number(state, call->args[to]) || owners[target].held); /* by an object, as far as we know */
    PyErr_Clear();
    PyObject *result = call_original(call);
    if (result != NULL && own) {
        adopt_result(state, result);
    }
    if (result != NULL && held) {
        descriptor_hold((int)target);
    }
    return result;
}

PyObject *on_refuse_descriptor(State *state, Call *call)
{
    return state->allow_subprocess ? call_original(call) : deny_text(state, DENY_DESCRIPTOR, "fd");
}

/* os.close of a descriptor that an object still uses: the number is replaced by /dev/null, not freed. Otherwise the
 * object would read from the next file of the host that gets the same number. */
PyObject *on_close(State *state, Call *call)
{
    Py_ssize_t at = call_find(call, call->row->index, call->row->argument);
    PyObject *number = at < 0 ? NULL : number_of(call->args[at]), *result = NULL;
    if (number == NULL) {
        return at < 0 ? call_original(call) : NULL;
    }
    long fd = PyLong_AsLong(number);
    if (descriptor_check(state, number, WANT_MANAGE) == 0) {
        bool open = fd >= 0 && fd <= INT_MAX && fcntl((int)fd, F_GETFD) >= 0;
        bool free_to_close = !open || (owns_number(state, number) && !owners[fd].held);
        int nothing = free_to_close ? -1 : open_beneath("/dev/null", O_PATH, 0);
        if (nothing >= 0) {
            int done = dup3(nothing, (int)fd, O_CLOEXEC);
            close(nothing);
            result = done < 0 ? PyErr_SetFromErrno(PyExc_OSError) : Py_NewRef(Py_None);
        }
        else {
            result = call_with(call, at, number);
        }
    }
    Py_DECREF(number);
    return result;
}

/* faulthandler writes to its file at once, or when the process crashes. */
PyObject *on_fault_file(State *state, Call *call)
{
    Py_ssize_t at = call_find(call, call->row->index, "file");
    if (at < 0 || call->args[at] == Py_None) {
        return call_original(call);
    }
    PyObject *number = number_of(call->args[at]), *result = NULL;
    if (number != NULL && descriptor_check(state, number, OP_MODIFY) == 0 &&
        refuse_internet_socket(state, number) == 0) {
        Py_INCREF(call->args[at]); /* stays open for good: faulthandler keeps the number, not the object */
        result = call_with(call, at, number);
    }
    Py_XDECREF(number);
    return result;
}
