/* Opens files. The openat2 call that checks the path is the open itself, so nothing can be replaced in between. */
#include "files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

FAST_THREAD_LOCAL bool checked_open = false;

/* ---- which operations an open asks for ------------------------------------------------------ */

typedef struct {
    unsigned must;   /* all of these */
    unsigned either; /* and one of these: which one depends on whether the file is there */
} Wanted;

static Wanted wanted_by(int flags)
{
    int access = flags & O_ACCMODE;
    bool writes = access != O_RDONLY || (flags & O_TRUNC);
    Wanted wanted = {0, 0};
    if (access != O_WRONLY || (flags & O_PATH)) {
        wanted.must |= OP_READ;
    }
    if ((flags & O_TMPFILE) == O_TMPFILE) {
        wanted.must = OP_CREATE;
    }
    else if (flags & O_CREAT) {
        wanted.must |= flags & O_EXCL ? OP_CREATE : 0;
        wanted.either = flags & O_EXCL ? 0 : (writes ? OP_CREATE | OP_MODIFY : OP_CREATE | OP_READ);
    }
    else if (writes && !(flags & O_PATH)) {
        wanted.must |= OP_MODIFY;
    }
    return wanted;
}

static bool enough(Wanted wanted, unsigned granted)
{
    return (granted & wanted.must) == wanted.must && (wanted.either == 0 || (granted & wanted.either));
}

/* With the right to modify only, the open must not create, and vice versa: the flags for the kernel say so. */
static int limited_flags(int flags, Wanted wanted, unsigned granted)
{
    if (wanted.either == 0) {
        return flags;
    }
    if (!(granted & OP_CREATE)) {
        return flags & ~O_CREAT;
    }
    return (wanted.either & OP_MODIFY) && !(granted & OP_MODIFY) ? flags | O_EXCL : flags;
}

/* ---- the open ------------------------------------------------------------------------------- */

typedef struct {
    State *state;
    PathText *text;
    int flags, mode;
    Wanted wanted;
    bool inside, declared; /* `declared`: the rules give all of it where `path` says, so nothing else is asked */
    int broken;            /* the error of a path that cannot be walked */
    char path[PATH_MAX];
} Opening;

static int locate(Opening *opening)
{
    int follow = !(opening->flags & O_NOFOLLOW) && (opening->flags & (O_CREAT | O_EXCL)) != (O_CREAT | O_EXCL);
    return find_location(opening->text, follow, opening->path);
}

static int refuse(Opening *opening, unsigned missing)
{
    const char *shown = opening->inside ? opening->path : opening->text->text;
    return deny_given(opening->state, opening->text, shown, missing, false);
}

/* 1 and *fd, 0 to try again at a new location, -1 with an exception. */
static int open_once(Opening *opening, int *fd)
{
    Wanted wanted = opening->wanted;
    unsigned all = wanted.must | wanted.either, granted = all;
    if (!opening->declared && grant_quietly(opening->state, opening->path, all, &granted) < 0) {
        return -1;
    }
    if (!enough(wanted, granted) && (location_mask(opening->state, opening->path) & FLAG_STREAM)) {
        granted |= OP_MODIFY;
    }
    if (!enough(wanted, granted)) {
        unsigned missing = wanted.must & ~granted;
        return refuse(opening, missing ? missing : wanted.either & ~OP_READ);
    }
    int flags = limited_flags(opening->flags, wanted, granted), failed = opening->broken;
    while (!failed || failed == EINTR) {
        if (failed == EINTR && PyErr_CheckSignals() < 0) {
            return -1;
        }
        Py_BEGIN_ALLOW_THREADS
        *fd = open_beneath(opening->path, flags, opening->mode);
        failed = *fd < 0 ? errno : 0;
        Py_END_ALLOW_THREADS
        if (!failed) {
            return 1;
        }
    }
    if (failed == ENOENT && flags != opening->flags && !(flags & O_CREAT)) {
        return refuse(opening, OP_CREATE);
    }
    if (failed == EEXIST && flags != opening->flags && (flags & O_EXCL)) {
        return refuse(opening, OP_MODIFY);
    }
    if (failed == ELOOP) {
        char before[PATH_MAX];
        strcpy(before, opening->path);
        opening->broken = locate(opening);
        opening->declared = false;
        if (strcmp(before, opening->path) != 0 || !(opening->flags & O_NOFOLLOW)) {
            return 0;
        }
    }
    errno = failed;
    errno_error(opening->text->shown);
    return -1;
}

int guarded_open(State *state, PathText *text, int flags, int mode)
{
    Opening opening; /* not zeroed: most of it is room for a path */
    int fd = -1;
    unsigned mask = location_mask(state, text->text);
    opening.state = state;
    opening.text = text;
    opening.wanted = wanted_by(flags);
    if (text->directory && (flags & O_CREAT)) {
        errno = EISDIR; /* as the kernel says of a name that ends in a slash */
        errno_error(text->shown);
        return -1;
    }
    opening.flags = flags | (text->directory ? O_DIRECTORY : 0);
    opening.mode = mode;
    opening.inside = enough(opening.wanted, mask & FLAG_STREAM ? mask | OP_MODIFY : mask);
    opening.broken = 0;
    opening.declared = false;
    if (check_dots(state, text) < 0) {
        return -1;
    }
    if (UNLIKELY(shadow_concerns(state))) {
        locate(&opening); /* once, and before the open has made a file of it */
        shadow_open(state, opening.path, opening.wanted.must, opening.wanted.either);
    }
    if (opening.inside && !text->dotted) {
        unsigned all = opening.wanted.must | opening.wanted.either;
        strcpy(opening.path, text->text);
        opening.declared = (mask & all) == all && !path_is_memory(text->text);
    }
    else {
        opening.broken = locate(&opening);
    }
    for (int attempt = 0; attempt < 8; attempt++) {
        int result = open_once(&opening, &fd);
        if (result != 0) {
            return result < 0 ? -1 : fd;
        }
    }
    errno = ELOOP;
    errno_error(text->shown);
    return -1;
}

/* Other hooks still get the event of the open; ours skips it. */
static int announce(PyObject *path, const char *mode, int flags)
{
    if (LIKELY(audit_hook_list_is_ours())) {
        return 0;
    }
    checked_open = true;
    int result =
        mode ? PySys_Audit("open", "Osi", path, mode, flags) : PySys_Audit("open", "OOi", path, Py_None, flags);
    checked_open = false;
    return result;
}

/* ---- os.open -------------------------------------------------------------------------------- */

static int integer_argument(const Call *call, int index, const char *name, int fallback)
{
    Py_ssize_t at = call_find(call, index, name);
    if (at < 0) {
        return fallback;
    }
    long value = PyLong_AsLong(call->args[at]);
    if (value > INT_MAX || value < INT_MIN) {
        PyErr_SetString(PyExc_OverflowError, "signed integer does not fit into int");
        return -1;
    }
    return (int)value;
}

PyObject *on_open(State *state, Call *call)
{
    char base[PATH_MAX];
    bool relative;
    PathText text;
    Py_ssize_t at = call_find(call, 0, "path"), flags_at = call_find(call, 1, "flags");
    if (at < 0 || flags_at < 0) {
        return call_original(call); /* its own TypeError */
    }
    int flags = integer_argument(call, 1, "flags", 0), mode = integer_argument(call, 2, "mode", 0777);
    if (PyErr_Occurred() || directory_argument(state, call, "dir_fd", base, &relative) < 0 ||
        path_text_at(call->args[at], relative ? base : NULL, &text) < 0) {
        return NULL;
    }
    int fd = -1;
    if (announce(text.object, NULL, flags) == 0) {
        fd = guarded_open(state, &text, flags, mode);
    }
    Py_DECREF(text.object);
    if (fd < 0) {
        return NULL;
    }
    descriptor_adopt(state, fd);
    return PyLong_FromLong(fd);
}

/* ---- FileIO: open(), io.open, io.open_code, FileIO itself ------------------------------------ */

static initproc fileio_original = NULL;

/* The flags FileIO derives from its mode; -1 when FileIO itself will complain. */
static int mode_flags(const char *mode)
{
    int flags = 0;
    bool plus = strchr(mode, '+') != NULL;
    switch (mode[strspn(mode, "b+")]) {
    case 'r':
        flags = plus ? O_RDWR : O_RDONLY;
        break;
    case 'w':
        flags = O_CREAT | O_TRUNC | (plus ? O_RDWR : O_WRONLY);
        break;
    case 'x':
        flags = O_CREAT | O_EXCL | (plus ? O_RDWR : O_WRONLY);
        break;
    case 'a':
        flags = O_CREAT | O_APPEND | (plus ? O_RDWR : O_WRONLY);
        break;
    default:
        return -1;
    }
    size_t kinds = 0;
    for (const char *p = mode; *p; p++) {
        if (strchr("rwxa", *p)) {
            kinds++;
        }
        else if (*p != 'b' && *p != '+') {
            return -1;
        }
    }
    return kinds == 1 ? flags : -1;
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
    static PyObject *name_attribute = NULL;
    if (name_attribute == NULL) {
        name_attribute = PyUnicode_InternFromString("name");
    }
    return name_attribute ? PyObject_SetAttr(self, name_attribute, name) : -1;
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
    if (announce(text.object, mode, flags) == 0) {
        if (opener != Py_None) {
            result = init_from_opener(state, self, text.object, opener, mode, flags);
        }
        else {
            int fd = guarded_open(state, &text, flags, 0666);
            result = fd < 0 ? -1 : init_opened(self, fd, file, mode);
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
    if (flags < 0 || (!closefd && !path_is_descriptor(file))) {
        PyErr_Format(PyExc_ValueError, flags < 0 ? "invalid mode: %.200s" : "Cannot use closefd=False with file name",
                     mode);
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

int opens_ready(void)
{
    PyObject *io = PyImport_ImportModule("_io");
    int result = io ? fileio_patch(io) : -1;
    Py_XDECREF(io);
    return result == 1 ? 0 : -1;
}
