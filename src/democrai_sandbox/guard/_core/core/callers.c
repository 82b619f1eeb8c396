/* Finds out which code made the current call: the subject's own code, a library, or the import system. */
#include "core/core.h"

#include <string.h>

PyObject *facade_files = NULL; /* files of os, os.path, pathlib, shutil ...: they ask on behalf of their caller */

static bool is_library_file(PyObject *filename)
{
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(filename, &length);
    if (text == NULL) {
        PyErr_Clear();
        return false;
    }
    if (strncmp(text, "<frozen ", 8) == 0) {
        return true;
    }
    if (text[0] != '/' || length >= PATH_MAX || code_policy == NULL) {
        return false;
    }
    char normal[PATH_MAX];
    PathKey key;
    if (path_normalise(text, normal) < 0) {
        return false;
    }
    path_key(&key, normal);
    return policy_mask(code_policy, &key) & FLAG_CODE;
}

/* Whether code is a library's. compile() accepts any file name, so code that is marked as a subject's is excluded. */
bool code_is_library(PyCodeObject *code)
{
    return is_library_file(code->co_filename) && resident_owner(code) == NULL;
}

/* Whether this is a function of the file facade that searches for its caller: shutil.which. */
static bool is_finder(PyCodeObject *code)
{
    return PyUnicode_CompareWithASCIIString(code->co_name, "which") == 0 && code_is_library(code);
}

/* Whether a library makes the current file operation. The first frame outside the file facade counts. */
bool asker_is_library(void)
{
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    bool library = false;
    while (frame != NULL) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        int facade = facade_files ? PySet_Contains(facade_files, code->co_filename) : 0;
        bool finder = facade > 0 && is_finder(code), done = facade <= 0 || finder;
        if (done) {
            library = finder || code_is_library(code);
        }
        Py_DECREF(code);
        PyFrameObject *back = done ? NULL : PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    return library;
}

/* Whether the calling frame itself is a library's, also in the file facade. */
bool caller_is_library(void)
{
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    if (frame == NULL) {
        return false;
    }
    PyCodeObject *code = PyFrame_GetCode(frame);
    bool is = code_is_library(code);
    Py_DECREF(code);
    Py_DECREF(frame);
    return is;
}

/* Whether the call was made by code of the same installed package: below the same folder of a code root. */
bool caller_is_library_of(PyCodeObject *code)
{
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    PyCodeObject *caller = frame ? PyFrame_GetCode(frame) : NULL;
    const char *one = caller ? PyUnicode_AsUTF8(caller->co_filename) : NULL, *two = PyUnicode_AsUTF8(code->co_filename);
    PyErr_Clear();
    bool same = one != NULL && two != NULL && code_is_library(caller) && code_is_library(code);
    const char *packages = same ? strstr(one, "/site-packages/") : NULL;
    if (packages != NULL) {
        size_t folder = (size_t)(packages - one) + strlen("/site-packages/");
        size_t length = folder + strcspn(one + folder, "/");
        same = one[length] == '/' && strncmp(one, two, length + 1) == 0;
    }
    Py_XDECREF(caller);
    Py_XDECREF(frame);
    return same && packages != NULL;
}

static bool frame_is_file(const char *filename)
{
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    if (frame == NULL) {
        return false;
    }
    PyCodeObject *code = PyFrame_GetCode(frame);
    bool is = PyUnicode_CompareWithASCIIString(code->co_filename, filename) == 0 && resident_owner(code) == NULL;
    Py_DECREF(code);
    Py_DECREF(frame);
    return is;
}

bool frame_is_import_machinery(void)
{
    return frame_is_file("<frozen importlib._bootstrap_external>");
}

/* The functions of the import system, by identity, because compile() accepts any file name. */
enum { IMPORT_FUNCTIONS = 128 };
static PyObject *import_functions[IMPORT_FUNCTIONS];

int importlib_ready(void)
{
    PyObject *module = PyImport_ImportModule("_frozen_importlib"), *name, *value;
    Py_ssize_t at = 0;
    int count = 0;
    while (module != NULL && count < IMPORT_FUNCTIONS && PyDict_Next(PyModule_GetDict(module), &at, &name, &value)) {
        if (PyFunction_Check(value)) {
            import_functions[count++] = Py_NewRef(PyFunction_GET_CODE(value));
        }
    }
    Py_XDECREF(module);
    return module ? 0 : -1;
}

bool caller_is_importlib(void)
{
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    PyCodeObject *code = frame ? PyFrame_GetCode(frame) : NULL;
    bool is = false;
    for (int i = 0; code != NULL && i < IMPORT_FUNCTIONS && !is; i++) {
        is = import_functions[i] == (PyObject *)code;
    }
    Py_XDECREF(code);
    Py_XDECREF(frame);
    return is;
}
