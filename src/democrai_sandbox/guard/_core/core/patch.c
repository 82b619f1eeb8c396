/* Replaces builtins in place.
 *
 * Every copy of a builtin function shares its PyMethodDef: earlier references, re-imported modules and bound methods
 * all use it. Only the pointer to the C function is replaced, never the flags, because existing function objects
 * have chosen their calling convention by them. If an entry is not as expected, the import of the guard fails. */
#include "core/core.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef PyObject *(*FastKeywords)(PyObject *, PyObject *const *, Py_ssize_t, PyObject *);
typedef PyObject *(*Fast)(PyObject *, PyObject *const *, Py_ssize_t);
typedef PyObject *(*WithClass)(PyObject *, PyTypeObject *, PyObject *const *, size_t, PyObject *);
typedef PyObject *(*Keywords)(PyObject *, PyObject *, PyObject *);

/* ---- calling ------------------------------------------------------------------------------- */

static PyObject *call_by_tuple(const Call *call)
{
    if (call->tuple != NULL) {
        return call->row->flags & METH_KEYWORDS
                   ? ((Keywords)(void (*)(void))call->row->original)(call->self, call->tuple, NULL)
                   : call->row->original(call->self, call->tuple);
    }
    PyObject *args = PyTuple_New(call->nargs), *kwargs = NULL, *result = NULL;
    if (args == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < call->nargs; i++) {
        PyTuple_SET_ITEM(args, i, Py_NewRef(call->args[i]));
    }
    if (call->kwnames != NULL && PyTuple_GET_SIZE(call->kwnames) > 0) {
        kwargs = PyDict_New();
        for (Py_ssize_t i = 0; kwargs != NULL && i < PyTuple_GET_SIZE(call->kwnames); i++) {
            if (PyDict_SetItem(kwargs, PyTuple_GET_ITEM(call->kwnames, i), call->args[call->nargs + i]) < 0) {
                goto done;
            }
        }
    }
    if (call->row->flags & METH_KEYWORDS) {
        result = ((Keywords)(void (*)(void))call->row->original)(call->self, args, kwargs);
    }
    else {
        result = call->row->original(call->self, args);
    }
done:
    Py_DECREF(args);
    Py_XDECREF(kwargs);
    return result;
}

PyObject *call_original(const Call *call)
{
    PyCFunction f = call->row->original;
    switch (call->row->flags & (METH_VARARGS | METH_FASTCALL | METH_KEYWORDS | METH_NOARGS | METH_O | METH_METHOD)) {
    case METH_FASTCALL | METH_KEYWORDS:
        return ((FastKeywords)(void (*)(void))f)(call->self, call->args, call->nargs, call->kwnames);
    case METH_FASTCALL:
        return ((Fast)(void (*)(void))f)(call->self, call->args, call->nargs);
    case METH_METHOD | METH_FASTCALL | METH_KEYWORDS:
        return ((WithClass)(void (*)(void))f)(call->self, call->type, call->args, (size_t)call->nargs, call->kwnames);
    case METH_O:
        return f(call->self, call->args[0]);
    case METH_NOARGS:
        return f(call->self, NULL);
    default:
        return call_by_tuple(call);
    }
}

/* Index into args of an argument given by position or by name; -1 when it was left out. */
Py_ssize_t call_find(const Call *call, Py_ssize_t index, const char *name)
{
    if (index >= 0 && index < call->nargs) {
        return index;
    }
    if (call->kwnames == NULL || name == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(call->kwnames); i++) {
        if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(call->kwnames, i), name) == 0) {
            return call->nargs + i;
        }
    }
    return -1;
}

int call_copy(const Call *call, PyObject **argv, Call *copy)
{
    Py_ssize_t total = call_count(call);
    if (total > MAX_ARGS) {
        PyErr_Format(PyExc_TypeError, "%s() takes too many arguments", call->row->name);
        return -1;
    }
    memcpy(argv, call->args, (size_t)total * sizeof *argv);
    *copy = *call;
    copy->args = argv;
    copy->tuple = NULL;
    return 0;
}

PyObject *call_with(const Call *call, Py_ssize_t at, PyObject *value)
{
    PyObject *argv[MAX_ARGS];
    Call copy;
    if (call_copy(call, argv, &copy) < 0) {
        return NULL;
    }
    argv[at] = value;
    return call_original(&copy);
}

static PyObject *handle(Row *row, Call *call)
{
    if (row->scope != SCOPE_GUARDED) {
        return row->handler(NULL, call); /* the handler finds the state itself */
    }
    State *state = state_guarding();
    if (state == NULL) {
        return call_original(call);
    }
    Py_INCREF(state); /* the GIL may be released in between */
    PyObject *result = row->handler(state, call);
    Py_DECREF(state);
    return result;
}

PyObject *row_call(Row *row, PyObject *self, PyTypeObject *type, PyObject *const *args, Py_ssize_t nargs,
                   PyObject *kwnames)
{
    Call call = {.row = row, .self = self, .type = type, .args = args, .nargs = nargs, .kwnames = kwnames};
    return handle(row, &call);
}

PyObject *row_call_tuple(Row *row, PyObject *self, PyObject *args, PyObject *kwargs)
{
    Py_ssize_t nargs = PyTuple_GET_SIZE(args), extra = kwargs ? PyDict_GET_SIZE(kwargs) : 0, at = 0;
    if (extra == 0) { /* a tuple cannot change, so the checked arguments are the passed ones */
        Call call = {.row = row, .self = self, .args = &PyTuple_GET_ITEM(args, 0), .nargs = nargs, .tuple = args};
        return handle(row, &call);
    }
    PyObject **argv = PyMem_Calloc((size_t)(nargs + extra + 1), sizeof *argv);
    PyObject *names = PyTuple_New(extra), *result = NULL, *key, *value;
    if (argv != NULL && names != NULL) {
        for (Py_ssize_t i = 0; i < nargs; i++) {
            argv[i] = PyTuple_GET_ITEM(args, i);
        }
        for (Py_ssize_t position = 0; kwargs && PyDict_Next(kwargs, &position, &key, &value); at++) {
            PyTuple_SET_ITEM(names, at, Py_NewRef(key));
            argv[nargs + at] = value;
        }
        result = row_call(row, self, NULL, argv, nargs, names);
    }
    Py_XDECREF(names);
    PyMem_Free(argv);
    return result;
}

/* ---- patching ------------------------------------------------------------------------------ */

static int make_writable(void *address)
{
    static void *last = NULL; /* one table holds many entries, and modules are never unloaded */
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    void *start = (void *)((uintptr_t)address & ~(page - 1));
    if (start != last && mprotect(start, page, PROT_READ | PROT_WRITE) < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    last = start;
    return 0;
}

/* The entry of a function of the builtins module, which may be changed; NULL if the module has another one there. */
PyMethodDef *writable_entry(const char *name)
{
    PyObject *module = PyImport_ImportModule("builtins");
    PyObject *function = module ? PyObject_GetAttrString(module, name) : NULL;
    bool native = function != NULL && PyCFunction_CheckExact(function) && PyCFunction_GET_SELF(function) == module;
    PyMethodDef *entry = native ? ((PyCFunctionObject *)function)->m_ml : NULL;
    bool usable = entry != NULL && strcmp(entry->ml_name, name) == 0 && make_writable(&entry->ml_meth) == 0;
    Py_XDECREF(function);
    Py_XDECREF(module);
    PyErr_Clear();
    return usable ? entry : NULL;
}

static int convention(int flags)
{
    switch (flags & ~(METH_CLASS | METH_STATIC | METH_COEXIST)) {
    case METH_FASTCALL | METH_KEYWORDS:
        return 0;
    case METH_FASTCALL:
        return 1;
    case METH_O:
        return 2;
    case METH_NOARGS:
        return 3;
    case METH_VARARGS:
        return 4;
    case METH_VARARGS | METH_KEYWORDS:
        return 5;
    case METH_METHOD | METH_FASTCALL | METH_KEYWORDS:
        return 6;
    default:
        return -1;
    }
}

static PyMethodDef *find_entry(const Row *row, PyObject *owner)
{
    PyObject *object = PyObject_GetAttrString(owner, row->name);
    PyMethodDef *entry = NULL;
    if (object == NULL) {
        if (row->optional) {
            PyErr_Clear();
        }
        return NULL;
    }
    if (PyCFunction_Check(object)) {
        entry = ((PyCFunctionObject *)object)->m_ml;
    }
    else if (Py_IS_TYPE(object, &PyMethodDescr_Type)) {
        entry = ((PyMethodDescrObject *)object)->d_method;
    }
    else if (!row->optional) {
        PyErr_Format(PyExc_ImportError, "%s.%s is not a builtin of this interpreter: the guard does not fit it",
                     row->module, row->name);
    }
    Py_DECREF(object);
    return entry;
}

int patch_row(Row *row, PyObject *module)
{
    PyObject *owner = row->owner[0] ? PyObject_GetAttrString(module, row->owner) : Py_NewRef(module);
    if (owner == NULL) {
        PyErr_Clear();
        return row->optional ? 0 : -1;
    }
    PyMethodDef *entry = find_entry(row, owner);
    Py_DECREF(owner);
    if (entry == NULL) {
        return PyErr_Occurred() ? -1 : 0;
    }
    int kind = convention(entry->ml_flags);
    if (kind < 0) {
        PyErr_Format(PyExc_ImportError, "%s.%s has call flags %d, which the guard does not know", row->module,
                     row->name, entry->ml_flags);
        return -1;
    }
    if (entry->ml_meth == row->trampolines[kind]) {
        return 0;
    }
    if (make_writable(&entry->ml_meth) < 0) {
        return -1;
    }
    row->entry = entry;
    row->module_object = Py_NewRef(module);
    row->flags = entry->ml_flags & ~(METH_CLASS | METH_STATIC | METH_COEXIST);
    row->original = entry->ml_meth;
    entry->ml_meth = row->trampolines[kind];
    return 0;
}

static void patch_subclasses(PyTypeObject *type, size_t offset, void *old, void *replacement)
{
    PyObject *subclasses = PyObject_CallMethod((PyObject *)&PyType_Type, "__subclasses__", "O", type);
    if (subclasses == NULL) {
        PyErr_Clear();
        return;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(subclasses); i++) {
        PyTypeObject *subclass = (PyTypeObject *)PyList_GET_ITEM(subclasses, i);
        void **slot = (void **)((char *)subclass + offset);
        if (*slot == old) {
            *slot = replacement;
        }
        patch_subclasses(subclass, offset, old, replacement);
    }
    Py_DECREF(subclasses);
}

/* Whether a type, or a base of it, has the replaced slot. A module can be loaded several times; each copy has separate
 * types with the same replacement. */
bool has_slot(PyTypeObject *type, size_t offset, const void *replacement)
{
    for (; type != NULL; type = type->tp_base) {
        if (*(void **)((char *)type + offset) == replacement) {
            return true;
        }
    }
    return false;
}

/* A slot of a type, its wrapper descriptor (super().__init__ uses that one), and the copies subclasses took of it. */
int patch_slot(PyTypeObject *type, const char *descriptor, void **slot, void *replacement)
{
    void *old = *slot;
    PyObject *wrapper = descriptor ? PyObject_GetAttrString((PyObject *)type, descriptor) : NULL;
    if (descriptor != NULL && wrapper == NULL) {
        return -1;
    }
    if (wrapper != NULL && Py_IS_TYPE(wrapper, &PyWrapperDescr_Type) && PyDescr_TYPE(wrapper) == type) {
        ((PyWrapperDescrObject *)wrapper)->d_wrapped = replacement;
    }
    Py_XDECREF(wrapper);
    *slot = replacement;
    patch_subclasses(type, (size_t)((char *)slot - (char *)type), old, replacement);
    PyType_Modified(type);
    return 0;
}

/* Replaces a slot of a type of a module: 1 on success, 0 when the module has no type of that name. Each copy of a
 * module has separate types, so the original is stored once and never becomes the replacement itself. */
int patch_type(PyObject *module, const char *name, const char *descriptor, size_t offset, void *replacement,
               void *original)
{
    PyTypeObject *type = (PyTypeObject *)PyObject_GetAttrString(module, name);
    if (type == NULL) {
        PyErr_Clear();
        return 0;
    }
    void **slot = (void **)((char *)type + offset);
    if (*slot != replacement) {
        memcpy(original, slot, sizeof *slot);
    }
    int result = patch_slot(type, descriptor, slot, replacement) < 0 ? -1 : 1;
    Py_DECREF(type);
    return result;
}
