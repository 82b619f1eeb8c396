/* Replaced methods: unguarded callers get the original, guarded callers another function.
 *
 * Native types such as the loop of uvloop cannot be changed from Python, and a Python wrapper would expose the
 * original in its closure. Here neither the garbage collector nor an attribute leads to it. The Python side sets the
 * table before the first guard, so loading a module runs no code that a subject may have changed. */
#include "core/core.h"

typedef struct {
    PyObject_HEAD PyObject *original;
    PyObject *guarded; /* NULL: the original, with every callable bound to the caller's state */
    PyObject *keyword; /* given: diverted only when it is among the arguments */
    vectorcallfunc vectorcall;
} Diverted;

static PyObject *table = NULL; /* tuple of (module, type, method, function or None, keyword or None) */

/* ---- calling ------------------------------------------------------------------------------------- */

static bool concerns(const Diverted *diverted, PyObject *kwnames)
{
    if (state_guarding() == NULL || diverted->keyword == NULL) {
        return state_guarding() != NULL;
    }
    for (Py_ssize_t i = 0; kwnames != NULL && i < PyTuple_GET_SIZE(kwnames); i++) {
        if (PyUnicode_Compare(PyTuple_GET_ITEM(kwnames, i), diverted->keyword) == 0) {
            return true;
        }
    }
    return false;
}

/* method(self, callable): the callable runs under the state of the caller that gave it. */
static PyObject *call_with_bound(PyObject *original, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    enum { MOST = 4 };
    PyObject *argv[MOST], *result = NULL;
    Py_ssize_t total = nargs + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0), made = 0;
    if (total > MOST) {
        return PyErr_Format(PyExc_TypeError, "too many arguments");
    }
    for (; made < total; made++) {
        argv[made] = made == 0 ? Py_NewRef(args[0]) : bind_to(state_guarding(), args[made]);
        if (argv[made] == NULL) {
            break;
        }
    }
    if (made == total) {
        result = PyObject_Vectorcall(original, argv, (size_t)nargs, kwnames);
    }
    while (made-- > 0) {
        Py_DECREF(argv[made]);
    }
    return result;
}

static PyObject *diverted_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Diverted *diverted = (Diverted *)self;
    if (!concerns(diverted, kwnames)) {
        return PyObject_Vectorcall(diverted->original, args, nargsf, kwnames);
    }
    if (diverted->guarded == NULL) {
        return call_with_bound(diverted->original, args, PyVectorcall_NARGS(nargsf), kwnames);
    }
    return PyObject_Vectorcall(diverted->guarded, args, nargsf, kwnames);
}

static PyObject *diverted_get(PyObject *self, PyObject *instance, PyObject *type)
{
    return instance == NULL || instance == Py_None ? Py_NewRef(self) : PyMethod_New(self, instance);
}

/* Copies the name, the docstring and the marks of coroutine functions. */
static PyObject *diverted_getattro(PyObject *self, PyObject *name)
{
    PyObject *value = PyObject_GenericGetAttr(self, name), *guarded = ((Diverted *)self)->guarded;
    if (value == NULL && guarded != NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        value = PyObject_GetAttr(guarded, name);
    }
    return value;
}

PyTypeObject Diverted_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "democrai_sandbox.guard._core.Diverted",
    .tp_basicsize = sizeof(Diverted),
    .tp_dealloc = NULL, /* never freed: types keep them for good */
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Diverted, vectorcall),
    .tp_descr_get = diverted_get,
    .tp_getattro = diverted_getattro,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR |
                Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
};

/* ---- diverting ------------------------------------------------------------------------------------ */

static int divert(PyTypeObject *type, PyObject *name, PyObject *function, PyObject *keyword)
{
    PyObject *original = PyDict_GetItemWithError(type->tp_dict, name);
    if (original == NULL || Py_IS_TYPE(original, &Diverted_Type)) {
        return PyErr_Occurred() ? -1 : 0; /* not in this version; or done already */
    }
    Diverted *made = PyObject_New(Diverted, &Diverted_Type);
    if (made == NULL) {
        return -1;
    }
    made->vectorcall = diverted_call;
    made->original = Py_NewRef(original);
    made->guarded = function == Py_None ? NULL : Py_NewRef(function);
    made->keyword = keyword == Py_None ? NULL : Py_NewRef(keyword);
    int result = PyDict_SetItem(type->tp_dict, name, (PyObject *)made);
    Py_DECREF(made);
    PyType_Modified(type);
    return result;
}

/* Only a native type can be immutable; a type that a subject stored under this name is ignored. */
static PyTypeObject *native_type(PyObject *module, PyObject *name)
{
    PyObject *type = PyModule_CheckExact(module) ? PyDict_GetItemWithError(PyModule_GetDict(module), name) : NULL;
    bool is =
        type != NULL && PyType_CheckExact(type) && PyType_HasFeature((PyTypeObject *)type, Py_TPFLAGS_IMMUTABLETYPE);
    return is ? (PyTypeObject *)type : NULL;
}

/* 1 when done or not needed, 0 when the type does not exist yet, -1 with an exception. */
int divert_module(const char *name, PyObject *module)
{
    int done = 1;
    size_t length = strlen(name);
    for (Py_ssize_t i = 0; table != NULL && i < PyTuple_GET_SIZE(table); i++) {
        PyObject *row = PyTuple_GET_ITEM(table, i);
        if (!text_equals(PyTuple_GET_ITEM(row, 0), name, length)) {
            continue;
        }
        PyTypeObject *type = native_type(module, PyTuple_GET_ITEM(row, 1));
        if (type == NULL) {
            done = PyErr_Occurred() ? -1 : 0;
        }
        else if (divert(type, PyTuple_GET_ITEM(row, 2), PyTuple_GET_ITEM(row, 3), PyTuple_GET_ITEM(row, 4)) < 0) {
            done = -1;
        }
        if (done != 1) {
            break;
        }
    }
    return done;
}

/* The caller adds the names of the modules to the awaited ones. */
int diverted_set(PyObject *rows)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rows); i++) {
        PyObject *row = PyTuple_GET_ITEM(rows, i);
        bool sound = PyTuple_CheckExact(row) && PyTuple_GET_SIZE(row) == 5;
        for (int k = 0; sound && k < 5; k++) {
            PyObject *item = PyTuple_GET_ITEM(row, k);
            sound = k < 3 ? PyUnicode_CheckExact(item)
                          : item == Py_None || (k == 3 ? PyCallable_Check(item) : PyUnicode_CheckExact(item));
        }
        if (!sound) {
            PyErr_SetString(PyExc_TypeError, "expected (module, type, method, function, keyword)");
            return -1;
        }
    }
    Py_XSETREF(table, Py_NewRef(rows));
    return 0;
}
