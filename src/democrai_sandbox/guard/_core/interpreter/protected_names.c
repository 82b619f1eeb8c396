/* Names of the sandbox's modules and classes. Guarded code cannot replace them, because the host uses them next. */
#include "interpreter/interpreter.h"

#include <string.h>

static setattrofunc type_setattro_original = NULL, module_setattro_original = NULL;

/* Sets an attribute of a class without the checks below. */
int set_type_attribute(PyObject *type, PyObject *name, PyObject *value)
{
    return type_setattro_original(type, name, value);
}

static const char prefix[] = "democrai_sandbox";

static bool is_ours(PyObject *name)
{
    if (name != NULL && PyUnicode_Check(name) && LIKELY(PyUnicode_IS_COMPACT_ASCII(name))) {
        return strncmp((const char *)PyUnicode_1BYTE_DATA(name), prefix, sizeof prefix - 1) == 0;
    }
    const char *text = name && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    if (text == NULL) {
        PyErr_Clear();
    }
    return text != NULL && strncmp(text, prefix, sizeof prefix - 1) == 0;
}

static PyObject *module_name = NULL; /* "__module__", interned: types look others up without their cache */

/* Whether a class was defined in one of our modules; -1 with an exception. */
static int is_our_class(PyTypeObject *type)
{
    if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
        return strncmp(type->tp_name, prefix, sizeof prefix - 1) == 0;
    }
    PyObject *module = PyDict_GetItemWithError(type->tp_dict, module_name);
    return module ? is_ours(module) : PyErr_Occurred() ? -1 : 0;
}

static int type_setattro(PyObject *type, PyObject *name, PyObject *value)
{
    State *state = state_guarding();
    if (LIKELY(state == NULL) || !PyUnicode_Check(name)) {
        return type_setattro_original(type, name, value);
    }
    int ours = is_our_class((PyTypeObject *)type);
    if (ours < 0) {
        return -1;
    }
    bool layout = TEXT_EQUALS(name, "_type_") && is_foreign_type((PyTypeObject *)type);
    if (ours || is_environment_type(type) || TEXT_EQUALS(name, FINALISER_NAME) || (layout && !caller_is_library())) {
        deny(state, DENY_TAMPER, "use", name);
        return -1;
    }
    int result = type_setattro_original(type, name, value);
    if (result == 0 && value != NULL && TEXT_EQUALS(name, "__del__")) {
        result = guard_finaliser(state, (PyTypeObject *)type);
    }
    return result;
}

/* An augmented assignment, such as os.environ |= more, ends by binding what is bound already. */
static bool binds_the_same(PyObject *module, PyObject *name, PyObject *value)
{
    return value != NULL && PyUnicode_CheckExact(name) && PyDict_GetItem(PyModule_GetDict(module), name) == value;
}

/* Whether a name in one of our modules refers to an object from elsewhere, such as a clock. */
static bool is_borrowed(PyObject *module, PyObject *name)
{
    PyObject *value = PyUnicode_CheckExact(name) ? PyDict_GetItem(PyModule_GetDict(module), name) : NULL;
    PyObject *origin = value ? PyObject_GetAttr(value, module_name) : NULL;
    bool borrowed = origin != NULL && PyUnicode_Check(origin) && !is_ours(origin);
    Py_XDECREF(origin);
    PyErr_Clear();
    return borrowed;
}

static int module_setattro(PyObject *module, PyObject *name, PyObject *value)
{
    State *state = state_guarding();
    if (UNLIKELY(state != NULL)) {
        PyObject *own = PyModule_GetNameObject(module);
        bool ours = is_ours(own) && !caller_is_importlib();
        bool builtins = own && TEXT_EQUALS(own, "builtins");
        if (ours && value != NULL && caller_is_library() && is_borrowed(module, name)) {
            Py_DECREF(own);
            return 0; /* libraries for tests replace the clock in all modules; ours keep it */
        }
        /* site and gettext have something to put there */
        bool refused = ours || (builtins && !caller_is_library()) ||
                       (is_environment_name(module, name) && !binds_the_same(module, name, value));
        Py_XDECREF(own);
        PyErr_Clear();
        if (refused) {
            deny(state, DENY_TAMPER, "use", name);
            return -1;
        }
    }
    return module_setattro_original(module, name, value);
}

/* ---- object.__setattr__ and object.__delattr__ of a module ---------------------------------------------- */

/* CPython compares the slot of a type with the function behind a descriptor, and would refuse super().__setattr__ of
 * every class that derives from modules. These two stand in for the functions that compare. */
static wrapperfunc set_wrapper = NULL, delete_wrapper = NULL;

static bool is_generic_for_module(PyObject *self, void *wrapped)
{
    return wrapped == (void *)PyObject_GenericSetAttr && PyModule_Check(self);
}

static PyObject *wrap_set(PyObject *self, PyObject *args, void *wrapped)
{
    PyObject *name, *value;
    if (LIKELY(!is_generic_for_module(self, wrapped))) {
        return set_wrapper(self, args, wrapped);
    }
    if (!PyArg_UnpackTuple(args, "__setattr__", 2, 2, &name, &value) || module_setattro(self, name, value) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *wrap_delete(PyObject *self, PyObject *args, void *wrapped)
{
    PyObject *name;
    if (LIKELY(!is_generic_for_module(self, wrapped))) {
        return delete_wrapper(self, args, wrapped);
    }
    if (!PyArg_UnpackTuple(args, "__delattr__", 1, 1, &name) || module_setattro(self, name, NULL) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* The table that all descriptors of this name point into: a subclass compares its entries, so they stay one. */
static int replace_wrapper(const char *descriptor, wrapperfunc replacement, wrapperfunc *original)
{
    PyObject *found = PyObject_GetAttrString((PyObject *)&PyBaseObject_Type, descriptor);
    if (found == NULL || !Py_IS_TYPE(found, &PyWrapperDescr_Type)) {
        Py_XDECREF(found);
        PyErr_Format(PyExc_RuntimeError, "object.%s is not as CPython has it", descriptor);
        return -1;
    }
    struct wrapperbase *base = ((PyWrapperDescrObject *)found)->d_base;
    *original = base->wrapper;
    base->wrapper = replacement;
    Py_DECREF(found);
    return 0;
}

/* ---- the dictionary behind a class ----------------------------------------------------------------- */

static richcmpfunc compare_original = NULL;
static binaryfunc or_original = NULL;

typedef struct {
    PyObject_HEAD PyObject *mapping;
} Proxy;

/* The dictionary of a class is of no subtype, which would compare in another way. */
static bool is_of_class(PyObject *value)
{
    return Py_IS_TYPE(value, &PyDictProxy_Type) && PyDict_CheckExact(((Proxy *)value)->mapping);
}

/* A comparison or a union hands the dictionary behind the proxy itself to the other side, which could change it there,
 * past what is refused above. It gets a copy. */
static PyObject *copy_of(PyObject *proxy)
{
    PyObject *copy = state_guarding() && is_of_class(proxy) ? PyDict_New() : Py_NewRef(proxy);
    if (copy != NULL && copy != proxy && PyDict_Update(copy, proxy) < 0) {
        Py_CLEAR(copy);
    }
    return copy;
}

static PyObject *proxy_compare(PyObject *self, PyObject *other, int op)
{
    PyObject *copy = copy_of(self);
    PyObject *result = !copy          ? NULL
                       : copy == self ? compare_original(self, other, op)
                                      : PyObject_RichCompare(copy, other, op);
    Py_XDECREF(copy);
    return result;
}

static PyObject *proxy_or(PyObject *left, PyObject *right)
{
    PyObject *one = copy_of(left), *two = one ? copy_of(right) : NULL;
    PyObject *result = !two ? NULL : one == left && two == right ? or_original(left, right) : PyNumber_Or(one, two);
    Py_XDECREF(one);
    Py_XDECREF(two);
    return result;
}

static int proxies_ready(void)
{
    PyTypeObject *type = &PyDictProxy_Type;
    static const char *const comparisons[] = {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"};
    compare_original = type->tp_richcompare;
    or_original = type->tp_as_number->nb_or;
    int result = patch_slot(type, "__or__", (void **)&type->tp_as_number->nb_or, (void *)proxy_or);
    result = result < 0 ? -1 : patch_slot(type, "__ror__", (void **)&type->tp_as_number->nb_or, (void *)proxy_or);
    for (size_t i = 0; result == 0 && i < sizeof comparisons / sizeof *comparisons; i++) {
        result = patch_slot(type, comparisons[i], (void **)&type->tp_richcompare, (void *)proxy_compare);
    }
    return result;
}

/* Methods of thread-local objects accept any object as a name, and crash on one that claims to equal their own. */
static setattrofunc local_original = NULL;

static int local_setattro(PyObject *self, PyObject *name, PyObject *value)
{
    if (!PyUnicode_Check(name)) {
        PyErr_Format(PyExc_TypeError, "attribute name must be string, not '%.200s'", Py_TYPE(name)->tp_name);
        return -1;
    }
    return local_original(self, name, value);
}

int local_patch(PyObject *module)
{
    static const char *const descriptors[] = {"__setattr__", "__delattr__"};
    int result = 1;
    for (int i = 0; i < 2 && result == 1; i++) {
        result = patch_type(module, "_local", descriptors[i], offsetof(PyTypeObject, tp_setattro),
                            (void *)local_setattro, &local_original);
    }
    return result;
}

/* Writes a value whose text the encoding of the stream cannot represent. */
static int write_as_ascii(PyObject *value, PyObject *output)
{
    PyErr_Clear();
    PyObject *text = PyObject_ASCII(value);
    int result = text ? PyFile_WriteObject(text, output, Py_PRINT_RAW) : -1;
    Py_XDECREF(text);
    return result;
}

/* sys.displayhook(value), which doctests use: shows the value and leaves builtins._ alone, which is the host's. */
PyObject *on_display(State *state, Call *call)
{
    PyObject *value = call->args[0], *output = Py_XNewRef(PySys_GetObject("stdout"));
    int result = 0;
    if (value != Py_None && output != NULL) {
        result = PyFile_WriteObject(value, output, 0);
        if (result < 0 && PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
            result = write_as_ascii(value, output);
        }
        result = result < 0 ? -1 : PyFile_WriteString("\n", output);
    }
    Py_XDECREF(output);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}

int protected_names_ready(void)
{
    module_name = PyUnicode_InternFromString("__module__");
    if (module_name == NULL || proxies_ready() < 0 || replace_wrapper("__setattr__", wrap_set, &set_wrapper) < 0 ||
        replace_wrapper("__delattr__", wrap_delete, &delete_wrapper) < 0) {
        return -1;
    }
    type_setattro_original = PyType_Type.tp_setattro;
    module_setattro_original = PyModule_Type.tp_setattro;
    /* deleting uses the same slot with a separate descriptor */
    if (patch_slot(&PyType_Type, "__setattr__", (void **)&PyType_Type.tp_setattro, (void *)type_setattro) < 0 ||
        patch_slot(&PyType_Type, "__delattr__", (void **)&PyType_Type.tp_setattro, (void *)type_setattro) < 0) {
        return -1;
    }
    return patch_slot(&PyModule_Type, NULL, (void **)&PyModule_Type.tp_setattro, (void *)module_setattro);
}
