/* scandir() under a guard: the folder that was decided on is opened, read and closed here.
 *
 * The entries are the interpreter's own DirEntry objects, filled in as its scandir() fills them. That needs the layout of
 * the struct; scans_ready() lists a folder with the real scandir() and compares, and refuses an interpreter that differs. */
#include "core.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    PyObject_HEAD
    PyObject *name, *path, *stat, *lstat;
    unsigned char type;
    ino_t inode;
    int folder; /* an open folder the entry's own calls look in; none here, they go by path */
} Listed;

typedef struct {
    PyObject_HEAD
    DIR *folder;
    PyObject *prefix; /* the path as given, with a slash at its end; str or bytes */
} Scan;

static PyTypeObject Scan_Type;
static PyTypeObject *entry_type = NULL;

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

/* Takes over the descriptor. */
PyObject *scan_new(int fd, PyObject *base)
{
    DIR *folder = fdopendir(fd);
    if (folder == NULL) {
        errno_error(base);
        close(fd);
        return NULL;
    }
    Scan *scan = PyObject_New(Scan, &Scan_Type);
    if (scan == NULL) {
        closedir(folder);
        return NULL;
    }
    scan->folder = folder;
    scan->prefix = with_slash(base);
    if (scan->prefix == NULL) {
        Py_CLEAR(scan);
    }
    return (PyObject *)scan;
}

static void scan_finish(Scan *scan)
{
    DIR *folder = scan->folder;
    scan->folder = NULL;
    if (folder != NULL) {
        Py_BEGIN_ALLOW_THREADS
        closedir(folder);
        Py_END_ALLOW_THREADS
    }
}

static void scan_dealloc(PyObject *self)
{
    Scan *scan = (Scan *)self;
    if (scan->folder != NULL) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        if (PyErr_ResourceWarning(NULL, 1, "unclosed scandir iterator") < 0) {
            PyErr_Clear();
        }
        PyErr_Restore(type, value, trace);
    }
    scan_finish(scan);
    Py_XDECREF(scan->prefix);
    PyObject_Free(self);
}

static PyObject *make_entry(const Scan *scan, const struct dirent *found)
{
    Listed *listed = (Listed *)entry_type->tp_alloc(entry_type, 0);
    if (listed == NULL) {
        return NULL;
    }
    bool bytes = PyBytes_Check(scan->prefix);
    listed->name = bytes ? PyBytes_FromString(found->d_name) : PyUnicode_DecodeFSDefault(found->d_name);
    if (listed->name != NULL) {
        listed->path = bytes ? PySequence_Concat(scan->prefix, listed->name) : PyUnicode_Concat(scan->prefix, listed->name);
    }
    listed->type = found->d_type;
    listed->inode = found->d_ino;
    listed->folder = AT_FDCWD;
    if (listed->path == NULL) {
        Py_CLEAR(listed);
    }
    return (PyObject *)listed;
}

static PyObject *scan_next(PyObject *self)
{
    Scan *scan = (Scan *)self;
    while (scan->folder != NULL) {
        struct dirent *found;
        Py_BEGIN_ALLOW_THREADS
        errno = 0;
        found = readdir(scan->folder);
        Py_END_ALLOW_THREADS
        if (found == NULL) {
            int failed = errno;
            scan_finish(scan);
            errno = failed;
            return failed ? PyErr_SetFromErrno(PyExc_OSError) : NULL;
        }
        if (strcmp(found->d_name, ".") != 0 && strcmp(found->d_name, "..") != 0) {
            return make_entry(scan, found);
        }
    }
    return NULL;
}

static PyObject *scan_close(PyObject *self, PyObject *unused)
{
    scan_finish((Scan *)self);
    Py_RETURN_NONE;
}

static PyObject *scan_enter(PyObject *self, PyObject *unused)
{
    return Py_NewRef(self);
}

static PyMethodDef methods[] = {
    {"close", scan_close, METH_NOARGS, NULL},
    {"__enter__", scan_enter, METH_NOARGS, NULL},
    {"__exit__", scan_close, METH_VARARGS, NULL},
    {NULL},
};

static PyTypeObject Scan_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "posix.ScandirIterator",
    .tp_basicsize = sizeof(Scan),
    .tp_dealloc = scan_dealloc,
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = scan_next,
    .tp_methods = methods,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
};

static bool looks_as_expected(PyObject *entry, PyObject *name, PyObject *path, PyObject *inode, int fd)
{
    const Listed *listed = (const Listed *)entry;
    return Py_TYPE(entry)->tp_basicsize == (Py_ssize_t)sizeof(Listed) && listed->name == name && listed->path == path &&
           listed->stat == NULL && listed->lstat == NULL && listed->folder == fd &&
           listed->inode == (ino_t)PyLong_AsUnsignedLongLong(inode);
}

/* Lists a folder by number and compares what the interpreter wrote with what we take it to be. */
int scans_ready(void)
{
    int fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC), result = -1;
    PyObject *posix = PyImport_ImportModule("posix");
    PyObject *iterator = posix && fd >= 0 ? PyObject_CallMethod(posix, "scandir", "i", fd) : NULL;
    PyObject *entry = iterator ? PyIter_Next(iterator) : NULL;
    PyObject *name = entry ? PyObject_GetAttrString(entry, "name") : NULL;
    PyObject *path = name ? PyObject_GetAttrString(entry, "path") : NULL;
    PyObject *inode = path ? PyObject_CallMethod(entry, "inode", NULL) : NULL;
    PyObject *closed = iterator ? PyObject_CallMethod(iterator, "close", NULL) : NULL;
    if (inode != NULL && closed != NULL && looks_as_expected(entry, name, path, inode, fd)) {
        entry_type = (PyTypeObject *)Py_NewRef(Py_TYPE(entry));
        result = PyType_Ready(&Scan_Type);
    }
    else if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_ImportError, "os.DirEntry is not what the guard knows: it does not fit this interpreter");
    }
    PyObject *all[] = {posix, iterator, entry, name, path, inode, closed};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        Py_XDECREF(all[i]);
    }
    close(fd);
    return result;
}
