/* os.environ: guarded code changes one variable at a time, and each change is checked by environment_check().
 *
 * The host uses os.environ too. Therefore guarded code cannot replace its attributes, its class, or the dictionary
 * behind it. */
#include "interpreter/interpreter.h"

#include <string.h>

static PyTypeObject *environ_type = NULL;
static PyObject *instances[2]; /* os.environ, os.environb */
static PyObject *os_module = NULL, *sys_module = NULL;
static PyObject *variables = NULL;  /* the mapping behind both */
static PyObject *conversions[2][2]; /* of each instance: to bytes, and back */

/* ---- names that guarded code may not set ------------------------------------------------------------ */

/* Whether the runtime owns this variable, as it does every name with its prefix. */
bool is_owned_variable(const char *text)
{
    static const char prefix[] = "DEMOCRAI_";
    return strncmp(text, prefix, sizeof prefix - 1) == 0;
}

/* Variables by which C libraries complete host names, and choose files and native code to load. */
static bool steers_libraries(const char *name)
{
    static const char *const names[] = {
        "LOCALDOMAIN", "RES_OPTIONS", "HOSTALIASES",  "GCONV_PATH",           "LOCPATH",         "NLSPATH",
        "TZDIR",       "INPUTRC",     "OPENSSL_CONF", "OPENSSL_CONF_INCLUDE", "OPENSSL_ENGINES", "OPENSSL_MODULES"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

int environment_check(State *state, PyObject *name)
{
    PyObject *bytes = NULL;
    if (!PyUnicode_FSConverter(name, &bytes)) {
        return -1;
    }
    int result = 0;
    if (is_owned_variable(PyBytes_AS_STRING(bytes)) || steers_libraries(PyBytes_AS_STRING(bytes))) {
        deny_text(state, DENY_ENVIRONMENT, PyBytes_AS_STRING(bytes));
        result = -1;
    }
    Py_DECREF(bytes);
    return result;
}

/* ---- os.environ itself --------------------------------------------------------------------------------- */

bool is_environment(PyObject *object)
{
    return object == instances[0] || object == instances[1];
}

/* Also for its bases: the methods of a mapping come from there. */
bool is_environment_type(PyObject *type)
{
    return type != (PyObject *)&PyBaseObject_Type && environ_type != NULL &&
           PyType_IsSubtype(environ_type, (PyTypeObject *)type);
}

bool is_environment_name(PyObject *module, PyObject *name)
{
    if (!PyUnicode_Check(name)) {
        return false;
    }
    return (module == os_module && (PyUnicode_CompareWithASCIIString(name, "environ") == 0 ||
                                    PyUnicode_CompareWithASCIIString(name, "environb") == 0)) ||
           (module == sys_module && PyUnicode_CompareWithASCIIString(name, "pycache_prefix") == 0);
}

bool is_environment_system(PyObject *module)
{
    return module == sys_module;
}

bool is_environment_globals(PyObject *dict)
{
    return os_module != NULL && dict == PyModule_GetDict(os_module);
}

/* ---- the mapping behind os.environ ------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD PyObject *dict; /* bytes to bytes; nothing else leads to it */
} Variables;

static PyObject *dict_of(PyObject *self)
{
    return ((Variables *)self)->dict;
}

static Py_ssize_t variables_length(PyObject *self)
{
    return PyDict_GET_SIZE(dict_of(self));
}

static PyObject *variables_item(PyObject *self, PyObject *key)
{
    return PyObject_GetItem(dict_of(self), key);
}

static PyObject *exact_bytes(PyObject *module, PyObject *value)
{
    if (!PyBytes_Check(value)) {
        return PyErr_Format(PyExc_TypeError, "bytes expected, not %s", Py_TYPE(value)->tp_name);
    }
    return PyBytes_FromStringAndSize(PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value));
}

/* A key of a derived type could be one variable to the C library and another one to a dictionary. */
static int variables_set(PyObject *self, PyObject *key, PyObject *value)
{
    State *state = state_guarding();
    if (state == NULL) {
        return value ? PyObject_SetItem(dict_of(self), key, value) : PyObject_DelItem(dict_of(self), key);
    }
    PyObject *name = exact_bytes(NULL, key), *text = name && value ? exact_bytes(NULL, value) : NULL;
    int result = -1;
    if (name != NULL && (value == NULL || text != NULL) && environment_check(state, name) == 0) {
        result = value ? PyDict_SetItem(dict_of(self), name, text) : PyDict_DelItem(dict_of(self), name);
    }
    Py_XDECREF(name);
    Py_XDECREF(text);
    return result;
}

static PyObject *variables_iterate(PyObject *self)
{
    return PyObject_GetIter(dict_of(self));
}

static int variables_contains(PyObject *self, PyObject *key)
{
    return PyDict_Contains(dict_of(self), key);
}

/* Otherwise like the dictionary that it was; guarded code gets methods of a copy. */
static PyObject *variables_attribute(PyObject *self, PyObject *name)
{
    PyObject *value = PyObject_GenericGetAttr(self, name);
    if (value == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        PyObject *dict = state_guarding() ? PyDict_Copy(dict_of(self)) : Py_NewRef(dict_of(self));
        value = dict ? PyObject_GetAttr(dict, name) : NULL;
        Py_XDECREF(dict);
    }
    return value;
}

static PyObject *variables_text(PyObject *self)
{
    return PyObject_Repr(dict_of(self));
}

/* A deep copy is a plain dictionary. */
static PyObject *variables_reduce(PyObject *self, PyObject *unused)
{
    PyObject *copy = PyDict_Copy(dict_of(self));
    return copy ? Py_BuildValue("O(N)", &PyDict_Type, copy) : NULL;
}

static PyMethodDef variables_methods[] = {{"__reduce__", variables_reduce, METH_NOARGS, NULL}, {NULL}};
static PyMappingMethods variables_mapping = {variables_length, variables_item, variables_set};
static PySequenceMethods variables_sequence = {.sq_contains = variables_contains};

static PyTypeObject Variables_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "democrai_sandbox.guard._core.Variables",
    .tp_basicsize = sizeof(Variables),
    .tp_repr = variables_text,
    .tp_as_mapping = &variables_mapping,
    .tp_as_sequence = &variables_sequence,
    .tp_hash = PyObject_HashNotImplemented,
    .tp_getattro = variables_attribute,
    .tp_iter = variables_iterate,
    .tp_methods = variables_methods,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
};

static PyObject *variables_new(PyObject *dict)
{
    Variables *made = PyObject_New(Variables, &Variables_Type);
    if (made != NULL) {
        made->dict = PyDict_Copy(dict); /* posix.environ is the same one */
        if (made->dict == NULL) {
            return NULL;
        }
        PyObject_GC_UnTrack(made->dict);
    }
    return (PyObject *)made;
}

/* ---- attributes: the core keeps those of both objects, and ignores their dictionaries ------------- */

static PyObject *own_value(PyObject *self, const char *name)
{
    return name[0] == '_' ? variables : conversions[self == instances[1]][name[0] == 'd'];
}

static PyObject *get_attribute(PyObject *self, void *name)
{
    if (is_environment(self)) {
        return Py_NewRef(own_value(self, name));
    }
    PyObject *dict = PyObject_GenericGetDict(self, NULL);
    PyObject *value = dict ? Py_XNewRef(PyDict_GetItemString(dict, name)) : NULL;
    if (dict != NULL && value == NULL) {
        PyErr_SetString(PyExc_AttributeError, name);
    }
    Py_XDECREF(dict);
    return value;
}

static PyObject *get_dict(PyObject *self, void *name)
{
    PyObject *dict = PyObject_GenericGetDict(self, NULL);
    if (dict != NULL && is_environment(self) && state_guarding() != NULL) {
        Py_SETREF(dict, PyDict_Copy(dict));
    }
    return dict;
}

static int set_attribute(PyObject *self, PyObject *value, void *name)
{
    State *state = state_guarding();
    if (state != NULL && is_environment(self)) {
        deny_text(state, DENY_ENVIRONMENT, "os.environ");
        return -1;
    }
    if (is_environment(self)) {
        PyErr_SetString(PyExc_AttributeError, "attributes of os.environ cannot be replaced under the guard's core");
        return -1;
    }
    if (strcmp(name, "__dict__") == 0) {
        return PyObject_GenericSetDict(self, value, NULL);
    }
    PyObject *dict = PyObject_GenericGetDict(self, NULL);
    int result = !dict ? -1 : value ? PyDict_SetItemString(dict, name, value) : PyDict_DelItemString(dict, name);
    Py_XDECREF(dict);
    return result;
}

static PyGetSetDef attributes[] = {
    {"_data", get_attribute, set_attribute, NULL, "_data"},
    {"encodekey", get_attribute, set_attribute, NULL, "encodekey"},
    {"decodekey", get_attribute, set_attribute, NULL, "decodekey"},
    {"encodevalue", get_attribute, set_attribute, NULL, "encodevalue"},
    {"decodevalue", get_attribute, set_attribute, NULL, "decodevalue"},
    {"__dict__", get_dict, set_attribute, NULL, "__dict__"},
};

/* ---- conversions ------------------------------------------------------------------------------- */

static PyObject *encode(PyObject *module, PyObject *value)
{
    if (!PyUnicode_Check(value)) {
        return PyErr_Format(PyExc_TypeError, "str expected, not %s", Py_TYPE(value)->tp_name);
    }
    PyObject *exact = PyUnicode_FromObject(value), *bytes = exact ? PyUnicode_EncodeFSDefault(exact) : NULL;
    Py_XDECREF(exact);
    return bytes;
}

static PyObject *decode(PyObject *module, PyObject *value)
{
    if (!PyBytes_Check(value)) {
        return PyErr_Format(PyExc_TypeError, "bytes expected, not %s", Py_TYPE(value)->tp_name);
    }
    return PyUnicode_DecodeFSDefaultAndSize(PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value));
}

static PyMethodDef conversion_defs[2][2] = {
    {{"encode", encode, METH_O, NULL}, {"decode", decode, METH_O, NULL}},
    {{"exact_bytes", exact_bytes, METH_O, NULL}, {"exact_bytes", exact_bytes, METH_O, NULL}},
};

/* ---- setting up -------------------------------------------------------------------------------- */

static int replace_attributes(PyObject *dict)
{
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
        PyObject *made = PyDescr_NewGetSet(environ_type, &attributes[i]);
        int result = made ? PyDict_SetItemString(dict, attributes[i].name, made) : -1;
        Py_XDECREF(made);
        if (result < 0) {
            return -1;
        }
    }
    PyType_Modified(environ_type);
    return 0;
}

/* Their dictionaries say the same: what copies an object goes by those. */
static int keep_values(PyObject *instance)
{
    PyObject *dict = PyObject_GenericGetDict(instance, NULL);
    int result = dict ? 0 : -1;
    for (size_t i = 0; result == 0 && i + 1 < sizeof attributes / sizeof *attributes; i++) {
        result = PyDict_SetItemString(dict, attributes[i].name, own_value(instance, attributes[i].name));
    }
    Py_XDECREF(dict);
    return result;
}

int environment_ready(void)
{
    os_module = PyImport_ImportModule("os");
    sys_module = os_module ? PyImport_ImportModule("sys") : NULL;
    instances[0] = sys_module ? PyObject_GetAttrString(os_module, "environ") : NULL;
    instances[1] = instances[0] ? PyObject_GetAttrString(os_module, "environb") : NULL;
    for (int i = 0; instances[1] != NULL && i < 4; i++) {
        conversions[i / 2][i % 2] = PyCFunction_New(&conversion_defs[i / 2][i % 2], NULL);
        if (conversions[i / 2][i % 2] == NULL) {
            return -1;
        }
    }
    if (instances[1] == NULL) {
        return -1;
    }
    PyObject *data = PyObject_GetAttrString(instances[0], "_data");
    variables = data && PyDict_CheckExact(data) && PyType_Ready(&Variables_Type) == 0 ? variables_new(data) : NULL;
    Py_XDECREF(data);
    if (variables == NULL) {
        PyErr_SetString(PyExc_ImportError, "os.environ is not as the guard knows it: it does not fit this interpreter");
        return -1;
    }
    environ_type = (PyTypeObject *)Py_NewRef(Py_TYPE(instances[0]));
    PyObject *dict = type_dictionary(environ_type);
    int result =
        dict && keep_values(instances[0]) == 0 && keep_values(instances[1]) == 0 ? replace_attributes(dict) : -1;
    Py_XDECREF(dict);
    return result;
}
