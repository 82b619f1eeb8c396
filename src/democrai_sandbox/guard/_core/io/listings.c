/* os.listdir and os.scandir under a guard.
 *
 * The openat2 call that checks the folder is also the open that is read from, so nothing can be replaced in between.
 * The entries have the path that the caller gave. The names are read in buffers, without the GIL. */
#include "io/io.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <structmember.h>
#include <unistd.h>

/* ---- reading -------------------------------------------------------------------------------- */

enum { BUFFER = 32768 };

typedef struct {
    int fd;
    size_t at, filled;
    char *buffer; /* struct dirent64, one after the other */
} Listing;

static void listing_end(Listing *listing)
{
    if (listing->fd >= 0) {
        close(listing->fd);
        listing->fd = -1;
    }
    PyMem_Free(listing->buffer);
    listing->buffer = NULL;
}

/* Takes over the descriptor. */
static int listing_begin(Listing *listing, int fd)
{
    *listing = (Listing){.fd = fd, .buffer = PyMem_Malloc(BUFFER)};
    if (listing->buffer == NULL) {
        listing_end(listing);
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static ssize_t refill(Listing *listing)
{
    ssize_t got;
    Py_BEGIN_ALLOW_THREADS
    got = getdents64(listing->fd, listing->buffer, BUFFER);
    Py_END_ALLOW_THREADS
    listing->at = 0;
    listing->filled = got > 0 ? (size_t)got : 0;
    return got;
}

static bool is_dots(const char *name)
{
    return name[0] == '.' && (name[1] == '\0' || (name[1] == '.' && name[2] == '\0'));
}

/* The next entry, or NULL at the end and, with an exception, on failure. */
static const struct dirent64 *listing_next(Listing *listing, PyObject *path)
{
    while (listing->fd >= 0) {
        if (listing->at == listing->filled) {
            ssize_t got = refill(listing);
            if (got < 0) {
                errno_error(path);
            }
            if (got <= 0) {
                listing_end(listing);
                return NULL;
            }
        }
        const struct dirent64 *entry = (const struct dirent64 *)(listing->buffer + listing->at);
        listing->at += entry->d_reclen;
        if (!is_dots(entry->d_name)) {
            return entry;
        }
    }
    return NULL;
}

static PyObject *name_of(const struct dirent64 *entry, PyObject *like)
{
    return PyBytes_Check(like) ? PyBytes_FromString(entry->d_name) : PyUnicode_DecodeFSDefault(entry->d_name);
}

/* ---- opening -------------------------------------------------------------------------------- */

/* 0 and a listing to read from; *path is what the caller asked for, exact and owned. */
static int open_folder(State *state, Call *call, Py_ssize_t at, const char *event, Listing *listing, PyObject **path)
{
    PathText text;
    PyObject *given = at >= 0 && call->args[at] != Py_None ? Py_NewRef(call->args[at]) : PyUnicode_FromString(".");
    int failed = given ? path_text(given, &text) : -1;
    Py_XDECREF(given);
    if (failed < 0) {
        return -1;
    }
    int fd = PySys_Audit(event, "O", text.object) < 0
                 ? -1
                 : guarded_open(state, &text, O_RDONLY | O_DIRECTORY | O_NONBLOCK, 0, NULL);
    if (fd < 0 || listing_begin(listing, fd) < 0) {
        Py_DECREF(text.object);
        return -1;
    }
    *path = text.object;
    return 0;
}

static bool is_descriptor(const Call *call, Py_ssize_t at)
{
    return at >= 0 && call->args[at] != Py_None && path_is_descriptor(call->args[at]);
}

static bool odd_arguments(const Call *call, Py_ssize_t at)
{
    return call_count(call) > (at >= 0 ? 1 : 0);
}

/* ---- listdir -------------------------------------------------------------------------------- */

PyObject *on_listdir(State *state, Call *call)
{
    Py_ssize_t at = call_find(call, 0, "path");
    if (is_descriptor(call, at) || odd_arguments(call, at)) {
        return on_path(state, call);
    }
    Listing listing;
    PyObject *path;
    if (open_folder(state, call, at, "os.listdir", &listing, &path) < 0) {
        return NULL;
    }
    PyObject *names = PyList_New(0);
    const struct dirent64 *entry;
    while (names != NULL && (entry = listing_next(&listing, path)) != NULL) {
        PyObject *name = name_of(entry, path);
        if (name == NULL || PyList_Append(names, name) < 0) {
            Py_CLEAR(names);
        }
        Py_XDECREF(name);
    }
    if (PyErr_Occurred()) {
        Py_CLEAR(names);
    }
    listing_end(&listing);
    Py_DECREF(path);
    return names;
}

/* ---- scandir -------------------------------------------------------------------------------- */

/* os.DirEntry as posixmodule.c lays it out. Where it begins follows from the member descriptors; that the rest is as
 * written here is verified on real entries when the package is imported. */
typedef struct {
    PyObject *name, *path, *stat, *lstat;
    unsigned char type;
    ino_t inode;
    int folder;
} EntryFields;

static PyTypeObject *entry_type = NULL;
static Py_ssize_t fields_offset = -1;

static EntryFields *fields_of(PyObject *entry)
{
    return (EntryFields *)((char *)entry + fields_offset);
}

/* Whether the entry answers stat() from memory. */
bool entry_has_answer(PyObject *entry, bool follow)
{
    return Py_IS_TYPE(entry, entry_type) && (follow ? fields_of(entry)->stat : fields_of(entry)->lstat) != NULL;
}

/* The path of an entry. An entry of a folder that was given as a descriptor has only its name. */
PyObject *entry_path(PyObject *entry)
{
    const EntryFields *fields = fields_of(entry);
    if (!Py_IS_TYPE(entry, entry_type) || fields->folder == AT_FDCWD) {
        return PyObject_GetAttrString(entry, "path");
    }
    return PyUnicode_FromFormat("/proc/self/fd/%d/%U", fields->folder, fields->name);
}

void entry_keep_answer(PyObject *entry, bool follow, PyObject *answer)
{
    if (answer != NULL && Py_IS_TYPE(entry, entry_type)) {
        PyObject **kept = follow ? &fields_of(entry)->stat : &fields_of(entry)->lstat;
        Py_XSETREF(*kept, Py_NewRef(answer));
    }
}

typedef struct {
    PyObject_HEAD Listing listing;
    PyObject *path, *prefix; /* the prefix is the path with a slash at its end, or nothing if it was a number */
    int folder;              /* the number, or AT_FDCWD */
} Scan;

static PyTypeObject Scan_Type;

static PyObject *with_slash(PyObject *base)
{
    if (PyBytes_Check(base)) {
        Py_ssize_t size = PyBytes_GET_SIZE(base);
        bool ends = size > 0 && PyBytes_AS_STRING(base)[size - 1] == '/';
        return ends ? Py_NewRef(base) : PyBytes_FromFormat("%s/", PyBytes_AS_STRING(base));
    }
    Py_ssize_t size = PyUnicode_GET_LENGTH(base);
    bool ends = size > 0 && PyUnicode_READ_CHAR(base, size - 1) == '/';
    return ends ? Py_NewRef(base) : PyUnicode_FromFormat("%U/", base);
}

/* An entry of unknown type would use the descriptor later, which may refer to another folder then. */
static unsigned char kind_of(const Scan *scan, const struct dirent64 *read)
{
    struct stat info;
    bool there = fstatat(scan->listing.fd, read->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0;
    return there ? IFTODT(info.st_mode) : DT_REG;
}

static PyObject *entry_new(const Scan *scan, const struct dirent64 *read)
{
    PyObject *entry = entry_type->tp_alloc(entry_type, 0);
    if (entry == NULL) {
        return NULL;
    }
    EntryFields *fields = fields_of(entry);
    fields->name = name_of(read, scan->path);
    if (fields->name != NULL) {
        fields->path = PyUnicode_Check(fields->name) ? PyUnicode_Concat(scan->prefix, fields->name)
                                                     : PySequence_Concat(scan->prefix, fields->name);
    }
    fields->type = read->d_type == DT_UNKNOWN && scan->folder != AT_FDCWD ? kind_of(scan, read) : read->d_type;
    fields->inode = read->d_ino;
    fields->folder = scan->folder;
    if (fields->path == NULL) {
        Py_CLEAR(entry);
    }
    return entry;
}

static PyObject *scan_next(PyObject *self)
{
    Scan *scan = (Scan *)self;
    const struct dirent64 *read = listing_next(&scan->listing, scan->path);
    return read == NULL ? NULL : entry_new(scan, read);
}

static PyObject *scan_close(PyObject *self, PyObject *unused)
{
    listing_end(&((Scan *)self)->listing);
    Py_RETURN_NONE;
}

static PyObject *scan_enter(PyObject *self, PyObject *unused)
{
    return Py_NewRef(self);
}

static PyObject *scan_exit(PyObject *self, PyObject *args)
{
    return scan_close(self, NULL);
}

static void scan_finalize(PyObject *self)
{
    Scan *scan = (Scan *)self;
    if (scan->listing.fd < 0) {
        return;
    }
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    listing_end(&scan->listing);
    if (PyErr_ResourceWarning(self, 1, "unclosed scandir iterator %R", self) < 0) {
        PyErr_WriteUnraisable(self);
    }
    PyErr_Restore(type, value, trace);
}

static void scan_dealloc(PyObject *self)
{
    if (PyObject_CallFinalizerFromDealloc(self) < 0) {
        return;
    }
    Scan *scan = (Scan *)self;
    listing_end(&scan->listing);
    Py_XDECREF(scan->path);
    Py_XDECREF(scan->prefix);
    PyObject_Free(self);
}

static PyMethodDef methods[] = {
    {"close", scan_close, METH_NOARGS, NULL},
    {"__enter__", scan_enter, METH_NOARGS, NULL},
    {"__exit__", scan_exit, METH_VARARGS, NULL},
    {NULL},
};

static PyTypeObject Scan_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "posix.ScandirIterator",
    .tp_basicsize = sizeof(Scan),
    .tp_dealloc = scan_dealloc,
    .tp_finalize = scan_finalize,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = scan_next,
    .tp_methods = methods,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
};

static PyObject *scan_new(State *state, Call *call, Py_ssize_t at, int folder)
{
    Scan *scan = PyObject_New(Scan, &Scan_Type);
    if (scan == NULL) {
        return NULL;
    }
    scan->listing = (Listing){.fd = -1};
    scan->prefix = scan->path = NULL;
    scan->folder = folder;
    if (open_folder(state, call, at, "os.scandir", &scan->listing, &scan->path) == 0) {
        scan->prefix = folder == AT_FDCWD ? with_slash(scan->path) : PyUnicode_New(0, 0);
    }
    if (scan->prefix == NULL) {
        listing_end(&scan->listing);
        Py_CLEAR(scan);
    }
    return (PyObject *)scan;
}

/* Opens the folder again through the path of the descriptor, which is checked. */
static PyObject *scan_descriptor(State *state, Call *call, Py_ssize_t at)
{
    PyObject *number = descriptor_number(call->args[at]), *result = NULL;
    if (number != NULL && descriptor_check(state, number, OP_READ) == 0) {
        PyObject *handle = PyUnicode_FromFormat("/proc/self/fd/%S", number);
        Call plain = *call;
        plain.args = &handle;
        result = handle ? scan_new(state, &plain, 0, (int)PyLong_AsLong(number)) : NULL;
        Py_XDECREF(handle);
    }
    Py_XDECREF(number);
    return result;
}

PyObject *on_scan(State *state, Call *call)
{
    Py_ssize_t at = call_find(call, 0, "path");
    if (odd_arguments(call, at)) {
        return on_path(state, call);
    }
    return is_descriptor(call, at) ? scan_descriptor(state, call, at) : scan_new(state, call, at, AT_FDCWD);
}

/* ---- the canary ----------------------------------------------------------------------------- */

static Py_ssize_t member_offset(const char *name)
{
    PyObject *member = PyObject_GetAttrString((PyObject *)entry_type, name);
    Py_ssize_t offset = -1;
    if (member != NULL && Py_IS_TYPE(member, &PyMemberDescr_Type) &&
        ((PyMemberDescrObject *)member)->d_member->type == T_OBJECT_EX) {
        offset = ((PyMemberDescrObject *)member)->d_member->offset;
    }
    Py_XDECREF(member);
    return offset;
}

/* Whether the first entry that the interpreter itself lists in `where` looks as EntryFields says. */
static bool entry_fits(PyObject *posix, PyObject *where, int folder)
{
    PyObject *scan = where ? PyObject_CallMethod(posix, "scandir", "O", where) : NULL;
    PyObject *entry = scan ? PyIter_Next(scan) : NULL;
    PyObject *inode = entry ? PyObject_CallMethod(entry, "inode", NULL) : NULL;
    PyObject *closed = scan ? PyObject_CallMethod(scan, "close", NULL) : NULL;
    bool fits = false;
    if (inode != NULL && closed != NULL && Py_IS_TYPE(entry, entry_type)) {
        const EntryFields *fields = fields_of(entry);
        fits = fields->inode == PyLong_AsUnsignedLongLong(inode) && fields->folder == folder && fields->stat == NULL &&
               fields->lstat == NULL && fields->type <= DT_WHT && !PyErr_Occurred();
    }
    Py_XDECREF(closed);
    Py_XDECREF(inode);
    Py_XDECREF(entry);
    Py_XDECREF(scan);
    Py_XDECREF(where);
    return fits;
}

static bool layout_fits(PyObject *posix)
{
    Py_ssize_t name = member_offset("name"), path = member_offset("path");
    size_t used = (size_t)name + offsetof(EntryFields, folder) + sizeof(int);
    if (name < 0 || path != name + (Py_ssize_t)sizeof(PyObject *) || used > (size_t)entry_type->tp_basicsize) {
        return false;
    }
    fields_offset = name;
    /* A process that the kernel confines may not look into /proc, not even into its own part of it. */
    static const char *const folders[] = {"/proc/self", "/usr", "/"};
    for (size_t i = 0; i < sizeof(folders) / sizeof(*folders); i++) {
        int fd = open(folders[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0) {
            bool fits = entry_fits(posix, PyUnicode_FromString(folders[i]), AT_FDCWD) &&
                        entry_fits(posix, PyLong_FromLong(fd), fd);
            close(fd);
            return fits;
        }
    }
    return false;
}

int listings_ready(void)
{
    PyObject *posix = PyImport_ImportModule("posix");
    entry_type = posix ? (PyTypeObject *)PyObject_GetAttrString(posix, "DirEntry") : NULL; /* kept for good */
    int result = entry_type ? PyType_Ready(&Scan_Type) : -1;
    if (result == 0 && !layout_fits(posix)) {
        PyErr_SetString(PyExc_ImportError,
                        "os.DirEntry is not laid out as the guard knows it: it does not fit this interpreter");
        result = -1;
    }
    Py_XDECREF(posix);
    return result;
}
