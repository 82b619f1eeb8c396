/* Memory behind ctypes objects that a package has made and returns to other code.
 *
 * A pointer reads and writes at an address that the holder of the object can set. So does a value, field or item
 * that is a pointer to text or to an object. Code without access to ctypes cannot use them; it can use plain
 * numbers. */
#include "interpreter/interpreter.h"

#include <string.h>

/* The functions by which a type gives its items. */
typedef struct {
    ssizeargfunc item;
    binaryfunc subscript;
    ssizeobjargproc set_item;
} Items;

static Items pointer_original;

static int pointer_check(void)
{
    State *state = state_guarding();
    return state == NULL ? 0 : foreign_check(state, "ctypes", NULL);
}

static PyObject *pointer_item(PyObject *self, Py_ssize_t index)
{
    return pointer_check() < 0 ? NULL : pointer_original.item(self, index);
}

static PyObject *pointer_subscript(PyObject *self, PyObject *index)
{
    return pointer_check() < 0 ? NULL : pointer_original.subscript(self, index);
}

static int pointer_set_item(PyObject *self, Py_ssize_t index, PyObject *value)
{
    return pointer_check() < 0 ? -1 : pointer_original.set_item(self, index, value);
}

/* Whether a value of a type is what lies at an address: a text behind a pointer, or an object. */
static bool reads_memory(PyObject *type)
{
    PyObject *name = PyUnicode_InternFromString("_type_");
    PyObject *code = name && type && PyType_Check(type) ? _PyType_Lookup((PyTypeObject *)type, name) : NULL;
    bool reads = code != NULL && PyUnicode_Check(code) && PyUnicode_GET_LENGTH(code) == 1 &&
                 PyUnicode_READ_CHAR(code, 0) < 128 && strchr("zZO", (int)PyUnicode_READ_CHAR(code, 0)) != NULL;
    Py_XDECREF(name);
    PyErr_Clear();
    return reads;
}

static int memory_check(PyObject *type)
{
    State *state = state_guarding();
    return state == NULL || !reads_memory(type) ? 0 : foreign_check(state, "ctypes", NULL);
}

typedef struct {
    const char *type, *name;
    getter get;
    setter set;
    getter own_get;
    setter own_set;
} Member;

static PyObject *get_contents(PyObject *self, void *closure);
static int set_contents(PyObject *self, PyObject *value, void *closure);
static PyObject *get_value(PyObject *self, void *closure);
static int set_value(PyObject *self, PyObject *value, void *closure);

static Member members[] = {{"_Pointer", "contents", NULL, NULL, get_contents, set_contents},
                           {"_SimpleCData", "value", NULL, NULL, get_value, set_value}};

static PyObject *get_contents(PyObject *self, void *closure)
{
    return pointer_check() < 0 ? NULL : members[0].get(self, closure);
}

static int set_contents(PyObject *self, PyObject *value, void *closure)
{
    return pointer_check() < 0 ? -1 : members[0].set(self, value, closure);
}

static PyObject *get_value(PyObject *self, void *closure)
{
    return memory_check((PyObject *)Py_TYPE(self)) < 0 ? NULL : members[1].get(self, closure);
}

static int set_value(PyObject *self, PyObject *value, void *closure)
{
    return pointer_check() < 0 ? -1 : members[1].set(self, value, closure);
}

/* Pointers and values of pointers read and write at any address. */
static int patch_member(PyObject *module, Member *member)
{
    PyObject *type = PyObject_GetAttrString(module, member->type);
    PyObject *found = type ? PyObject_GetAttrString(type, member->name) : NULL;
    if (found == NULL || !Py_IS_TYPE(found, &PyGetSetDescr_Type)) {
        PyErr_Format(PyExc_ImportError, "ctypes.%s.%s is not as CPython has it", member->type, member->name);
    }
    else {
        PyGetSetDef *entry = ((PyGetSetDescrObject *)found)->d_getset;
        if (entry->get != member->own_get) {
            member->get = entry->get;
            member->set = entry->set;
            entry->get = member->own_get;
            entry->set = member->own_set;
        }
    }
    Py_XDECREF(type);
    Py_XDECREF(found);
    return PyErr_Occurred() ? -1 : 1;
}

/* A class takes copies of these functions when it is made, so all that derive from it are looked at. */
static int patch_items(PyTypeObject *type, const Items *original, const Items *own)
{
    PySequenceMethods *sequence = type->tp_as_sequence;
    if (sequence != NULL && sequence->sq_item == original->item) {
        sequence->sq_item = own->item;
    }
    if (sequence != NULL && sequence->sq_ass_item == original->set_item && own->set_item != NULL) {
        sequence->sq_ass_item = own->set_item;
    }
    if (type->tp_as_mapping != NULL && type->tp_as_mapping->mp_subscript == original->subscript) {
        type->tp_as_mapping->mp_subscript = own->subscript;
    }
    PyObject *derived = PyObject_CallMethod((PyObject *)&PyType_Type, "__subclasses__", "O", type);
    int result = derived ? 0 : -1;
    for (Py_ssize_t i = 0; result == 0 && i < PyList_GET_SIZE(derived); i++) {
        result = patch_items((PyTypeObject *)PyList_GET_ITEM(derived, i), original, own);
    }
    Py_XDECREF(derived);
    return result;
}

static int patch_descriptor(PyTypeObject *type, const char *name, void *replacement)
{
    PyObject *found = PyObject_GetAttrString((PyObject *)type, name);
    if (found == NULL || !Py_IS_TYPE(found, &PyWrapperDescr_Type)) {
        Py_XDECREF(found);
        return -1;
    }
    ((PyWrapperDescrObject *)found)->d_wrapped = replacement;
    Py_DECREF(found);
    return 0;
}

/* Replaces the item functions of a type of the module. 1 on success. */
static int patch_item_type(PyObject *module, const char *name, Items *original, const Items *own)
{
    PyTypeObject *type = (PyTypeObject *)PyObject_GetAttrString(module, name);
    if (type == NULL || type->tp_as_sequence == NULL || type->tp_as_mapping == NULL) {
        Py_XDECREF(type);
        return -1;
    }
    if (type->tp_as_sequence->sq_item != own->item) {
        *original = (Items){type->tp_as_sequence->sq_item, type->tp_as_mapping->mp_subscript,
                            type->tp_as_sequence->sq_ass_item};
    }
    int result = patch_items(type, original, own);
    if (result == 0 && (patch_descriptor(type, "__getitem__", (void *)own->subscript) < 0 ||
                        (own->set_item && patch_descriptor(type, "__setitem__", (void *)own->set_item) < 0))) {
        result = -1;
    }
    PyType_Modified(type);
    Py_DECREF(type);
    return result;
}

/* ---- fields and items that lead elsewhere ------------------------------------------------------------- */

static PyObject *element_type(PyObject *array)
{
    PyObject *name = PyUnicode_InternFromString("_type_");
    PyObject *type = name ? _PyType_Lookup(Py_TYPE(array), name) : NULL;
    Py_XDECREF(name);
    PyErr_Clear();
    return type;
}

static Items array_original;

static PyObject *array_item(PyObject *self, Py_ssize_t index)
{
    return memory_check(element_type(self)) < 0 ? NULL : array_original.item(self, index);
}

static PyObject *array_subscript(PyObject *self, PyObject *index)
{
    return memory_check(element_type(self)) < 0 ? NULL : array_original.subscript(self, index);
}

/* How CPython 3.11 to 3.13 begin the descriptor of a field. */
typedef struct {
    PyObject_HEAD Py_ssize_t offset, size, index;
    PyObject *type;
} Field;
static descrgetfunc field_original = NULL;

static PyObject *field_get(PyObject *self, PyObject *object, PyObject *type)
{
    return object != NULL && memory_check(((Field *)self)->type) < 0 ? NULL : field_original(self, object, type);
}

/* The type of fields has no name in some interpreters: a structure with one field shows it. */
static int fields_patch(PyObject *module)
{
    PyObject *structure = PyObject_GetAttrString(module, "Structure");
    PyObject *simple = PyObject_GetAttrString(module, "_SimpleCData"), *number = NULL, *sample = NULL, *field = NULL;
    if (structure != NULL && simple != NULL) {
        number = PyObject_CallFunction((PyObject *)Py_TYPE(simple), "s(O){ss}", "number", simple, "_type_", "i");
    }
    if (number != NULL) {
        sample = PyObject_CallFunction((PyObject *)Py_TYPE(structure), "s(O){s[(sO)]}", "sample", structure, "_fields_",
                                       "field", number);
    }
    field = sample ? PyObject_GetAttrString(sample, "field") : NULL;
    int result = field ? 0 : -1;
    if (field != NULL && (((Field *)field)->type != number || Py_TYPE(field)->tp_descr_get == NULL)) {
        PyErr_SetString(PyExc_ImportError, "fields of ctypes are not as CPython has them");
        result = -1;
    }
    if (result == 0 && Py_TYPE(field)->tp_descr_get != field_get) {
        field_original = Py_TYPE(field)->tp_descr_get;
        result = patch_slot(Py_TYPE(field), "__get__", (void **)&Py_TYPE(field)->tp_descr_get, (void *)field_get);
    }
    Py_XDECREF(field);
    Py_XDECREF(sample);
    Py_XDECREF(number);
    Py_XDECREF(simple);
    Py_XDECREF(structure);
    return result;
}

int pointers_patch(PyObject *module)
{
    static const Items pointers = {pointer_item, pointer_subscript, pointer_set_item};
    static const Items arrays = {array_item, array_subscript, NULL};
    int result = patch_item_type(module, "_Pointer", &pointer_original, &pointers);
    result = result < 0 ? -1 : patch_item_type(module, "Array", &array_original, &arrays);
    result = result < 0 ? -1 : fields_patch(module);
    for (size_t i = 0; i < sizeof members / sizeof *members && result == 0; i++) {
        result = patch_member(module, &members[i]) < 0 ? -1 : 0;
    }
    return result < 0 ? -1 : 1;
}
