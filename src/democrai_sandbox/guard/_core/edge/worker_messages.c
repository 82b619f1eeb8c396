/* Parses messages of a worker: one JSON text and raw bytes become plain data.
 *
 * The text comes from a process that a subject may control. It is read once, in linear time, with all limits checked
 * on the way, and the first error ends it. Only the output of our own writer is accepted: ASCII, without white
 * space, duplicate keys, unpaired surrogates, or numbers that plain data cannot have.
 *
 * A large text is parsed on a separate thread that releases the GIL every few hundred microseconds; the parser of
 * the json module would hold it to the end. The new lists and dicts are not tracked by the garbage collector,
 * because they contain no cycles and a collection would stop all threads for long. All accesses stay within bounds
 * even if the text changes meanwhile. */
#include "edge/edge.h"

#include <math.h>
#include <string.h>
#include <time.h>

enum {
    DEEPEST = 72, /* this and the next are a little more than plain data may have: a message wraps lists around it */
    MOST_VALUES = 1100000,
    MOST_BITS = 1024,
    LONGEST_NUMBER = 320,
    SHORT_NUMBER = 18,
    SLICE = 8192,        /* units of work between two pauses */
    BYTES_PER_UNIT = 16, /* of a text */
    DIGITS_PER_UNIT = 8, /* of a number */
    LARGE_TEXT = 16384,  /* bytes from which on copying lets other threads run */
    PAUSE_NANOSECONDS = 50000,
};

typedef struct {
    const unsigned char *at, *end;
    Py_ssize_t values, work;
    int depth;
    bool shares;     /* whether other threads may run during the parse */
    PyObject *keys;  /* all keys, each once */
    PyObject *tag;   /* the key of an object that stands for bytes, or NULL */
    PyObject *blobs; /* the bytes, in a tuple, or NULL */
    Arrival arrival; /* of the bytes */
} Text;

static PyObject *wrong(const char *why)
{
    if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, why);
    }
    return NULL;
}

/* Lets other threads run, once enough was done. */
static void did(Text *reader, Py_ssize_t units)
{
    reader->work += units;
    if (reader->work < SLICE) {
        return;
    }
    reader->work = 0;
    if (reader->shares) {
        const struct timespec pause = {0, PAUSE_NANOSECONDS}; /* a release without a pause wakes no other thread */
        Py_BEGIN_ALLOW_THREADS
        nanosleep(&pause, NULL);
        Py_END_ALLOW_THREADS
    }
}

static bool next_is(Text *reader, unsigned char byte)
{
    if (reader->at < reader->end && *reader->at == byte) {
        reader->at++;
        return true;
    }
    return false;
}

/* --- texts ---------------------------------------------------------------------------------------------------------
 */

typedef struct {
    const unsigned char *start, *close; /* the first byte, and the quote after the last one; NULL without one */
    Py_ssize_t points;
    Py_UCS4 widest;
} Span;

/* The number of a \uXXXX whose u is at the given place; -1 for anything else. */
static long read_hex(const unsigned char *at, const unsigned char *end)
{
    long number = 0;
    if (end - at < 5 || *at != 'u') {
        return -1;
    }
    for (int i = 1; i <= 4; i++) {
        int value = hex_digit((char)at[i]);
        if (value < 0) {
            return -1;
        }
        number = number << 4 | value;
    }
    return number;
}

/* The character of an escape, whose backslash is at the given place, which moves behind it; -1 for no such escape. */
static long read_escape(const unsigned char **place, const unsigned char *end)
{
    static const char names[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
    const unsigned char *at = *place + 1;
    const char *found = at < end && *at ? strchr(names, *at) : NULL;
    if (found != NULL) {
        *place = at + 1;
        return meant[found - names];
    }
    long first = read_hex(at, end);
    *place = at + 5;
    if (first < 0xD800 || first > 0xDFFF) {
        return first;
    }
    at += 5;
    long second = first <= 0xDBFF && at < end && *at == '\\' ? read_hex(at + 1, end) : -1;
    *place = at + 6;
    return second >= 0xDC00 && second <= 0xDFFF ? 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00) : -1;
}

/* Finds the end of a text and its character width, up to a position. Uses no Python object. */
static const unsigned char *scan_text(Span *span, const unsigned char *at, const unsigned char *until,
                                      const unsigned char *end, const char **problem)
{
    while (at < until) {
        unsigned char byte = *at;
        if (byte == '"') {
            span->close = at;
            return at;
        }
        if (byte < 0x20 || byte >= 0x80) {
            *problem = byte < 0x20 ? "a control character in a text" : "a byte that is not ASCII";
            return at;
        }
        Py_UCS4 point = byte;
        if (byte != '\\') {
            at++;
        }
        else {
            long escaped = read_escape(&at, end);
            if (escaped < 0) {
                *problem = "an unknown escape";
                return at;
            }
            point = (Py_UCS4)escaped;
        }
        span->widest = point > span->widest ? point : span->widest;
        span->points++;
    }
    return at;
}

/* Writes the characters between two positions. Only uses the memory of a text that is not shared yet. */
static void write_text(const Span *span, int kind, void *data)
{
    const unsigned char *at = span->start;
    for (Py_ssize_t i = 0; i < span->points && at < span->close; i++) {
        long point = *at;
        if (point == '\\') {
            point = read_escape(&at, span->close);
        }
        else {
            at++;
        }
        PyUnicode_WRITE(kind, data, i, (Py_UCS4)(point < 0 ? '?' : point));
    }
}

static PyObject *make_text(const Span *span, bool shares)
{
    Py_ssize_t size = span->close - span->start;
    if (size == span->points && size < LARGE_TEXT) {
        return PyUnicode_DecodeASCII((const char *)span->start, size, NULL);
    }
    PyObject *text = PyUnicode_New(span->points, span->widest);
    if (text == NULL || span->points == 0) {
        return text;
    }
    int kind = PyUnicode_KIND(text);
    void *data = PyUnicode_DATA(text);
    PyThreadState *thread = shares && size >= LARGE_TEXT ? PyEval_SaveThread() : NULL;
    write_text(span, kind, data);
    if (thread != NULL) {
        PyEval_RestoreThread(thread);
    }
    return text;
}

/* A text, whose opening quote has been read. */
static PyObject *read_text(Text *reader)
{
    Span span = {.start = reader->at};
    const char *problem = NULL;
    const unsigned char *at = reader->at;
    const unsigned char *soon = reader->end - at > LARGE_TEXT ? at + LARGE_TEXT : reader->end;
    at = scan_text(&span, at, soon, reader->end, &problem);
    if (span.close == NULL && problem == NULL) {
        PyThreadState *thread = reader->shares ? PyEval_SaveThread() : NULL;
        at = scan_text(&span, at, reader->end, reader->end, &problem);
        if (thread != NULL) {
            PyEval_RestoreThread(thread);
        }
    }
    if (span.close == NULL) {
        return wrong(problem ? problem : "a text without an end");
    }
    PyObject *text = make_text(&span, reader->shares);
    reader->at = span.close + 1;
    did(reader, (span.close - span.start) / BYTES_PER_UNIT);
    return text;
}

/* --- numbers -------------------------------------------------------------------------------------------------------
 */

static const unsigned char *skip_digits(const unsigned char *at, const unsigned char *end)
{
    while (at < end && *at >= '0' && *at <= '9') {
        at++;
    }
    return at;
}

/* The end of a number, or NULL for an invalid one; sets whether it is an integer. */
static const unsigned char *number_end(const unsigned char *at, const unsigned char *end, bool *whole)
{
    at += at < end && *at == '-';
    const unsigned char *digits = at;
    at = skip_digits(at, end);
    if (at == digits || (*digits == '0' && at - digits > 1)) {
        return NULL;
    }
    *whole = true;
    if (at < end && *at == '.') {
        *whole = false;
        digits = ++at;
        at = skip_digits(at, end);
        if (at == digits) {
            return NULL;
        }
    }
    if (at < end && (*at == 'e' || *at == 'E')) {
        *whole = false;
        at++;
        at += at < end && (*at == '+' || *at == '-');
        digits = at;
        at = skip_digits(at, end);
        if (at == digits) {
            return NULL;
        }
    }
    return at;
}

static PyObject *read_whole(const char *text, Py_ssize_t size)
{
    if (size <= SHORT_NUMBER) {
        long long number = 0;
        for (const char *at = text + (*text == '-'); *at; at++) {
            number = number * 10 + (*at - '0');
        }
        return PyLong_FromLongLong(*text == '-' ? -number : number);
    }
    PyObject *number = PyLong_FromString(text, NULL, 10);
    if (number != NULL && _PyLong_NumBits(number) > MOST_BITS) {
        Py_DECREF(number);
        return wrong("a number is too long");
    }
    return number;
}

static PyObject *read_number(Text *reader)
{
    char text[LONGEST_NUMBER + 1];
    bool whole = false;
    /* no further than a number can be: many bytes that might become one are not looked at for each again */
    const unsigned char *limit =
        reader->end - reader->at > LONGEST_NUMBER + 1 ? reader->at + LONGEST_NUMBER + 1 : reader->end;
    const unsigned char *end = number_end(reader->at, limit, &whole);
    if (end == NULL) {
        return wrong("an unknown value");
    }
    Py_ssize_t size = end - reader->at;
    if (size > LONGEST_NUMBER) {
        return wrong("a number is too long");
    }
    memcpy(text, reader->at, (size_t)size);
    text[size] = '\0';
    reader->at = end;
    did(reader, size / DIGITS_PER_UNIT);
    if (whole) {
        return read_whole(text, size);
    }
    double number = PyOS_string_to_double(text, NULL, NULL);
    if (number == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    return isfinite(number) ? PyFloat_FromDouble(number) : wrong("a number that is not finite");
}

/* --- values --------------------------------------------------------------------------------------------------------
 */

static PyObject *read_value(Text *reader);

static PyObject *read_word(Text *reader, const char *word, PyObject *value)
{
    size_t size = strlen(word);
    if ((size_t)(reader->end - reader->at) < size || memcmp(reader->at, word, size) != 0) {
        return wrong("an unknown value");
    }
    reader->at += size;
    return Py_NewRef(value);
}

static PyObject *read_list(Text *reader)
{
    PyObject *list = PyList_New(0);
    if (list == NULL || next_is(reader, ']')) {
        return list;
    }
    do {
        PyObject *item = read_value(reader);
        if (item == NULL || PyList_Append(list, item) < 0) {
            Py_XDECREF(item);
            Py_DECREF(list);
            return NULL;
        }
        Py_DECREF(item);
    } while (next_is(reader, ','));
    if (!next_is(reader, ']')) {
        Py_DECREF(list);
        return wrong("a list without an end");
    }
    return list;
}

/* A key; each text is kept once, however often it occurs. */
static PyObject *read_key(Text *reader)
{
    PyObject *key = next_is(reader, '"') ? read_text(reader) : wrong("a key of another type than text");
    if (key == NULL || !next_is(reader, ':')) {
        Py_XDECREF(key);
        return wrong("a key without a value");
    }
    PyObject *kept = PyDict_SetDefault(reader->keys, key, key);
    Py_XINCREF(kept);
    Py_DECREF(key);
    return kept;
}

static int read_member(Text *reader, PyObject *dict)
{
    PyObject *key = read_key(reader), *value = key ? read_value(reader) : NULL;
    Py_ssize_t before = PyDict_GET_SIZE(dict);
    int failed = value == NULL || PyDict_SetItem(dict, key, value) < 0;
    if (!failed && PyDict_GET_SIZE(dict) == before) {
        wrong("a key occurs twice");
        failed = 1;
    }
    Py_XDECREF(key);
    Py_XDECREF(value);
    return failed;
}

/* The bytes that an object stands for; the object itself, if it stands for none. Takes the reference over. */
static PyObject *take_bytes(Text *reader, PyObject *dict)
{
    PyObject *key, *number, *found = NULL;
    Py_ssize_t place = 0;
    if (reader->blobs == NULL || PyDict_GET_SIZE(dict) != 1 || !PyDict_Next(dict, &place, &key, &number) ||
        PyUnicode_Compare(key, reader->tag) != 0) {
        return dict;
    }
    Py_ssize_t index = PyLong_CheckExact(number) ? PyLong_AsSsize_t(number) : -1;
    if (index < 0 || index >= PyTuple_GET_SIZE(reader->blobs)) {
        PyErr_Clear();
        wrong("bytes that are not there");
    }
    else {
        found = Py_NewRef(PyTuple_GET_ITEM(reader->blobs, index));
    }
    Py_DECREF(dict);
    return found;
}

static PyObject *read_object(Text *reader)
{
    PyObject *dict = PyDict_New();
    if (dict == NULL || next_is(reader, '}')) {
        return dict;
    }
    do {
        if (read_member(reader, dict)) {
            Py_DECREF(dict);
            return NULL;
        }
    } while (next_is(reader, ','));
    if (!next_is(reader, '}')) {
        Py_DECREF(dict);
        return wrong("an object without an end");
    }
    return take_bytes(reader, dict);
}

static PyObject *read_inside(Text *reader, PyObject *(*read)(Text *))
{
    if (reader->depth >= DEEPEST) {
        return wrong("a frame is nested too deep");
    }
    reader->depth++;
    PyObject *value = read(reader);
    reader->depth--;
    if (value != NULL && reader->shares && PyObject_IS_GC(value)) {
        PyObject_GC_UnTrack(value);
    }
    return value;
}

static PyObject *read_value(Text *reader)
{
    if (++reader->values > MOST_VALUES) {
        return wrong("too many values in a frame");
    }
    did(reader, 1);
    switch (reader->at < reader->end ? *reader->at : 0) {
    case '[':
        reader->at++;
        return read_inside(reader, read_list);
    case '{':
        reader->at++;
        return read_inside(reader, read_object);
    case '"':
        reader->at++;
        return read_text(reader);
    case 't':
        return read_word(reader, "true", Py_True);
    case 'f':
        return read_word(reader, "false", Py_False);
    case 'n':
        return read_word(reader, "null", Py_None);
    default:
        return read_number(reader);
    }
}

/* --- frames --------------------------------------------------------------------------------------------------------
 */

static PyObject *make_blob(Text *reader, const char *raw, Py_ssize_t offset, Py_ssize_t size)
{
    PyObject *blob = PyBytes_FromStringAndSize(NULL, size);
    if (blob != NULL && reader->arrival.counter != NULL) {
        if (copy_arriving(&reader->arrival, PyBytes_AS_STRING(blob), raw, (size_t)offset, (size_t)size)) {
            Py_CLEAR(blob);
        }
        did(reader, size / BYTES_PER_UNIT);
    }
    else if (blob != NULL && size > 0) {
        PyThreadState *thread = reader->shares && size >= LARGE_TEXT ? PyEval_SaveThread() : NULL;
        memcpy(PyBytes_AS_STRING(blob), raw + offset, (size_t)size);
        if (thread != NULL) {
            PyEval_RestoreThread(thread);
        }
        did(reader, 1);
    }
    return blob;
}

/* All bytes values of a frame, by their sizes, which have to be those of what came. */
static PyObject *make_blobs(Text *reader, PyObject *sizes, const Py_buffer *raw)
{
    Py_ssize_t count = PyList_GET_SIZE(sizes), used = 0;
    PyObject *blobs = PyTuple_New(count);
    for (Py_ssize_t i = 0; blobs != NULL && i < count; i++) {
        PyObject *number = PyList_GET_ITEM(sizes, i);
        Py_ssize_t size = PyLong_CheckExact(number) ? PyLong_AsSsize_t(number) : -1;
        PyObject *blob = NULL;
        if (size < 0 || size > raw->len - used) {
            PyErr_Clear();
            wrong("the sizes of the bytes do not add up");
        }
        else {
            blob = make_blob(reader, raw->buf, used, size);
            used += size;
        }
        if (blob == NULL) {
            Py_CLEAR(blobs);
        }
        else {
            PyTuple_SET_ITEM(blobs, i, blob);
        }
    }
    if (blobs != NULL && used != raw->len) {
        Py_CLEAR(blobs);
        wrong("the sizes of the bytes do not add up");
    }
    return blobs;
}

/* A message with bytes: the key that stands for them, their sizes, and the message itself, in a list. */
static PyObject *read_with_blobs(Text *reader, const Py_buffer *raw, Py_ssize_t count)
{
    reader->tag = next_is(reader, '[') && next_is(reader, '"') ? read_text(reader) : NULL;
    PyObject *sizes = reader->tag && next_is(reader, ',') ? read_value(reader) : NULL;
    if (sizes == NULL || !PyList_CheckExact(sizes) || PyList_GET_SIZE(sizes) != count || !next_is(reader, ',')) {
        Py_XDECREF(sizes);
        return wrong("bytes without their sizes");
    }
    reader->blobs = make_blobs(reader, sizes, raw);
    Py_DECREF(sizes);
    PyObject *message = reader->blobs ? read_value(reader) : NULL;
    if (message != NULL && !next_is(reader, ']')) {
        Py_DECREF(message);
        return wrong("a list without an end");
    }
    return message;
}

static PyObject *read_message(Text *reader, const Py_buffer *raw, Py_ssize_t blobs)
{
    if (blobs == 0 && raw->len > 0) {
        return wrong("bytes without a place");
    }
    PyObject *message = blobs ? read_with_blobs(reader, raw, blobs) : read_value(reader);
    if (message != NULL && reader->at != reader->end) {
        Py_DECREF(message);
        return wrong("more than one message in a frame");
    }
    return message;
}

/* read_frame(text, raw, blobs, shares, counter=None, waits=False): the message, and how many values it has; the counter
 * is that of raw bytes that are still arriving */
PyObject *core_read_frame(PyObject *module, PyObject *args)
{
    Py_buffer text, raw, counter = {0};
    Py_ssize_t blobs;
    int shares, waits = false;
    if (!PyArg_ParseTuple(args, "y*y*np|z*p", &text, &raw, &blobs, &shares, &counter, &waits)) {
        return NULL;
    }
    Text reader = {.at = text.buf, .shares = shares};
    reader.end = reader.at + text.len;
    PyObject *message = NULL;
    if (!arrival_of(&reader.arrival, &counter, waits)) {
        reader.keys = PyDict_New();
        message = reader.keys ? read_message(&reader, &raw, blobs) : NULL;
    }
    Py_XDECREF(reader.keys);
    Py_XDECREF(reader.tag);
    Py_XDECREF(reader.blobs);
    PyBuffer_Release(&text);
    PyBuffer_Release(&raw);
    PyBuffer_Release(&counter);
    return message ? Py_BuildValue("Nn", message, reader.values) : NULL;
}
