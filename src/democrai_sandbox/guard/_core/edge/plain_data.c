/* Plain data: values that may cross a guard. They are copied into exact built-in types, so no code of the sender
 * runs at the receiver, and the sender cannot change the copy. */
#include "edge/edge.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { DEEPEST = 64, MOST_VALUES = 1000000, MOST_BITS = 1024, LONGEST_POINTER = 512 };

/* Where in the value the copy is, from the innermost outwards. */
typedef struct Step {
    const struct Step *outer;
    PyObject *key; /* of a dict, or NULL */
    Py_ssize_t index;
    int depth;
} Step;

typedef struct {
    Py_ssize_t values;
    bool lists; /* a tuple becomes a list, as it would in JSON */
} Copy;

static void write_pointer(const Step *step, char *out)
{
    if (step == NULL || step->outer == NULL) {
        return;
    }
    write_pointer(step->outer, out);
    size_t used = strlen(out);
    const char *key = step->key ? PyUnicode_AsUTF8(step->key) : NULL;
    if (key != NULL) {
        snprintf(out + used, LONGEST_POINTER - used, "/%.80s", key);
    }
    else {
        snprintf(out + used, LONGEST_POINTER - used, "/%zd", step->index);
    }
    PyErr_Clear();
}

static void *refuse_plain(const Step *step, const char *why, const char *detail)
{
    char pointer[LONGEST_POINTER] = "", text[256];
    PyErr_Clear();
    write_pointer(step, pointer);
    snprintf(text, sizeof text, "%s%.120s", why, detail);
    PyObject *error = invalid_target ? PyObject_CallFunction(invalid_target, "ss", text, pointer) : NULL;
    if (error != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
    else if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, text);
    }
    return NULL;
}

static PyObject *copy_value(PyObject *value, const Step *at, Copy *copy);

static PyObject *copy_sequence(PyObject *value, const Step *at, Copy *copy)
{
    bool is_list = PyList_CheckExact(value);
    PyObject *out = PyList_New(0);
    /* the size is read anew each time: another thread may be changing a list */
    for (Py_ssize_t i = 0; out != NULL && i < (is_list ? PyList_GET_SIZE(value) : PyTuple_GET_SIZE(value)); i++) {
        PyObject *item = Py_NewRef(is_list ? PyList_GET_ITEM(value, i) : PyTuple_GET_ITEM(value, i));
        Step step = {at, NULL, i, at->depth + 1};
        PyObject *made = copy_value(item, &step, copy);
        Py_DECREF(item);
        if (made == NULL || PyList_Append(out, made) < 0) {
            Py_CLEAR(out);
        }
        Py_XDECREF(made);
    }
    if (out != NULL && !is_list && !copy->lists) {
        Py_SETREF(out, PyList_AsTuple(out));
    }
    return out;
}

static PyObject *copy_dict(PyObject *value, const Step *at, Copy *copy)
{
    PyObject *items = PyDict_Items(value), *out = items ? PyDict_New() : NULL;
    for (Py_ssize_t i = 0; out != NULL && i < PyList_GET_SIZE(items); i++) {
        PyObject *pair = PyList_GET_ITEM(items, i), *key = PyTuple_GET_ITEM(pair, 0), *made = NULL;
        Step step = {at, PyUnicode_CheckExact(key) ? key : NULL, i, at->depth + 1};
        if (!PyUnicode_CheckExact(key) || PyUnicode_AsUTF8(key) == NULL) {
            refuse_plain(at, "expected texts as keys, got ", Py_TYPE(key)->tp_name);
        }
        else {
            made = copy_value(PyTuple_GET_ITEM(pair, 1), &step, copy);
        }
        if (made == NULL || PyDict_SetItem(out, key, made) < 0) {
            Py_CLEAR(out);
        }
        Py_XDECREF(made);
    }
    Py_XDECREF(items);
    return out;
}

static PyObject *copy_leaf(PyObject *value, const Step *at)
{
    if (value == Py_None || PyBool_Check(value) || PyBytes_CheckExact(value)) {
        return Py_NewRef(value);
    }
    if (PyUnicode_CheckExact(value)) {
        return PyUnicode_AsUTF8(value) ? Py_NewRef(value) : refuse_plain(at, "the text is not Unicode", "");
    }
    if (PyFloat_CheckExact(value)) {
        return isfinite(PyFloat_AS_DOUBLE(value)) ? Py_NewRef(value) : refuse_plain(at, "not a finite number", "");
    }
    if (PyLong_CheckExact(value)) {
        return _PyLong_NumBits(value) <= MOST_BITS ? Py_NewRef(value) : refuse_plain(at, "the number is too long", "");
    }
    return refuse_plain(at, "not plain data: ", Py_TYPE(value)->tp_name);
}

static PyObject *copy_value(PyObject *value, const Step *at, Copy *copy)
{
    if (++copy->values > MOST_VALUES) {
        return refuse_plain(NULL, "more than a million values", "");
    }
    if (at->depth > DEEPEST) {
        return refuse_plain(NULL, "nested more than 64 deep", "");
    }
    if (PyDict_CheckExact(value)) {
        return copy_dict(value, at, copy);
    }
    if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
        return copy_sequence(value, at, copy);
    }
    return copy_leaf(value, at);
}

PyObject *plain_copy(PyObject *value, bool lists)
{
    Copy copy = {0, lists};
    Step root = {NULL, NULL, 0, 0};
    return copy_value(value, &root, &copy);
}

/* plain(value, lists) */
PyObject *core_plain(PyObject *module, PyObject *args)
{
    PyObject *value;
    int lists;
    return PyArg_ParseTuple(args, "Op", &value, &lists) ? plain_copy(value, lists) : NULL;
}
