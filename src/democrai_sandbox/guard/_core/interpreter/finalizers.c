/* Callbacks of weak references and finalizers of classes. They run in the code that drops the last reference; each
 * runs under the guard that it was made under. */
#include "interpreter/interpreter.h"

static newfunc weakref_original = NULL;

static PyObject *weakref_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    State *state = state_guarding();
    if (LIKELY(state == NULL) || PyTuple_GET_SIZE(args) < 2 || !PyCallable_Check(PyTuple_GET_ITEM(args, 1))) {
        return weakref_original(type, args, kwargs);
    }
    PyObject *bound = bind_to(state, PyTuple_GET_ITEM(args, 1));
    PyObject *changed = bound ? PyTuple_Pack(2, PyTuple_GET_ITEM(args, 0), bound) : NULL;
    PyObject *result = changed ? weakref_original(type, changed, kwargs) : NULL;
    Py_XDECREF(bound);
    Py_XDECREF(changed);
    return result;
}

/* When an instance of a class is freed, its __del__ runs in the code that drops the last reference, or a __del__ of a
 * base that calls methods of the class (that of io closes the file). The class stores the state that it was made under.
 */
typedef struct {
    PyObject_HEAD State *state;
    destructor original;
} Finaliser;

static void finaliser_dealloc(PyObject *self)
{
    Py_XDECREF(((Finaliser *)self)->state);
    PyObject_Free(self);
}

static PyTypeObject Finaliser_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "democrai_sandbox.guard._core.Finaliser",
    .tp_basicsize = sizeof(Finaliser),
    .tp_dealloc = finaliser_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
};

static newfunc type_new_original = NULL;
static PyObject *finaliser_name = NULL;

static void guarded_finalize(PyObject *object)
{
    PyObject *found = _PyType_Lookup(Py_TYPE(object), finaliser_name);
    if (found == NULL || !Py_IS_TYPE(found, &Finaliser_Type)) {
        return; /* cannot be: the name is refused to guarded code */
    }
    Finaliser *finaliser = (Finaliser *)Py_NewRef(found);
    Entered entered;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (state_enter(finaliser->state, &entered) == 0) {
        finaliser->original(object);
        state_leave(&entered);
    }
    else {
        PyErr_WriteUnraisable(object);
    }
    PyErr_Restore(type, value, trace);
    Py_DECREF(finaliser);
}

int guard_finaliser(State *state, PyTypeObject *type)
{
    if (type->tp_finalize == NULL || type->tp_finalize == guarded_finalize || !(type->tp_flags & Py_TPFLAGS_HEAPTYPE) ||
        called_by_library_import()) {
        return 0;
    }
    Finaliser *finaliser = PyObject_New(Finaliser, &Finaliser_Type);
    if (finaliser == NULL) {
        return -1;
    }
    finaliser->state = (State *)Py_NewRef(state);
    finaliser->original = type->tp_finalize;
    int result = set_type_attribute((PyObject *)type, finaliser_name, (PyObject *)finaliser);
    Py_DECREF(finaliser);
    return result < 0 ? -1 : patch_slot(type, NULL, (void **)&type->tp_finalize, (void *)guarded_finalize);
}

static PyObject *type_new(PyTypeObject *meta, PyObject *args, PyObject *kwargs)
{
    PyObject *made = type_new_original(meta, args, kwargs);
    State *state = made ? state_guarding() : NULL;
    if (UNLIKELY(state != NULL) && PyType_Check(made) && guard_finaliser(state, (PyTypeObject *)made) < 0) {
        Py_CLEAR(made);
    }
    return made;
}

int finalizers_ready(void)
{
    finaliser_name = PyUnicode_InternFromString(FINALISER_NAME);
    if (finaliser_name == NULL || PyType_Ready(&Finaliser_Type) < 0) {
        return -1;
    }
    weakref_original = _PyWeakref_RefType.tp_new;
    type_new_original = PyType_Type.tp_new;
    if (patch_slot(&_PyWeakref_RefType, NULL, (void **)&_PyWeakref_RefType.tp_new, (void *)weakref_new) < 0) {
        return -1;
    }
    return patch_slot(&PyType_Type, NULL, (void **)&PyType_Type.tp_new, (void *)type_new);
}
