/* The view of the sandbox's modules, functions and methods that guarded code gets.
 *
 * protected_names.c refuses to set names of our modules. Guarded code could still write to the dictionary behind a
 * module, to the cells of a closure, or to the object that a method is bound to, and the host would use them next.
 * Therefore guarded code gets a copy of the dictionary and no access to the rest. The descriptors are replaced in
 * the dictionaries of the types, so every lookup uses them. */
#include "interpreter/interpreter.h"

#include <string.h>

static PyObject *complete = NULL; /* our modules that were loaded before a guard: nothing is left to be put into them */

/* ---- whose ------------------------------------------------------------------------------------- */

static bool is_our_name(PyObject *name)
{
    static const char prefix[] = "democrai_sandbox";
    if (name == NULL || !PyUnicode_CheckExact(name) || !PyUnicode_IS_COMPACT_ASCII(name)) {
        return false;
    }
    const char *text = (const char *)PyUnicode_1BYTE_DATA(name);
    bool ours = strncmp(text, prefix, sizeof prefix - 1) == 0 && strchr(".", text[sizeof prefix - 1]);
    return ours || TEXT_EQUALS(name, "builtins"); /* all functions look up names there */
}

/* "os" has the environment, and "sys" says where bytecode goes. */
static bool is_shared(PyObject *module)
{
    return is_environment_globals(PyModule_GetDict(module)) || is_environment_system(module);
}

/* Called before a guard is entered, by the host. A module that guarded code is the first to import comes later, and
 * importlib has to fill it. */
int module_views_settle(void)
{
    PyObject *modules = PyImport_GetModuleDict(), *name, *module;
    Py_ssize_t at = 0;
    if (state_guarding() != NULL) {
        return 0;
    }
    complete = complete ? complete : PySet_New(NULL);
    while (complete != NULL && PyDict_Next(modules, &at, &name, &module)) {
        PyObject *key = is_our_name(name) ? PyLong_FromVoidPtr(module) : NULL;
        if (key != NULL && PySet_Add(complete, key) < 0) {
            Py_CLEAR(complete);
        }
        Py_XDECREF(key);
    }
    if (complete != NULL) {
        PyObject_GC_UnTrack(complete);
    }
    return complete ? 0 : -1;
}

static bool is_complete(PyObject *module)
{
    PyObject *key = complete ? PyLong_FromVoidPtr(module) : NULL;
    bool is = key != NULL && PySet_Contains(complete, key) == 1;
    Py_XDECREF(key);
    PyErr_Clear();
    return is;
}

static bool function_is_ours(PyObject *function)
{
    return PyFunction_Check(function) && code_is_ours((PyCodeObject *)PyFunction_GET_CODE(function));
}

static PyObject *name_of_module = NULL; /* "__name__" */

/* ---- getters ------------------------------------------------------------------------------------ */

static PyObject *module_dict(PyObject *module, void *unused)
{
    PyObject *dict = PyModule_Check(module) ? PyModule_GetDict(module) : NULL;
    if (dict == NULL) {
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    bool hidden =
        state_guarding() != NULL && (is_shared(module) || (is_our_name(PyDict_GetItem(dict, name_of_module)) &&
                                                           (is_complete(module) || !frame_is_import_machinery())));
    return hidden ? PyDict_Copy(dict) : Py_NewRef(dict);
}

static PyObject *function_globals(PyObject *function, void *unused)
{
    PyObject *dict = PyFunction_GET_GLOBALS(function);
    bool hidden = state_guarding() != NULL && (function_is_ours(function) || is_environment_globals(dict));
    return hidden ? PyDict_Copy(dict) : Py_NewRef(dict);
}

static PyObject *function_closure(PyObject *function, void *unused)
{
    PyObject *cells = PyFunction_GET_CLOSURE(function);
    bool hidden = cells != NULL && state_guarding() != NULL && function_is_ours(function);
    return Py_NewRef(cells == NULL || hidden ? Py_None : cells);
}

static getter defaults_original = NULL;

/* __kwdefaults__ is the very dictionary that calls look into. */
static PyObject *function_kwdefaults(PyObject *function, void *closure)
{
    PyObject *defaults = defaults_original(function, closure);
    if (defaults != NULL && PyDict_Check(defaults) && state_guarding() != NULL && function_is_ours(function)) {
        Py_SETREF(defaults, PyDict_Copy(defaults));
    }
    return defaults;
}

static PyObject *method_self(PyObject *method, void *unused)
{
    bool hidden = state_guarding() != NULL && function_is_ours(PyMethod_GET_FUNCTION(method)) &&
                  !PyType_Check(PyMethod_GET_SELF(method));
    return Py_NewRef(hidden ? Py_None : PyMethod_GET_SELF(method));
}

/* method.__reduce__() names the object as well. */
PyObject *on_method_reduce(State *state, Call *call)
{
    bool hidden = PyMethod_Check(call->self) && function_is_ours(PyMethod_GET_FUNCTION(call->self)) &&
                  !PyType_Check(PyMethod_GET_SELF(call->self));
    return hidden ? deny_text(state, DENY_TAMPER, "method.__reduce__") : call_original(call);
}

/* ---- in the place of the members ---------------------------------------------------------------- */

static struct {
    PyTypeObject *type;
    PyGetSetDef entry;
} views[] = {
    {&PyModule_Type, {"__dict__", module_dict, NULL, NULL, NULL}},
    {&PyFunction_Type, {"__globals__", function_globals, NULL, NULL, NULL}},
    {&PyFunction_Type, {"__closure__", function_closure, NULL, NULL, NULL}},
    {&PyMethod_Type, {"__self__", method_self, NULL, NULL, NULL}},
};

PyObject *type_dictionary(PyTypeObject *type)
{
#if PY_VERSION_HEX < 0x030C0000
    return Py_NewRef(type->tp_dict);
#else
    return PyType_GetDict(type);
#endif
}

static int defaults_ready(void)
{
    for (PyGetSetDef *entry = PyFunction_Type.tp_getset; entry != NULL && entry->name != NULL; entry++) {
        if (strcmp(entry->name, "__kwdefaults__") == 0) {
            defaults_original = entry->get;
            entry->get = function_kwdefaults;
            return 0;
        }
    }
    PyErr_SetString(PyExc_ImportError,
                    "function.__kwdefaults__ was not found: the guard does not fit this interpreter");
    return -1;
}

int module_views_ready(void)
{
    name_of_module = PyUnicode_InternFromString("__name__");
    if (name_of_module == NULL || defaults_ready() < 0) {
        return -1;
    }
    for (size_t i = 0; i < sizeof views / sizeof *views; i++) {
        PyObject *dict = type_dictionary(views[i].type);
        PyObject *old = dict ? PyDict_GetItemString(dict, views[i].entry.name) : NULL;
        if (old == NULL || !Py_IS_TYPE(old, &PyMemberDescr_Type)) {
            Py_XDECREF(dict);
            PyErr_Format(PyExc_ImportError, "%s.%s was not found: the guard does not fit this interpreter",
                         views[i].type->tp_name, views[i].entry.name);
            return -1;
        }
        PyObject *made = PyDescr_NewGetSet(views[i].type, &views[i].entry);
        int result = made ? PyDict_SetItemString(dict, views[i].entry.name, made) : -1;
        Py_XDECREF(made);
        Py_DECREF(dict);
        if (result < 0) {
            return -1;
        }
        PyType_Modified(views[i].type);
    }
    return 0;
}
