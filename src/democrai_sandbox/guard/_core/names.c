/* Names of the sandbox's own modules and classes: not for guarded code to replace, since the host will use them next.
 */
#include "core.h"

#include <string.h>

static setattrofunc type_setattro_original = NULL, module_setattro_original = NULL;

/* Sets an attribute of a class past what is refused below. */
int set_type_attribute(PyObject *type, PyObject *name, PyObject *value)
{
    return type_setattro_original(type, name, value);
}

static bool is_ours(PyObject *name)
{
    static const char prefix[] = "democrai_sandbox";
    const char *text = name && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    if (text == NULL) {
        PyErr_Clear();
    }
    return text != NULL && strncmp(text, prefix, sizeof prefix - 1) == 0;
}

static int type_setattro(PyObject *type, PyObject *name, PyObject *value)
{
    State *state = state_guarding();
    if (LIKELY(state == NULL) || !PyUnicode_Check(name)) {
        return type_setattro_original(type, name, value);
    }
    PyObject *module = PyObject_GetAttrString(type, "__module__");
    bool refused = is_ours(module) || PyUnicode_Compare(name, finaliser_name) == 0;
    Py_XDECREF(module);
    PyErr_Clear();
    if (refused) {
        deny(state, DENY_TAMPER, "use", name);
        return -1;
    }
    int result = type_setattro_original(type, name, value);
    if (result == 0 && value != NULL && PyUnicode_CompareWithASCIIString(name, "__del__") == 0) {
        result = guard_finaliser(state, (PyTypeObject *)type);
    }
    return result;
}

static int module_setattro(PyObject *module, PyObject *name, PyObject *value)
{
    State *state = state_guarding();
    if (UNLIKELY(state != NULL)) {
        PyObject *own = PyModule_GetNameObject(module);
        bool refused = is_ours(own) && !caller_is_importlib();
        Py_XDECREF(own);
        PyErr_Clear();
        if (refused) {
            deny(state, DENY_TAMPER, "use", name);
            return -1;
        }
    }
    return module_setattro_original(module, name, value);
}

int names_ready(void)
{
    type_setattro_original = PyType_Type.tp_setattro;
    module_setattro_original = PyModule_Type.tp_setattro;
    /* deleting goes through the same slot, by a descriptor of its own */
    if (patch_slot(&PyType_Type, "__setattr__", (void **)&PyType_Type.tp_setattro, (void *)type_setattro) < 0 ||
        patch_slot(&PyType_Type, "__delattr__", (void **)&PyType_Type.tp_setattro, (void *)type_setattro) < 0) {
        return -1;
    }
    return patch_slot(&PyModule_Type, NULL, (void **)&PyModule_Type.tp_setattro, (void *)module_setattro);
}
