/* Whether the running code is a library module being imported.
 *
 * A library that is first imported under a guard registers things for the whole process: exit functions, classes with
 * finalisers. Those are the library's, not the subject's, and must later serve the host unguarded. A file name proves
 * nothing, since compile() takes any; so the code is compared with what the file in the code root really holds. */
#include "core.h"

#include <fcntl.h>
#include <marshal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
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

static PyObject *cached_code(const char *source)
{
    char path[PATH_MAX];
    PyObject *bytes = cache_path(source, path) ? read_file(path) : NULL, *code = NULL;
    if (bytes != NULL && PyBytes_GET_SIZE(bytes) > PYC_HEADER) {
        code =
            PyMarshal_ReadObjectFromString(PyBytes_AS_STRING(bytes) + PYC_HEADER, PyBytes_GET_SIZE(bytes) - PYC_HEADER);
    }
    Py_XDECREF(bytes);
    PyErr_Clear();
    return code;
}

static PyObject *compiled_code(const char *source)
{
    PyObject *bytes = read_file(source);
    PyObject *code = bytes ? Py_CompileString(PyBytes_AS_STRING(bytes), source, Py_file_input) : NULL;
    Py_XDECREF(bytes);
    PyErr_Clear();
    return code;
}

static bool equals(PyObject *found, PyObject *code)
{
    bool same = found != NULL && PyCode_Check(found) && PyObject_RichCompareBool(found, code, Py_EQ) == 1;
    Py_XDECREF(found);
    PyErr_Clear();
    return same;
}

/* A code root; or, for `importable`, also another folder that the host imports from and that the subject was not given
 * itself: its own files may lie below one. */
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
    return equals(cached_code(path), (PyObject *)code) || equals(compiled_code(file), (PyObject *)code);
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

/* Whether it is what a file of read-only code holds, of the host's own or a library's. */
bool is_library_code(PyObject *code)
{
    return is_known(code) || is_genuine((PyCodeObject *)code, true);
}

/* The same for the code of a library's module, which is looked at once. */
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
