/* contextvars.Context as a mapping, without the variables of the guard. They carry the guard into tasks and threads;
 * code that inspects a context sees only its own variables. */
#include "interpreter/interpreter.h"

static lenfunc length_original = NULL;
static getiterfunc iter_original = NULL;
static richcmpfunc compare_original = NULL;

static int hidden_in(PyObject *context)
{
    PyObject *const variables[] = {state_variable, served_variable, ticket_variable};
    int count = 0;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        int has = PySequence_Contains(context, variables[i]);
        if (has < 0) {
            return -1;
        }
        count += has;
    }
    return count;
}

static bool is_hidden(PyObject *variable)
{
    return variable == state_variable || variable == served_variable || variable == ticket_variable;
}

/* A list of the items of the original iterator, without the hidden variables. */
static PyObject *visible(PyObject *keys, PyObject *parts)
{
    PyObject *list = keys && parts ? PyList_New(0) : NULL, *key, *part;
    while (list != NULL && (key = PyIter_Next(keys)) != NULL) {
        part = PyIter_Next(parts);
        if (part == NULL || (!is_hidden(key) && PyList_Append(list, part) < 0)) {
            Py_CLEAR(list);
        }
        Py_XDECREF(part);
        Py_DECREF(key);
    }
    if (list != NULL && PyErr_Occurred()) {
        Py_CLEAR(list);
    }
    return list;
}

static PyObject *visible_iterator(PyObject *context, PyObject *parts)
{
    PyObject *keys = parts ? iter_original(context) : NULL, *list = visible(keys, parts);
    PyObject *result = list ? PyObject_GetIter(list) : NULL;
    Py_XDECREF(list);
    Py_XDECREF(keys);
    return result;
}

static Py_ssize_t context_length(PyObject *self)
{
    int hidden = hidden_in(self);
    Py_ssize_t length = hidden < 0 ? -1 : length_original(self);
    return length < 0 ? -1 : length - hidden;
}

static PyObject *context_iter(PyObject *self)
{
    int hidden = hidden_in(self);
    PyObject *parts = hidden < 0 ? NULL : iter_original(self);
    PyObject *result = hidden == 0 ? Py_XNewRef(parts) : visible_iterator(self, parts);
    Py_XDECREF(parts);
    return result;
}

/* Context.keys(), values(), items() */
PyObject *on_context_view(State *unused, Call *call)
{
    int hidden = PyContext_CheckExact(call->self) ? hidden_in(call->self) : 0;
    PyObject *parts = hidden < 0 ? NULL : call_original(call);
    PyObject *result = hidden == 0 ? Py_XNewRef(parts) : visible_iterator(call->self, parts);
    Py_XDECREF(parts);
    return result;
}

static PyObject *as_dictionary(PyObject *context)
{
    PyObject *result = PyDict_New(), *keys = result ? iter_original(context) : NULL, *key;
    while (keys != NULL && result != NULL && (key = PyIter_Next(keys)) != NULL) {
        PyObject *value = is_hidden(key) ? NULL : PyObject_GetItem(context, key);
        if (!is_hidden(key) && (value == NULL || PyDict_SetItem(result, key, value) < 0)) {
            Py_CLEAR(result);
        }
        Py_XDECREF(value);
        Py_DECREF(key);
    }
    Py_XDECREF(keys);
    if (PyErr_Occurred()) {
        Py_CLEAR(result);
    }
    return result;
}

static PyObject *context_compare(PyObject *self, PyObject *other, int op)
{
    if (!PyContext_CheckExact(self) || !PyContext_CheckExact(other) || (op != Py_EQ && op != Py_NE)) {
        return compare_original(self, other, op);
    }
    int here = hidden_in(self), there = here < 0 ? -1 : hidden_in(other);
    if (there < 0) {
        return NULL;
    }
    if (here == 0 && there == 0) {
        return compare_original(self, other, op);
    }
    PyObject *one = as_dictionary(self), *two = one ? as_dictionary(other) : NULL;
    PyObject *result = two ? PyObject_RichCompare(one, two, op) : NULL;
    Py_XDECREF(one);
    Py_XDECREF(two);
    return result;
}

int context_views_ready(void)
{
    static const char *const comparisons[] = {"__eq__", "__ne__"};
    PyTypeObject *type = &PyContext_Type;
    length_original = type->tp_as_mapping->mp_length;
    iter_original = type->tp_iter;
    compare_original = type->tp_richcompare;
    if (patch_slot(type, "__len__", (void **)&type->tp_as_mapping->mp_length, (void *)context_length) < 0 ||
        patch_slot(type, "__iter__", (void **)&type->tp_iter, (void *)context_iter) < 0) {
        return -1;
    }
    for (size_t i = 0; i < sizeof comparisons / sizeof *comparisons; i++) {
        if (patch_slot(type, comparisons[i], (void **)&type->tp_richcompare, (void *)context_compare) < 0) {
            return -1;
        }
    }
    return 0;
}
