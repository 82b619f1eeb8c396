/* Paths: converts an argument once, normalizes it lexically, and lets the kernel resolve it.
 *
 * The kernel walks the path with RESOLVE_NO_SYMLINKS. If that succeeds, the lexical form is the location. If it
 * meets a link, the path is resolved through an O_PATH handle and matched again. No Python code of a subject runs in
 * here. */
#include "rules/rules.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_openat2
#define SYS_openat2 437
#endif

/* With O_PATH|O_NOFOLLOW a link in the last place is returned as itself; anywhere else it is ELOOP. */
int open_beneath(const char *path, int flags, int mode)
{
    struct open_how how = {
        .flags = (uint64_t)(unsigned)(flags | O_CLOEXEC),
        .resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
    };
    if (flags & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))) {
        how.mode = (uint64_t)mode & 07777;
    }
    return (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how);
}

int openat2_missing(void)
{
    int fd = open_beneath("/", O_PATH | O_DIRECTORY, 0);
    if (fd < 0) {
        return errno;
    }
    close(fd);
    return 0;
}

/* Whether stat(), FileIO and others accept the object as a descriptor: it has __index__ and is not a path. */
int path_is_descriptor(PyObject *object)
{
    return PyLong_Check(object) || (PyIndex_Check(object) && !PyUnicode_Check(object) && !PyBytes_Check(object));
}

/* Converts a path object to an exact str or bytes, once: a subclass, or a changing __fspath__, cannot give another
 * value later. */
PyObject *path_exact(PyObject *object)
{
    if (PyUnicode_CheckExact(object) || PyBytes_CheckExact(object)) {
        return Py_NewRef(object);
    }
    PyObject *path = PyOS_FSPath(object);
    if (path == NULL || PyUnicode_CheckExact(path) || PyBytes_CheckExact(path)) {
        return path;
    }
    PyObject *exact;
    if (PyUnicode_Check(path)) {
        exact = PyUnicode_FromObject(path);
    }
    else {
        exact = PyBytes_FromStringAndSize(PyBytes_AS_STRING(path), PyBytes_GET_SIZE(path));
    }
    Py_DECREF(path);
    return exact;
}

static int too_long(PyObject *object)
{
    errno = ENAMETOOLONG;
    PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, object);
    return -1;
}

/* The bytes that the kernel gets. *held keeps them alive. */
static const char *path_bytes(PyObject *object, Py_ssize_t *length, PyObject **held)
{
    *held = NULL;
    if (PyBytes_Check(object)) {
        *length = PyBytes_GET_SIZE(object);
        return PyBytes_AS_STRING(object);
    }
    if (PyUnicode_IS_COMPACT_ASCII(object)) {
        *length = PyUnicode_GET_LENGTH(object);
        return (const char *)PyUnicode_1BYTE_DATA(object);
    }
    *held = PyUnicode_EncodeFSDefault(object);
    if (*held == NULL) {
        return NULL;
    }
    *length = PyBytes_GET_SIZE(*held);
    return PyBytes_AS_STRING(*held);
}

/* Whether the part of a path that begins here is empty, "." or ".."; also for others that begin with two dots. */
static inline bool is_special(const char *part)
{
    return *part == '/' || *part == '\0' ||
           (*part == '.' && (part[1] == '/' || part[1] == '.' || part[1] == '\0'));
}

/* The length of a path that is normal already, because no part is special; otherwise 0. */
static size_t normal_length(const char *raw)
{
    const char *p = raw;
    while (*p == '/' && !is_special(p + 1)) {
        p = strchrnul(p + 1, '/');
    }
    return *p == '\0' ? (size_t)(p - raw) : 0;
}

/* Removes "//", "." and "..", without reading the file system. */
int path_normalise(const char *raw, char *out)
{
    size_t normal = normal_length(raw);
    if (LIKELY(normal > 0 && normal < PATH_MAX - 1)) {
        memcpy(out, raw, normal + 1);
        return 0;
    }
    size_t used = 0;
    const char *p = raw;
    while (*p != '\0') {
        while (*p == '/') {
            p++;
        }
        const char *end = p;
        while (*end != '\0' && *end != '/') {
            end++;
        }
        size_t length = (size_t)(end - p);
        if (length == 0 || (length == 1 && p[0] == '.')) {
            p = end;
            continue;
        }
        if (length == 2 && p[0] == '.' && p[1] == '.') {
            while (used > 0 && out[--used] != '/') {
            }
            p = end;
            continue;
        }
        if (used + length + 2 > PATH_MAX) {
            return -1;
        }
        out[used++] = '/';
        memcpy(out + used, p, length);
        used += length;
        p = end;
    }
    if (used == 0) {
        out[used++] = '/';
    }
    out[used] = '\0';
    return 0;
}

static bool means_directory(const char *text, size_t length)
{
    return text[length - 1] == '/' || (length > 1 && text[length - 1] == '.' && text[length - 2] == '/') ||
           (length > 2 && memcmp(text + length - 3, "/..", 3) == 0);
}

static int fill_text(const char *bytes, size_t length, const char *base, PathText *out)
{
    size_t used = 0;
    if (bytes[0] != '/') {
        if (base == NULL) {
            if (getcwd(out->raw, PATH_MAX) == NULL) {
                PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, out->shown);
                return -1;
            }
        }
        else {
            snprintf(out->raw, PATH_MAX, "%s", base);
        }
        used = strlen(out->raw);
        out->raw[used++] = '/';
    }
    if (used + length + 1 > PATH_MAX) {
        return too_long(out->shown);
    }
    memcpy(out->raw + used, bytes, length + 1);
    out->written = used;
    used += length;
    if (LIKELY(normal_length(out->raw) == used && used < PATH_MAX - 1)) {
        memcpy(out->text, out->raw, used + 1);
        out->directory = out->dotted = false;
        return 0;
    }
    if (strlen(bytes) != length) {
        PyErr_SetString(PyExc_ValueError, "embedded null byte");
        return -1;
    }
    out->directory = means_directory(out->raw, used);
    out->dotted = strstr(bytes, "..") != NULL;
    return path_normalise(out->raw, out->text) < 0 ? too_long(out->shown) : 0;
}

/* Fills `out` from an exact or convertible path object; relative paths start at `base` (NULL: the working directory).
 */
int path_text_at(PyObject *object, const char *base, PathText *out)
{
    PyObject *held;
    Py_ssize_t length;
    out->object = path_exact(object);
    if (out->object == NULL) {
        return -1;
    }
    out->shown = PyUnicode_Check(object) || PyBytes_Check(object) ? object : out->object;
    const char *bytes = path_bytes(out->object, &length, &held);
    int result = -1;
    if (bytes == NULL) {
        goto done;
    }
    if (length >= PATH_MAX) {
        too_long(out->shown);
    }
    else if (length == 0) {
        errno = ENOENT;
        PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, out->shown);
    }
    else {
        result = fill_text(bytes, (size_t)length, base, out);
    }
done:
    Py_XDECREF(held);
    if (result < 0) {
        Py_CLEAR(out->object);
    }
    return result;
}

int path_text(PyObject *object, PathText *out)
{
    return path_text_at(object, NULL, out);
}

int path_of_descriptor(int fd, char *out)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, out, PATH_MAX - 1);
    if (length < 0) {
        return -1;
    }
    out[length] = '\0';
    return 0;
}

/* Moves the last component of `path` to the front of `rest`. False when `path` has no component. */
static bool shift_last(char *path, char *rest)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') {
        path[--length] = '\0';
    }
    char *cut = strrchr(path, '/');
    if (length <= 1 || strlen(rest) + length + 2 > PATH_MAX) {
        return false;
    }
    size_t name = strlen(cut + 1);
    memmove(rest + name + 1, rest, strlen(rest) + 1);
    memcpy(rest, cut + 1, name);
    rest[name] = rest[name + 1] == '\0' ? '\0' : '/';
    cut[cut == path ? 1 : 0] = '\0';
    return true;
}

/* If `path` is a dangling link, replaces it by its target. */
static bool follow_dangling(char *path)
{
    char target[PATH_MAX], rest[PATH_MAX] = "";
    ssize_t length = readlink(path, target, PATH_MAX - 1);
    if (length <= 0) {
        return false;
    }
    target[length] = '\0';
    while (length > 1 && target[length - 1] == '/') {
        target[--length] = '\0'; /* "there/" of a folder that is missing is missing too */
    }
    if (target[0] == '/') {
        strcpy(path, target);
        return true;
    }
    shift_last(path, rest);
    size_t used = strlen(path);
    if (used + (size_t)length + 2 > PATH_MAX) {
        return false;
    }
    path[used++] = '/';
    memcpy(path + used, target, (size_t)length + 1);
    return true;
}

static bool is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

static bool has_dots(const char *rest)
{
    for (const char *p = rest; *p != '\0';) {
        size_t length = strcspn(p, "/");
        if (length == 2 && p[0] == '.' && p[1] == '.') {
            return true;
        }
        p += length + (p[length] == '/');
    }
    return false;
}

/* Resolves a path, also when its last parts do not exist. Changes nothing on disk. */
int path_canonical(const char *raw, int follow, char *out)
{
    char work[PATH_MAX], rest[PATH_MAX] = "", joined[PATH_MAX];
    strcpy(work, raw);
    for (size_t end = strlen(work); end > 1 && work[end - 1] == '/';) {
        work[--end] = '\0'; /* the caller asks for a folder; a link with another target is followed too */
    }
    if (!follow && shift_last(work, rest) && is_dots(rest)) {
        strcpy(work, raw);
        rest[0] = '\0';
    }
    int missing = 0;
    for (int links = 0; links < 40;) {
        int fd = open(work, O_PATH | O_CLOEXEC);
        if (fd < 0 && missing == 0) {
            missing = errno;
        }
        if (fd >= 0 && has_dots(rest)) {
            close(fd);
            errno = missing; /* ".." below something that is not there: the kernel gives up, and so do we */
            return -1;
        }
        if (fd >= 0) {
            int failed = path_of_descriptor(fd, joined);
            close(fd);
            size_t used = failed < 0 ? 0 : strlen(joined);
            if (failed < 0 || joined[0] != '/' || used + strlen(rest) + 2 > PATH_MAX) {
                errno = ENXIO; /* a pipe, a socket: nothing a root could name */
                return -1;
            }
            joined[used] = '/';
            strcpy(joined + used + 1, rest);
            return path_normalise(joined, out);
        }
        if (follow_dangling(work)) {
            links++;
        }
        else if (!shift_last(work, rest)) {
            return -1;
        }
    }
    return -1;
}

PyObject *path_object(const char *text, PyObject *like)
{
    return PyBytes_Check(like) ? PyBytes_FromString(text) : PyUnicode_DecodeFSDefault(text);
}

/* A path through an open handle: the call uses the checked file, even if folders are renamed. */
PyObject *path_handle_object(int fd, const char *base, PyObject *like)
{
    char text[PATH_MAX + 64];
    snprintf(text, sizeof text, base[0] ? "/proc/self/fd/%d/%s" : "/proc/self/fd/%d", fd, base);
    return path_object(text, like);
}
