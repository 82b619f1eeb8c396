/* Writes small messages of a worker: plain data becomes a frame in one step, or a text and its bytes values.
 *
 * No Python code runs while it is written, so the message cannot change. Anything unusual is left to the writer in
 * Python, which also reports the errors. */
#include "edge/edge.h"

#include <arpa/inet.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    LARGEST_FRAME = 8192,
    DEEPEST = 64,
    LONGEST_ESCAPE = 16,
    LONGEST_NUMBER = 32,
    HEADER = 3,
    MOST_BLOBS = 16,
    LONGEST_START = 512, /* of a text with that many bytes values */
};

/* The key that stands for bytes values, as JSON. A message that has such a key itself is left to the other writer,
 * which looks for a key that does not occur. */
#define TAG "\"\\u0000b\""

typedef struct {
    size_t used;
    char text[LARGEST_FRAME];
    Py_ssize_t blob_count;
    PyObject *blobs[MOST_BLOBS]; /* owned */
} Output;

static bool put(Output *out, const char *text, size_t length)
{
    if (length > sizeof out->text - out->used) {
        return false;
    }
    memcpy(out->text + out->used, text, length);
    out->used += length;
    return true;
}

static bool put_byte(Output *out, char byte)
{
    return put(out, &byte, 1);
}

/* Like json with ensure_ascii. A surrogate without its other half is not Unicode. */
static bool put_point(Output *out, Py_UCS4 point)
{
    static const char named[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
    char escape[LONGEST_ESCAPE];
    const char *found = point < 0x80 && point != 0 ? strchr(named, (int)point) : NULL;
    if (found != NULL) {
        snprintf(escape, sizeof escape, "\\%c", names[found - named]);
    }
    else if (point >= ' ' && point <= '~') {
        return put_byte(out, (char)point);
    }
    else if (point > 0xFFFF) {
        unsigned rest = point - 0x10000;
        snprintf(escape, sizeof escape, "\\u%04x\\u%04x", 0xD800U | (rest >> 10 & 0x3FFU),
                 0xDC00U | (rest & 0x3FFU));
    }
    else {
        snprintf(escape, sizeof escape, "\\u%04x", (unsigned)point);
    }
    return !(point >= 0xD800 && point <= 0xDFFF) && put(out, escape, strlen(escape));
}

static bool put_string(Output *out, PyObject *text)
{
    if (!PyUnicode_CheckExact(text) || PyUnicode_READY(text) < 0 || PyUnicode_GET_LENGTH(text) >= LARGEST_FRAME ||
        !put_byte(out, '"')) {
        return false;
    }
    for (Py_ssize_t i = 0; i < PyUnicode_GET_LENGTH(text); i++) {
        if (!put_point(out, PyUnicode_READ_CHAR(text, i))) {
            return false;
        }
    }
    return put_byte(out, '"');
}

static bool put_whole(Output *out, PyObject *value)
{
    char digits[LONGEST_NUMBER];
    size_t at = sizeof digits;
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    unsigned long long rest = number < 0 ? 0 - (unsigned long long)number : (unsigned long long)number;
    do {
        digits[--at] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    if (number < 0) {
        digits[--at] = '-';
    }
    return !overflow && put(out, digits + at, sizeof digits - at);
}

/* An object with one key, the index of the value. */
static bool put_bytes(Output *out, PyObject *value)
{
    char text[LONGEST_NUMBER];
    if (out->blob_count == MOST_BLOBS) {
        return false;
    }
    snprintf(text, sizeof text, "{" TAG ":%zd}", out->blob_count);
    out->blobs[out->blob_count++] = Py_NewRef(value);
    return put(out, text, strlen(text));
}

static bool put_float(Output *out, double number)
{
    char *digits = isfinite(number) ? PyOS_double_to_string(number, 'r', 0, Py_DTSF_ADD_DOT_0, NULL) : NULL;
    bool done = digits != NULL && put(out, digits, strlen(digits));
    PyMem_Free(digits);
    return done;
}

static bool put_value(Output *out, PyObject *value, int depth);

static bool put_dict(Output *out, PyObject *value, int depth)
{
    PyObject *key, *item;
    Py_ssize_t position = 0;
    bool first = true;
    while (PyDict_Next(value, &position, &key, &item)) {
        if (!put_byte(out, first ? '{' : ',') || !put_string(out, key) || !put_byte(out, ':') ||
            !put_value(out, item, depth + 1)) {
            return false;
        }
        first = false;
    }
    return (!first || put_byte(out, '{')) && put_byte(out, '}');
}

static bool put_sequence(Output *out, PyObject *value, int depth)
{
    Py_ssize_t size = PySequence_Fast_GET_SIZE(value);
    PyObject *const *items = PySequence_Fast_ITEMS(value);
    if (!put_byte(out, '[')) {
        return false;
    }
    for (Py_ssize_t i = 0; i < size; i++) {
        if ((i > 0 && !put_byte(out, ',')) || !put_value(out, items[i], depth + 1)) {
            return false;
        }
    }
    return put_byte(out, ']');
}

static bool put_value(Output *out, PyObject *value, int depth)
{
    if (depth > DEEPEST) {
        return false;
    }
    if (value == Py_None) {
        return put(out, "null", 4);
    }
    if (PyBool_Check(value)) {
        return value == Py_True ? put(out, "true", 4) : put(out, "false", 5);
    }
    if (PyUnicode_CheckExact(value)) {
        return put_string(out, value);
    }
    if (PyLong_CheckExact(value)) {
        return put_whole(out, value);
    }
    if (PyFloat_CheckExact(value)) {
        return put_float(out, PyFloat_AS_DOUBLE(value));
    }
    if (PyBytes_CheckExact(value)) {
        return put_bytes(out, value);
    }
    if (PyDict_CheckExact(value)) {
        return put_dict(out, value, depth);
    }
    return (PyList_CheckExact(value) || PyTuple_CheckExact(value)) && put_sequence(out, value, depth);
}

static PyObject *whole_frame(Output *out)
{
    const uint32_t header[HEADER] = {htonl((uint32_t)(out->used - sizeof header))};
    memcpy(out->text, header, sizeof header);
    return PyBytes_FromStringAndSize(out->text, (Py_ssize_t)out->used);
}

/* Whether the key that stands for bytes occurs once for each value. A text cannot contain its quotes. */
static bool tag_is_unique(const Output *out)
{
    static const char member[] = TAG ":";
    const char *at = out->text + HEADER * sizeof(uint32_t), *end = out->text + out->used;
    Py_ssize_t found = 0;
    while ((at = memmem(at, (size_t)(end - at), member, sizeof member - 1)) != NULL) {
        at += sizeof member - 1;
        found++;
    }
    return found == out->blob_count;
}

/* A list of the key that stands for bytes, the sizes of the values, and the message. */
static PyObject *text_with_blobs(const Output *out, size_t *total)
{
    char start[LONGEST_START] = "[" TAG ",[";
    size_t used = strlen(start), body = out->used - HEADER * sizeof(uint32_t);
    for (Py_ssize_t i = 0; i < out->blob_count; i++) {
        Py_ssize_t size = PyBytes_GET_SIZE(out->blobs[i]);
        used += (size_t)snprintf(start + used, sizeof start - used, i ? ",%zd" : "%zd", size);
        *total += (size_t)size;
    }
    used += (size_t)snprintf(start + used, sizeof start - used, "],");
    PyObject *text = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(used + body + 1));
    if (text != NULL) {
        char *to = PyBytes_AS_STRING(text);
        memcpy(to, start, used);
        memcpy(to + used, out->text + HEADER * sizeof(uint32_t), body);
        to[used + body] = ']';
    }
    return text;
}

static PyObject *text_and_blobs(const Output *out)
{
    size_t total = 0;
    PyObject *text = text_with_blobs(out, &total), *blobs = text ? PyList_New(out->blob_count) : NULL;
    for (Py_ssize_t i = 0; blobs != NULL && i < out->blob_count; i++) {
        PyList_SET_ITEM(blobs, i, Py_NewRef(out->blobs[i]));
    }
    if (blobs == NULL) {
        Py_XDECREF(text);
        return NULL;
    }
    return Py_BuildValue("NNn", text, blobs, (Py_ssize_t)total);
}

/* small_frame(message): the frame; with bytes values its text, the values and their size; None if the message is not
 * small or not plain */
PyObject *core_small_frame(PyObject *module, PyObject *message)
{
    Output out;
    PyObject *frame = NULL;
    out.used = HEADER * sizeof(uint32_t);
    out.blob_count = 0;
    bool is_written = put_value(&out, message, 0);
    if (is_written && out.blob_count == 0) {
        frame = whole_frame(&out);
    }
    else if (is_written && tag_is_unique(&out)) {
        frame = text_and_blobs(&out);
    }
    else {
        PyErr_Clear();
        frame = Py_NewRef(Py_None);
    }
    for (Py_ssize_t i = 0; i < out.blob_count; i++) {
        Py_DECREF(out.blobs[i]);
    }
    return frame;
}
