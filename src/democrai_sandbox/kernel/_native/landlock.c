/* Landlock system calls. Python code decides which bits a kernel supports. */
#include "native.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The same on every architecture. Older headers lack them, or parts of the structs. */
enum { CREATE_RULESET = 444, ADD_RULE = 445, RESTRICT_SELF = 446 };
/* Execute, write, read, truncate, device ioctl: the rights of a rule on anything other than a folder. */
enum { FILE_RIGHTS = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15 };
enum { RULE_PATH_BENEATH = 1, RULE_NET_PORT = 2, CREATE_RULESET_VERSION = 1, HIGHEST_PORT = 65535 };

typedef struct {
    uint64_t fs, net, scoped;
} RulesetAttr;

typedef struct {
    uint64_t access;
    int32_t parent;
} __attribute__((packed)) PathAttr;

typedef struct {
    uint64_t access, port;
} PortAttr;

int kernel_restrict(int ruleset, unsigned flags)
{
    int failed = kernel_set_no_new_privs();
    if (failed < 0) {
        return failed;
    }
    return syscall(RESTRICT_SELF, ruleset, flags) < 0 ? -errno : 0;
}

int kernel_add_path(int ruleset, int fd, uint64_t access)
{
    PathAttr attr = {.access = access, .parent = fd};
    return syscall(ADD_RULE, ruleset, RULE_PATH_BENEATH, &attr, 0) < 0 ? -errno : 0;
}

static long version(void)
{
    long abi = syscall(CREATE_RULESET, NULL, 0, CREATE_RULESET_VERSION);
    return abi < 0 ? -errno : abi;
}

PyObject *native_landlock_abi(PyObject *module, PyObject *unused)
{
    if (native_announce("landlock_abi") < 0) {
        return NULL;
    }
    long abi = version();
    return PyLong_FromLong(abi > 0 ? abi : 0);
}

/* Reason for a missing ABI: ENOSYS if the kernel was built without Landlock, EOPNOTSUPP if it was not enabled at boot,
 * another error if a filter blocks the call. */
PyObject *native_landlock_errno(PyObject *module, PyObject *unused)
{
    if (native_announce("landlock_errno") < 0) {
        return NULL;
    }
    long abi = version();
    return PyLong_FromLong(abi < 0 ? -abi : 0);
}

/* A kernel refuses a longer struct than its own unless the rest is zero, and some filters check the size only, so
 * unused fields are not sent. */
static size_t size_of(const RulesetAttr *attr)
{
    if (attr->scoped != 0) {
        return sizeof *attr;
    }
    return attr->net != 0 ? offsetof(RulesetAttr, scoped) : offsetof(RulesetAttr, net);
}

PyObject *native_landlock_create(PyObject *module, PyObject *args)
{
    RulesetAttr attr = {0};
    if (native_announce("landlock_create") < 0 ||
        !PyArg_ParseTuple(args, "O&O&O&:landlock_create", native_bits, &attr.fs, native_bits, &attr.net, native_bits,
                          &attr.scoped)) {
        return NULL;
    }
    long fd = syscall(CREATE_RULESET, &attr, size_of(&attr), 0); /* close-on-exec */
    return fd < 0 ? native_failed(errno) : PyLong_FromLong(fd);
}

/* Errors of a path that does not exist, that this user cannot reach, or that leads through /proc to a pipe, socket or
 * memory file, which Landlock does not restrict. Others, such as missing descriptors, say nothing about the path. */
static bool is_not_there(int error)
{
    return error == ENOENT || error == ENOTDIR || error == EACCES || error == ELOOP || error == ENAMETOOLONG ||
           error == ENXIO || error == EBADFD;
}

/* Whether the descriptor is at this path, and not where a link on the way leads. */
static bool is_at(int fd, const char *path)
{
    char own[64], found[PATH_MAX];
    snprintf(own, sizeof own, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(own, found, sizeof found);
    return length == (ssize_t)strlen(path) && memcmp(found, path, (size_t)length) == 0;
}

/* Adds a rule for the target of a path. Returns 0 or an error. */
static int add(int ruleset, const char *path, uint64_t access, bool exact)
{
    struct stat info;
    int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0) {
        return errno;
    }
    int failed = exact && !is_at(fd, path) ? ELOOP : 0;
    /* The type is that of the descriptor: the path may lead elsewhere later. */
    failed = failed == 0 && fstat(fd, &info) < 0 ? errno : failed;
    access &= failed == 0 && !S_ISDIR(info.st_mode) ? FILE_RIGHTS : ~(uint64_t)0;
    if (failed == 0 && access != 0) {
        failed = -kernel_add_path(ruleset, fd, access);
    }
    close(fd);
    return failed;
}

PyObject *native_landlock_add_path(PyObject *module, PyObject *args)
{
    int ruleset, exact;
    PyObject *path;
    uint64_t access;
    if (native_announce("landlock_add_path") < 0 ||
        !PyArg_ParseTuple(args, "iO&O&p:landlock_add_path", &ruleset, PyUnicode_FSConverter, &path, native_bits,
                          &access, &exact)) {
        return NULL;
    }
    int failed = add(ruleset, PyBytes_AS_STRING(path), access, exact);
    Py_DECREF(path);
    return failed != 0 && !is_not_there(failed) ? native_failed(failed) : PyBool_FromLong(failed == 0);
}

PyObject *native_landlock_add_port(PyObject *module, PyObject *args)
{
    int ruleset, port;
    uint64_t access;
    if (native_announce("landlock_add_port") < 0 ||
        !PyArg_ParseTuple(args, "iiO&:landlock_add_port", &ruleset, &port, native_bits, &access)) {
        return NULL;
    }
    if (port < 0 || port > HIGHEST_PORT) {
        return PyErr_Format(PyExc_ValueError, "port must be a number from 0 to %d, got %d", HIGHEST_PORT, port);
    }
    PortAttr attr = {.access = access, .port = (uint64_t)port};
    if (syscall(ADD_RULE, ruleset, RULE_NET_PORT, &attr, 0) < 0) {
        return native_failed(errno);
    }
    Py_RETURN_NONE;
}

PyObject *native_landlock_restrict(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"ruleset", "flags", NULL};
    int ruleset;
    uint64_t flags = 0;
    if (native_announce("landlock_restrict") < 0 ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "i|O&:landlock_restrict", names, &ruleset, native_bits, &flags)) {
        return NULL;
    }
    if (flags > UINT32_MAX) { /* truncation would change the flags */
        return native_failed(EINVAL);
    }
    int failed = kernel_restrict(ruleset, (unsigned)flags);
    if (failed < 0) {
        return native_failed(failed);
    }
    Py_RETURN_NONE;
}
