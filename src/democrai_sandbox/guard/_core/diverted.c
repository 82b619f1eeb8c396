/* Diverted methods: one callable for those whom nothing guards, another for guarded code.
 *
 * Native types such as uvloop's loop cannot be changed from Python, and a wrapper in Python would hold the original in
 * its closure. Here it is out of reach: neither the garbage collector nor an attribute leads to it. */
#include "core.h"

#include <stddef.h>

typedef struct {
    PyObject_HEAD PyObject *original, *guarded, *keyword; /* keyword given: diverted only when it is among the arguments */
    vectorcallfunc vectorcall;
} Diverted;

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

static PyObject *diverted_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Diverted *diverted = (Diverted *)self;
    PyObject *function = concerns(diverted, kwnames) ? diverted->guarded : diverted->original;
    return PyObject_Vectorcall(function, args, nargsf, kwnames);
}

static PyObject *diverted_get(PyObject *self, PyObject *instance, PyObject *type)
{
    return instance == NULL || instance == Py_None ? Py_NewRef(self) : PyMethod_New(self, instance);
}

/* Name, text and the marks by which coroutine functions are known. */
static PyObject *diverted_getattro(PyObject *self, PyObject *name)
{
    PyObject *value = PyObject_GenericGetAttr(self, name);
    if (value == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        value = PyObject_GetAttr(((Diverted *)self)->guarded, name);
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

/* divert(type, name, function, keyword=None) -> bool: False when the type has no such method of its own. For adapters,
 * which run outside the guard. */
PyObject *core_divert(PyObject *module, PyObject *args)
{
    PyTypeObject *type;
    PyObject *name, *function, *keyword = NULL;
    State *state = state_guarding();
    if (state != NULL) {
        return deny_text(state, DENY_TAMPER, "divert");
    }
    if (!PyArg_ParseTuple(args, "O!UO|U", &PyType_Type, &type, &name, &function, &keyword)) {
        return NULL;
    }
    PyObject *original = type->tp_dict ? PyDict_GetItemWithError(type->tp_dict, name) : NULL;
    if (original == NULL || !PyCallable_Check(original)) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_False);
    }
    if (Py_IS_TYPE(original, &Diverted_Type)) {
        Py_RETURN_TRUE;
    }
    Diverted *made = PyObject_New(Diverted, &Diverted_Type);
    if (made == NULL) {
        return NULL;
    }
    made->vectorcall = diverted_call;
    made->original = Py_NewRef(original);
    made->guarded = Py_NewRef(function);
    made->keyword = Py_XNewRef(keyword);
    if (PyDict_SetItem(type->tp_dict, name, (PyObject *)made) < 0) {
        return NULL;
    }
    PyType_Modified(type);
    Py_RETURN_TRUE;
}
