/* worker_messages.c: a frame of a worker, as a text and raw bytes. A text that is accepted means the same to the json module,
 * and the message is read again from the text that the json module writes of it. */
#include "fuzz.h"

enum { SHARES = 1, HEAD = 3, ENOUGH = 256 };

static PyObject *loads, *dumps, *compact;

static void load_json(void)
{
    PyObject *json = PyImport_ImportModule("json");
    REQUIRE(json != NULL);
    loads = PyObject_GetAttrString(json, "loads");
    dumps = PyObject_GetAttrString(json, "dumps");
    compact = Py_BuildValue("{s:(ss)}", "separators", ",", ":");
    REQUIRE(loads != NULL && dumps != NULL && compact != NULL);
    Py_DECREF(json);
}

/* The bytes of a frame, as the list that the json module reads tells their places. */
typedef struct {
    PyObject *tag, *sizes; /* NULL without bytes */
    const uint8_t *raw;
    Py_ssize_t values;
} Frame;

static void require_bytes(const Frame *frame, PyObject *value, PyObject *known)
{
    PyObject *number = PyDict_GetItemWithError(known, frame->tag);
    REQUIRE(PyDict_GET_SIZE(known) == 1 && number != NULL && PyLong_CheckExact(number));
    Py_ssize_t index = PyLong_AsSsize_t(number), start = 0;
    REQUIRE(index >= 0 && index < PyList_GET_SIZE(frame->sizes));
    for (Py_ssize_t i = 0; i < index; i++) {
        start += PyLong_AsSsize_t(PyList_GET_ITEM(frame->sizes, i));
    }
    Py_ssize_t size = PyLong_AsSsize_t(PyList_GET_ITEM(frame->sizes, index));
    REQUIRE(PyBytes_GET_SIZE(value) == size);
    REQUIRE(size == 0 || memcmp(PyBytes_AS_STRING(value), frame->raw + start, (size_t)size) == 0);
}

static void require_same(Frame *frame, PyObject *value, PyObject *known);

static void require_same_dict(Frame *frame, PyObject *value, PyObject *known)
{
    PyObject *key, *item;
    Py_ssize_t place = 0;
    REQUIRE(PyDict_GET_SIZE(value) == PyDict_GET_SIZE(known));
    REQUIRE(frame->tag == NULL || PyDict_GET_SIZE(known) != 1 || PyDict_Contains(known, frame->tag) == 0);
    while (PyDict_Next(value, &place, &key, &item)) {
        PyObject *other = PyDict_GetItemWithError(known, key);
        REQUIRE(PyUnicode_CheckExact(key) && PyUnicode_AsUTF8(key) != NULL && other != NULL);
        require_same(frame, item, other);
    }
}

/* Both values have one type and one content. Counts the values. */
static void require_same(Frame *frame, PyObject *value, PyObject *known)
{
    frame->values++;
    if (frame->tag != NULL && PyBytes_CheckExact(value)) {
        REQUIRE(PyDict_CheckExact(known));
        frame->values++;
        require_bytes(frame, value, known);
        return;
    }
    REQUIRE(Py_TYPE(value) == Py_TYPE(known));
    if (PyDict_CheckExact(value)) {
        require_same_dict(frame, value, known);
    }
    else if (PyList_CheckExact(value)) {
        REQUIRE(PyList_GET_SIZE(value) == PyList_GET_SIZE(known));
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(value); i++) {
            require_same(frame, PyList_GET_ITEM(value, i), PyList_GET_ITEM(known, i));
        }
    }
    else if (PyFloat_CheckExact(value)) {
        double one = PyFloat_AS_DOUBLE(value), other = PyFloat_AS_DOUBLE(known);
        REQUIRE(memcmp(&one, &other, sizeof one) == 0); /* zero has a sign */
    }
    else {
        REQUIRE(PyObject_RichCompareBool(value, known, Py_EQ) == 1);
        REQUIRE(!PyUnicode_CheckExact(value) || PyUnicode_AsUTF8(value) != NULL);
    }
}

/* A message with its number of values, or NULL when it is refused, by one of the two errors that the caller expects. */
static PyObject *read_frame(const char *text, size_t size, const uint8_t *raw, size_t rest, int blobs, bool shares)
{
    PyObject *args = Py_BuildValue("(y#y#iO)", text, (Py_ssize_t)size, (const char *)raw, (Py_ssize_t)rest, blobs,
                                   shares ? Py_True : Py_False);
    REQUIRE(args != NULL);
    PyObject *read = core_read_frame(NULL, args);
    Py_DECREF(args);
    REQUIRE((read == NULL) == (PyErr_Occurred() != NULL));
    REQUIRE(read != NULL || PyErr_ExceptionMatches(PyExc_ValueError) || PyErr_ExceptionMatches(PyExc_MemoryError));
    PyErr_Clear();
    return read;
}

/* A message without bytes, written by the json module and read again. */
static void require_round_trip(PyObject *message, Py_ssize_t values)
{
    PyObject *args = PyTuple_Pack(1, message), *text = PyObject_Call(dumps, args, compact);
    REQUIRE(text != NULL);
    Py_ssize_t size;
    const char *ascii = PyUnicode_AsUTF8AndSize(text, &size);
    PyObject *again = read_frame(ascii, (size_t)size, (const uint8_t *)"", 0, 0, false);
    REQUIRE(again != NULL);
    Frame frame = {.values = 0};
    require_same(&frame, PyTuple_GET_ITEM(again, 0), message);
    REQUIRE(frame.values == values);
    Py_DECREF(again);
    Py_DECREF(text);
    Py_DECREF(args);
}

static void require_meaning(PyObject *read, const char *text, size_t size, const uint8_t *raw, int blobs)
{
    PyObject *ascii = PyUnicode_DecodeASCII(text, (Py_ssize_t)size, NULL);
    REQUIRE(ascii != NULL);
    PyObject *known = PyObject_CallOneArg(loads, ascii), *message = PyTuple_GET_ITEM(read, 0);
    REQUIRE(known != NULL);
    Frame frame = {.raw = raw};
    Py_ssize_t values = PyLong_AsSsize_t(PyTuple_GET_ITEM(read, 1));
    if (blobs == 0) {
        require_same(&frame, message, known);
        REQUIRE(frame.values == values);
        require_round_trip(message, values);
    }
    else {
        REQUIRE(PyList_CheckExact(known) && PyList_GET_SIZE(known) == 3);
        frame.tag = PyList_GET_ITEM(known, 0);
        frame.sizes = PyList_GET_ITEM(known, 1);
        REQUIRE(PyUnicode_CheckExact(frame.tag) && PyList_GET_SIZE(frame.sizes) == blobs);
        require_same(&frame, message, PyList_GET_ITEM(known, 2));
        REQUIRE(frame.values + blobs + 1 == values);
    }
    Py_DECREF(known);
    Py_DECREF(ascii);
}

/* Three bytes tell how to read the rest: on a thread of its own or not, how many bytes values, how many raw bytes. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (loads == NULL) {
        load_json();
    }
    if (size < HEAD) {
        return 0;
    }
    int blobs = (signed char)data[1];
    size_t rest = data[2] < size - HEAD ? data[2] : size - HEAD, length = size - HEAD - rest;
    const char *text = (const char *)data + HEAD;
    const uint8_t *raw = data + HEAD + length;
    PyObject *read = read_frame(text, length, raw, rest, blobs, data[0] & SHARES);
    if (read != NULL && length <= ENOUGH) {
        require_meaning(read, text, length, raw, blobs);
    }
    Py_XDECREF(read);
    return 0;
}
