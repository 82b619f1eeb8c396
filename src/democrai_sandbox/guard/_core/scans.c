/* What scandir() gives under a guard: entries listed through a handle, under the path the caller asked for. */
#include "core.h"

#include <string.h>
#include <structmember.h>

typedef struct {
    PyObject_HEAD
    PyObject *iterator;
    PyObject *prefix; /* the folder with a slash at its end, str or bytes */
} Scan;

static PyTypeObject Scan_Type;
static Py_ssize_t path_offset = -1;

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

/* Takes over the iterator. */
PyObject *scan_new(PyObject *iterator, PyObject *base)
{
    Scan *scan = PyObject_New(Scan, &Scan_Type);
    if (scan == NULL) {
        Py_DECREF(iterator);
        return NULL;
    }
    scan->iterator = iterator;
    scan->prefix = with_slash(base);
    if (scan->prefix == NULL) {
        Py_CLEAR(scan);
    }
    return (PyObject *)scan;
}

static void scan_dealloc(PyObject *self)
{
    Py_XDECREF(((Scan *)self)->iterator);
    Py_XDECREF(((Scan *)self)->prefix);
    PyObject_Free(self);
}

static PyObject *scan_next(PyObject *self)
{
    Scan *scan = (Scan *)self;
    PyObject *entry = Py_TYPE(scan->iterator)->tp_iternext(scan->iterator);
    if (entry == NULL) {
        return NULL;
    }
    PyObject *name = PyObject_GetAttrString(entry, "name"), *path = NULL;
    if (name != NULL) {
        path = PyUnicode_Check(name) ? PyUnicode_Concat(scan->prefix, name) : PySequence_Concat(scan->prefix, name);
        Py_DECREF(name);
    }
    if (path == NULL) {
        Py_DECREF(entry);
        return NULL;
    }
    PyObject **slot = (PyObject **)((char *)entry + path_offset);
    Py_XSETREF(*slot, path);
    return entry;
}

static PyObject *scan_close(PyObject *self, PyObject *unused)
{
    return PyObject_CallMethod(((Scan *)self)->iterator, "close", NULL);
}

static PyObject *scan_enter(PyObject *self, PyObject *unused)
{
    return Py_NewRef(self);
}

static PyObject *scan_exit(PyObject *self, PyObject *args)
{
    return scan_close(self, NULL);
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
    .tp_iter = PyObject_SelfIter,
    .tp_iternext = scan_next,
    .tp_methods = methods,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
};

/* DirEntry.path is read-only for Python; its place in the struct is what the member descriptor says. */
int scans_ready(void)
{
    PyObject *posix = PyImport_ImportModule("posix");
    PyObject *type = posix ? PyObject_GetAttrString(posix, "DirEntry") : NULL;
    PyObject *member = type ? PyObject_GetAttrString(type, "path") : NULL;
    int result = -1;
    if (member != NULL && Py_IS_TYPE(member, &PyMemberDescr_Type) && ((PyMemberDescrObject *)member)->d_member->type == T_OBJECT_EX) {
        path_offset = ((PyMemberDescrObject *)member)->d_member->offset;
        result = PyType_Ready(&Scan_Type);
    }
    else if (member != NULL) {
        PyErr_SetString(PyExc_ImportError, "os.DirEntry.path is not what the guard knows: it does not fit this interpreter");
    }
    Py_XDECREF(posix);
    Py_XDECREF(type);
    Py_XDECREF(member);
    return result;
}
