/* plain_data.c: values of Python, built from the input; the copy must be equal and share nothing that can change. */
#include "fuzz.h"

/* The type of the core's errors takes a text and where in the value it is. */
static PyObject *value_of(Bytes *bytes, int depth);

static PyObject *sequence_of(Bytes *bytes, int depth, bool tuple)
{
    PyObject *list = PyList_New(0);
    for (unsigned i = next_byte(bytes) % 8; i > 0 && bytes_left(bytes) > 0; i--) {
        PyObject *item = value_of(bytes, depth + 1);
        PyList_Append(list, item);
        Py_DECREF(item);
    }
    if (tuple) {
        Py_SETREF(list, PyList_AsTuple(list));
    }
    return list;
}

static PyObject *text_of(Bytes *bytes)
{
    unsigned kind = next_byte(bytes);
    return kind == 255 ? PyUnicode_FromOrdinal(0xd800 + (int)next_byte(bytes)) : PyUnicode_FromFormat("%u", kind);
}

static PyObject *dict_of(Bytes *bytes, int depth)
{
    PyObject *dict = PyDict_New();
    for (unsigned i = next_byte(bytes) % 8; i > 0 && bytes_left(bytes) > 0; i--) {
        PyObject *key = next_byte(bytes) == 0 ? PyLong_FromLong(1) : text_of(bytes), *item = value_of(bytes, depth + 1);
        PyDict_SetItem(dict, key, item);
        Py_DECREF(key);
        Py_DECREF(item);
    }
    return dict;
}

/* Nested more deeply than is allowed, and with itself in it. */
static PyObject *deep(unsigned levels, bool endless)
{
    PyObject *value = PyList_New(0), *first = value;
    for (unsigned i = 0; i < levels; i++) {
        PyObject *outer = PyList_New(0);
        PyList_Append(outer, value);
        Py_DECREF(value);
        value = outer;
    }
    if (endless) {
        PyList_Append(first, first);
    }
    return value;
}

static PyObject *leaf_of(Bytes *bytes, unsigned kind)
{
    switch (kind) {
    case 3:
        return text_of(bytes);
    case 4:
        return PyBytes_FromStringAndSize((const char *)bytes->at, bytes_left(bytes) > 4 ? 4 : 0);
    case 5:
        return PyFloat_FromDouble(next_byte(bytes) == 0 ? Py_HUGE_VAL : 1.5);
    case 6: {
        PyObject *one = PyLong_FromLong(1), *shift = PyLong_FromLong((long)next_byte(bytes) * 8);
        PyObject *number = PyNumber_Lshift(one, shift);
        Py_DECREF(one);
        Py_DECREF(shift);
        return number;
    }
    case 7:
        return deep(next_byte(bytes) % 80, false);
    case 8:
        return PySet_New(NULL);
    default:
        return Py_NewRef(kind % 2 ? Py_None : Py_True);
    }
}

static PyObject *value_of(Bytes *bytes, int depth)
{
    unsigned kind = next_byte(bytes) % 12;
    if (kind < 2 && depth < 100) {
        return sequence_of(bytes, depth, kind == 1);
    }
    return kind == 2 && depth < 100 ? dict_of(bytes, depth) : leaf_of(bytes, kind);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Bytes bytes = {data, data + size};
    bool lists = next_byte(&bytes) & 1;
    PyObject *value = value_of(&bytes, 0), *copy = plain_copy(value, lists);
    REQUIRE(value != NULL && (copy != NULL || PyErr_Occurred()));
    if (copy == NULL) {
        PyErr_Clear();
    }
    else {
        REQUIRE(lists || PyObject_RichCompareBool(copy, value, Py_EQ) == 1);
        REQUIRE(copy != value || !(PyList_Check(copy) || PyDict_Check(copy)));
    }
    Py_XDECREF(copy);
    Py_DECREF(value);
    return 0;
}
