/* Finds out whether the running code is a library module that is being imported.
 *
 * A library that is first imported under a guard registers objects for the whole process, such as exit functions and
 * classes with finalizers. They belong to the library, not to the subject, and must later run unguarded for the
 * host. A file name is not proof, because compile() takes any name. Therefore the code is compared with the content
 * of the file in the code root. */
#include "core/core.h"

#include <fcntl.h>
#include <marshal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { KNOWN = 128, PYC_HEADER = 16 };

static PyObject *known[KNOWN]; /* code objects found genuine; kept, so that their identity stays theirs */
static size_t known_count = 0;

static bool is_known(PyObject *code)
{
    for (size_t i = 0; i < known_count && i < KNOWN; i++) {
        if (known[i] == code) {
            return true;
        }
    }
    return false;
}

static void remember_code(PyObject *code)
{
    Py_XSETREF(known[known_count % KNOWN], Py_NewRef(code));
    known_count++;
}

/* ---- what running modules were read from --------------------------------------------------------- */

enum { RUNNING = 64 };

/* The code of a module, and the bytes it was unmarshalled from: the same bytes in the file are the same code, and are
 * compared far sooner than code with code. */
typedef struct {
    PyObject *code;
    Bytecode from;
} Made;
static Made running[RUNNING];
static size_t running_count = 0;

static void forget_made(size_t at)
{
    Made gone = running[at];
    running[at] = running[--running_count];
    Py_DECREF(gone.code);
    Py_DECREF(gone.from.bytes);
}

/* A module that has run does not keep its code. Usually the module that began last ends first; the others are visited
 * only if the table is full. */
static void forget_finished(void)
{
    bool full = running_count == RUNNING;
    for (size_t i = running_count; i-- > 0;) {
        if (i >= running_count) {
            continue; /* letting go may run code that forgets others */
        }
        if (Py_REFCNT(running[i].code) == 1) {
            forget_made(i);
        }
        else if (!full) {
            break;
        }
    }
}

void bytecode_forget(void)
{
    while (running_count > 0) {
        forget_made(running_count - 1);
    }
}

/* The immutable bytes behind the argument of marshal.loads; false for any other argument. */
bool bytecode_of(PyObject *data, Bytecode *out)
{
    Py_buffer content;
    bool viewed = PyMemoryView_Check(data);
    if ((!viewed && !PyBytes_CheckExact(data)) || PyObject_GetBuffer(data, &content, PyBUF_SIMPLE) < 0) {
        PyErr_Clear(); /* a view that is released, or has gaps */
        return false;
    }
    PyObject *bytes = viewed ? PyMemoryView_GET_BUFFER(data)->obj : data;
    bool immutable = bytes != NULL && PyBytes_CheckExact(bytes);
    if (immutable) {
        *out = (Bytecode){Py_NewRef(bytes), (const char *)content.buf - PyBytes_AS_STRING(bytes), content.len};
    }
    PyBuffer_Release(&content);
    return immutable;
}

/* Takes over the reference to the bytes. */
void bytecode_note(PyObject *made, Bytecode *from)
{
    forget_finished();
    if (made == NULL || !PyCode_Check(made) || running_count == RUNNING) {
        Py_DECREF(from->bytes);
        return;
    }
    running[running_count++] = (Made){Py_NewRef(made), *from};
}

static const Bytecode *bytecode_behind(PyObject *code)
{
    for (size_t i = running_count; i > 0; i--) {
        if (running[i - 1].code == code) {
            return &running[i - 1].from;
        }
    }
    return NULL;
}

/* ---- what a file holds ---------------------------------------------------------------------------- */

/* The whole file as bytes with a NUL behind; NULL without an exception when it cannot be read. */
static PyObject *read_file(const char *path)
{
    struct stat info;
    PyObject *bytes = NULL;
    int fd = open_beneath(path, O_RDONLY, 0);
    if (fd < 0) {
        return NULL;
    }
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size < (16 << 20)) {
        bytes = PyBytes_FromStringAndSize(NULL, info.st_size);
        if (bytes != NULL && read(fd, PyBytes_AS_STRING(bytes), (size_t)info.st_size) != info.st_size) {
            Py_CLEAR(bytes);
        }
    }
    close(fd);
    PyErr_Clear();
    return bytes;
}

/* "/lib/x/name.py" -> "/lib/x/__pycache__/name.cpython-311.pyc" */
bool cache_path(const char *source, char *out)
{
    const char *name = strrchr(source, '/') + 1, *dot = strrchr(name, '.');
    if (dot == NULL || strcmp(dot, ".py") != 0) {
        return false;
    }
    int length = snprintf(out, PATH_MAX, "%.*s__pycache__/%.*s.cpython-%d%d.pyc", (int)(name - source), source,
                          (int)(dot - name), name, PY_MAJOR_VERSION, PY_MINOR_VERSION);
    return length < PATH_MAX;
}

static bool equals(PyObject *found, PyObject *code)
{
    bool same = found != NULL && PyCode_Check(found) && PyObject_RichCompareBool(found, code, Py_EQ) == 1;
    Py_XDECREF(found);
    PyErr_Clear();
    return same;
}

/* Whether a file of bytecode holds these bytes behind its header. */
static bool file_holds(const char *path, const Bytecode *from)
{
    static char part[1 << 16]; /* nothing runs between reading and comparing */
    const char *expected = PyBytes_AS_STRING(from->bytes) + from->start;
    struct stat info;
    Py_ssize_t done = 0;
    int fd = open_beneath(path, O_RDONLY, 0);
    if (fd < 0) {
        return false;
    }
    bool same = fstat(fd, &info) == 0 && S_ISREG(info.st_mode) && info.st_size == PYC_HEADER + from->length;
    while (same && done < from->length) {
        ssize_t count = pread(fd, part, sizeof part, PYC_HEADER + done);
        same = count > 0 && count <= from->length - done && memcmp(expected + done, part, (size_t)count) == 0;
        done += count;
    }
    close(fd);
    return same;
}

/* Whether the cached bytecode of a source file is this code. */
static bool is_cached_code(const char *source, PyObject *code)
{
    char path[PATH_MAX];
    bool cached = cache_path(source, path);
    const Bytecode *from = cached ? bytecode_behind(code) : NULL;
    if (from != NULL && file_holds(path, from)) {
        return true;
    }
    PyObject *bytes = cached ? read_file(path) : NULL;
    bool same = false;
    if (bytes != NULL && PyBytes_GET_SIZE(bytes) > PYC_HEADER) {
        const char *found = PyBytes_AS_STRING(bytes) + PYC_HEADER;
        same = equals(PyMarshal_ReadObjectFromString(found, PyBytes_GET_SIZE(bytes) - PYC_HEADER), code);
    }
    Py_XDECREF(bytes);
    PyErr_Clear();
    return same;
}

static PyObject *compiled_code(const char *source)
{
    PyObject *bytes = read_file(source);
    PyObject *code = bytes ? Py_CompileString(PyBytes_AS_STRING(bytes), source, Py_file_input) : NULL;
    Py_XDECREF(bytes);
    PyErr_Clear();
    return code;
}

/* Whether a file lies below a code root; for `importable`, also below another folder that the host imports from and
 * that was not given to the subject, whose own files may lie below such a folder. */
static bool is_library_place(const PathKey *key, bool importable)
{
    State *state = state_guarding();
    unsigned mask = state ? state_mask(state, key) : 0;
    if (mask & (OP_CREATE | OP_MODIFY | OP_DELETE)) {
        return false;
    }
    bool open_to_all = importable && code_policy != NULL && (policy_mask(code_policy, key) & OP_READ);
    return mask & FLAG_CODE || (open_to_all && (mask & OP_READ) && !(state_declared_mask(state, key) & OP_ALL));
}

static bool is_genuine(PyCodeObject *code, bool importable)
{
    char path[PATH_MAX];
    PathKey key;
    const char *file = PyUnicode_AsUTF8(code->co_filename);
    if (file == NULL || file[0] != '/' || strlen(file) >= PATH_MAX || path_canonical(file, 1, path) < 0) {
        PyErr_Clear();
        return false;
    }
    path_key(&key, path);
    if (!is_library_place(&key, importable)) {
        return false;
    }
    return is_cached_code(path, (PyObject *)code) || equals(compiled_code(file), (PyObject *)code);
}

static bool is_metaclass_step(PyCodeObject *code)
{
    return PyUnicode_CompareWithASCIIString(code->co_filename, "<frozen abc>") == 0 &&
           PyUnicode_CompareWithASCIIString(code->co_name, "__new__") == 0;
}

/* The frame that runs the class statement or makes the call; ABCMeta, written in Python, stands in between. */
static PyFrameObject *acting_frame(void)
{
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    while (frame != NULL) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        bool skip = is_metaclass_step(code);
        Py_DECREF(code);
        if (!skip) {
            break;
        }
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    return frame;
}

/* Whether the code equals the content of a read-only file of the host or a library. */
bool is_library_code(PyObject *code)
{
    return is_known(code) || is_genuine((PyCodeObject *)code, true);
}

/* The same for the code of a library module. The result is remembered. */
bool is_imported_library(PyObject *code)
{
    bool is = is_known(code);
    if (!is && is_genuine((PyCodeObject *)code, false)) {
        remember_code(code);
        is = true;
    }
    return is;
}

bool called_by_library_import(void)
{
    PyFrameObject *frame = acting_frame();
    PyCodeObject *code = frame ? PyFrame_GetCode(frame) : NULL;
    bool is = code != NULL && PyUnicode_CompareWithASCIIString(code->co_name, "<module>") == 0 &&
              is_imported_library((PyObject *)code);
    Py_XDECREF(code);
    Py_XDECREF(frame);
    return is;
}
