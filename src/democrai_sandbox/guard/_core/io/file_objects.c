/* FileIO: open(), io.open, io.open_code, and FileIO itself.
 *
 * The guard opens the file and fills the object, as FileIO.__init__ does. FileIO itself would raise one more audit event
 * and ask the file for its metadata with one more switch of threads. When the package is imported, objects filled here
 * are compared with those of the interpreter; if they differ, the interpreter fills all objects. */
#include "io/io.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static initproc fileio_original = NULL;
static PyTypeObject *fileio_type = NULL;

/* ---- filling an object ---------------------------------------------------------------------- */

/* The fields of FileIO up to CPython 3.13. */
typedef struct {
    PyObject_HEAD int fd;
    unsigned created : 1, readable : 1, writable : 1, appending : 1;
    signed seekable : 2;
    unsigned closes : 1;
    char finalizing;
    unsigned block_size;
    PyObject *weak_references, *attributes;
} FileObject;

enum { USUAL_BLOCK_SIZE = 8192 };
static bool fits = false;

/* Whether nothing has used the object yet. */
static bool is_new(const FileObject *file)
{
    return file->fd < 0 && !file->created && !file->readable && !file->writable && !file->appending;
}

static void fill(FileObject *file, int fd, int flags, const struct stat *info, bool closes)
{
    int access = flags & O_ACCMODE;
    file->fd = fd;
    file->created = (flags & O_EXCL) != 0;
    file->readable = access != O_WRONLY;
    file->writable = access != O_RDONLY;
    file->closes = closes;
    file->block_size = info->st_blksize > 1 ? (unsigned)info->st_blksize : USUAL_BLOCK_SIZE;
}

static PyObject *new_object(void)
{
    PyObject *none = PyTuple_New(0), *object = none ? fileio_type->tp_new(fileio_type, none, NULL) : NULL;
    Py_XDECREF(none);
    return object;
}

/* Whether an object filled here has the same fields as one of the interpreter. */
static bool fills_alike(int fd, const char *mode, int flags)
{
    const size_t first = offsetof(FileObject, fd), end = offsetof(FileObject, weak_references);
    struct stat info;
    PyObject *args = Py_BuildValue("isO", fd, mode, Py_False);
    PyObject *ours = args ? new_object() : NULL, *theirs = ours ? new_object() : NULL;
    bool alike = theirs != NULL && fstat(fd, &info) == 0 && is_new((FileObject *)ours) &&
                 fileio_original(theirs, args, NULL) == 0;
    if (alike) {
        fill((FileObject *)ours, fd, flags, &info, false);
        alike = memcmp((char *)ours + first, (char *)theirs + first, end - first) == 0;
    }
    PyErr_Clear();
    Py_XDECREF(theirs);
    Py_XDECREF(ours);
    Py_XDECREF(args);
    return alike;
}

static bool all_fill_alike(void)
{
    int ends[2];
    if (PY_VERSION_HEX >= 0x030E0000 || fileio_type->tp_basicsize != sizeof(FileObject) ||
        fileio_type->tp_weaklistoffset != offsetof(FileObject, weak_references) ||
        fileio_type->tp_dictoffset != offsetof(FileObject, attributes) || pipe2(ends, O_CLOEXEC) < 0) {
        return false;
    }
    bool alike = fills_alike(ends[0], "r", O_RDONLY) && fills_alike(ends[1], "w", O_WRONLY | O_CREAT | O_TRUNC) &&
                 fills_alike(ends[1], "x", O_WRONLY | O_CREAT | O_EXCL) && fills_alike(ends[0], "r+", O_RDWR);
    close(ends[0]);
    close(ends[1]);
    return alike;
}

/* ---- the arguments -------------------------------------------------------------------------- */

/* The flags that FileIO derives from its mode; -1 with its exception for another mode. */
static int mode_flags(const char *mode)
{
    int kinds = 0, plus = 0, flags = 0;
    for (const char *p = mode; *p != '\0'; p++) {
        switch (*p) {
        case 'w':
            flags |= O_CREAT | O_TRUNC | O_WRONLY;
            break;
        case 'x':
            flags |= O_CREAT | O_EXCL | O_WRONLY;
            break;
        case 'a':
            flags |= O_CREAT | O_APPEND | O_WRONLY;
            break;
        case 'r':
            break;
        case '+':
            plus++;
            continue;
        case 'b':
            continue;
        default:
            PyErr_Format(PyExc_ValueError, "invalid mode: %.200s", mode);
            return -1;
        }
        kinds++;
    }
    if (kinds != 1 || plus > 1) {
        PyErr_SetString(PyExc_ValueError,
                        "Must have exactly one of create/read/write/append mode and at most one plus");
        return -1;
    }
    return plus ? (flags & ~O_ACCMODE) | O_RDWR : flags;
}

static unsigned mode_operations(int flags)
{
    int access = flags & O_ACCMODE;
    return (access != O_WRONLY ? OP_READ : 0) | (access != O_RDONLY ? OP_MODIFY : 0);
}

static int init_with(PyObject *self, PyObject *file, const char *mode, int closefd)
{
    PyObject *text = PyUnicode_FromString(mode);
    PyObject *args = text ? PyTuple_Pack(3, file, text, closefd ? Py_True : Py_False) : NULL;
    Py_XDECREF(text);
    if (args == NULL) {
        return -1;
    }
    checked_open = true;
    int result = fileio_original(self, args, NULL);
    checked_open = false;
    Py_DECREF(args);
    return result;
}

static int put_name(PyObject *self, PyObject *name)
{
    static PyObject *attribute = NULL;
    if (attribute == NULL) {
        attribute = PyUnicode_InternFromString("name");
    }
    return attribute ? PyObject_SetAttr(self, attribute, name) : -1;
}

/* FileIO takes the descriptor we opened, and keeps the name the caller gave. */
static int init_opened(PyObject *self, int fd, PyObject *name, const char *mode)
{
    PyObject *number = PyLong_FromLong(fd);
    int result = number ? init_with(self, number, mode, 1) : -1;
    Py_XDECREF(number);
    if (result < 0) {
        errno_filename(name, NULL);
        close(fd);
        return -1;
    }
    return put_name(self, name);
}

/* Like init_opened(), for a file about which fstat() has answered. */
static int init_filled(PyObject *self, int fd, PyObject *name, const char *mode, int flags, const struct stat *info)
{
    FileObject *file = (FileObject *)self;
    if (!fits || !Py_IS_TYPE(self, fileio_type) || !is_new(file) || info->st_mode == 0 || (flags & O_APPEND) ||
        !audit_hook_list_is_ours()) {
        return init_opened(self, fd, name, mode);
    }
    if (S_ISDIR(info->st_mode)) {
        close(fd);
        errno = EISDIR;
        errno_error(name);
        return -1;
    }
    fill(file, fd, flags, info, true);
    return put_name(self, name);
}

/* The opener of a caller may return any number, so it is checked before FileIO gets it. */
static int init_from_opener(State *state, PyObject *self, PyObject *file, PyObject *opener, const char *mode, int flags)
{
    PyObject *number = PyObject_CallFunction(opener, "Oi", file, flags | O_CLOEXEC);
    if (number == NULL) {
        return -1;
    }
    int fd = PyLong_Check(number) ? (int)PyLong_AsLong(number) : -1;
    int result = -1;
    if (fd < 0) {
        if (!PyErr_Occurred()) {
            PyErr_Format(PyExc_ValueError, "opener returned %R", number);
        }
    }
    else if (descriptor_check(state, number, mode_operations(flags)) == 0 &&
             (!(mode_operations(flags) & OP_MODIFY) || refuse_internet_socket(state, number) == 0)) {
        ioctl(fd, FIOCLEX);
        descriptor_hold(fd);
        result = init_opened(self, fd, file, mode);
    }
    Py_DECREF(number);
    return result;
}

static int init_path(State *state, PyObject *self, PyObject *file, PyObject *opener, const char *mode, int flags)
{
    PathText text;
    if (path_text(file, &text) < 0) {
        return -1;
    }
    int result = -1;
    text.shown = file; /* also an object that only names a path */
    if (announce_open(text.object, mode, flags) == 0) {
        if (opener != Py_None) {
            result = init_from_opener(state, self, text.object, opener, mode, flags);
        }
        else {
            struct stat info;
            int fd = guarded_open(state, &text, flags, 0666, &info);
            result = fd < 0 ? -1 : init_filled(self, fd, file, mode, flags, &info);
        }
    }
    Py_DECREF(text.object);
    return result;
}

static int init_descriptor(State *state, PyObject *self, PyObject *file, const char *mode, int closefd, int flags)
{
    PyObject *number = descriptor_number(file);
    int result = -1;
    /* closing the object closes the descriptor, so that has to be the subject's own */
    if (number != NULL && descriptor_check(state, number, mode_operations(flags)) == 0 &&
        (!(mode_operations(flags) & OP_MODIFY) || refuse_internet_socket(state, number) == 0) &&
        (!closefd || descriptor_check(state, number, WANT_MANAGE) == 0)) {
        result = init_with(self, number, mode, closefd);
        descriptor_hold((int)PyLong_AsLong(number));
    }
    Py_XDECREF(number);
    return result;
}

/* While subject-owned code is loaded, remember "no guard applies" for the audit event that follows this open, unless
 * converting the arguments can run foreign code first. */
static int init_unguarded(PyObject *self, PyObject *args, PyObject *kwargs)
{
    checked_open = residents > 0 && kwargs == NULL && PyTuple_GET_SIZE(args) == 4 &&
                   PyUnicode_CheckExact(PyTuple_GET_ITEM(args, 0)) && PyUnicode_CheckExact(PyTuple_GET_ITEM(args, 1)) &&
                   PyBool_Check(PyTuple_GET_ITEM(args, 2));
    int result = fileio_original(self, args, kwargs);
    checked_open = false;
    return result;
}

typedef struct {
    PyObject *file, *opener;
    const char *mode;
    int closefd;
} Arguments;

static bool read_arguments(PyObject *args, PyObject *kwargs, Arguments *out)
{
    static char *names[] = {"file", "mode", "closefd", "opener", NULL};
    *out = (Arguments){NULL, Py_None, "r", 1};
    if (kwargs == NULL && PyTuple_GET_SIZE(args) == 4 && PyBool_Check(PyTuple_GET_ITEM(args, 2)) &&
        PyUnicode_CheckExact(PyTuple_GET_ITEM(args, 1)) && PyUnicode_IS_COMPACT_ASCII(PyTuple_GET_ITEM(args, 1))) {
        const char *mode = (const char *)PyUnicode_1BYTE_DATA(PyTuple_GET_ITEM(args, 1)); /* as open() gives them */
        *out = (Arguments){PyTuple_GET_ITEM(args, 0), PyTuple_GET_ITEM(args, 3), mode,
                           PyTuple_GET_ITEM(args, 2) == Py_True};
        if (strlen(mode) == (size_t)PyUnicode_GET_LENGTH(PyTuple_GET_ITEM(args, 1))) {
            return true;
        }
    }
    return PyArg_ParseTupleAndKeywords(args, kwargs, "O|spO:FileIO", names, &out->file, &out->mode, &out->closefd,
                                       &out->opener);
}

static int fileio_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    State *state = state_guarding();
    if (LIKELY(state == NULL)) {
        return LIKELY(live_states == 0) ? fileio_original(self, args, kwargs) : init_unguarded(self, args, kwargs);
    }
    Arguments given;
    if (!read_arguments(args, kwargs, &given)) {
        return -1;
    }
    PyObject *file = given.file, *opener = given.opener;
    const char *mode = given.mode;
    int closefd = given.closefd, flags = mode_flags(mode);
    if (flags >= 0 && !closefd && !path_is_descriptor(file)) {
        PyErr_SetString(PyExc_ValueError, "Cannot use closefd=False with file name");
        flags = -1;
    }
    if (flags < 0) {
        return -1;
    }
    Py_INCREF(state);
    int result = path_is_descriptor(file) ? init_descriptor(state, self, file, mode, closefd, flags)
                                          : init_path(state, self, file, opener, mode, flags | O_CLOEXEC);
    Py_DECREF(state);
    return result;
}

PyCFunction fileio_fileno = NULL;

int fileio_patch(PyObject *module)
{
    PyTypeObject *type = (PyTypeObject *)PyObject_GetAttrString(module, "FileIO");
    if (type == NULL) {
        PyErr_Clear();
        return 0;
    }
    if (type->tp_init != fileio_init) {
        fileio_original = type->tp_init;
        fileio_type = type; /* kept for good */
        Py_INCREF(type);
        fits = all_fill_alike();
        PyObject *method = PyObject_GetAttrString((PyObject *)type, "fileno");
        bool native = method != NULL && Py_IS_TYPE(method, &PyMethodDescr_Type);
        fileio_fileno = native ? ((PyMethodDescrObject *)method)->d_method->ml_meth : NULL;
        Py_XDECREF(method);
        PyErr_Clear();
    }
    int result = patch_slot(type, "__init__", (void **)&type->tp_init, (void *)fileio_init);
    Py_DECREF(type);
    return result < 0 ? -1 : 1;
}

int file_objects_ready(void)
{
    PyObject *io = PyImport_ImportModule("_io");
    int result = io ? fileio_patch(io) : -1;
    Py_XDECREF(io);
    return result == 1 ? 0 : -1;
}
