/* Refusing: the exception, the record of it, and who is behind the question. */
#include "core.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

PyObject *denial_factory = NULL; /* builds the exception; Python, because it only words what was decided here */
PyObject *recorder = NULL;       /* the host's: told of every denial, outside the guard */
PyObject *facade_files = NULL;   /* files of os, os.path, pathlib, shutil ...: they ask on behalf of their caller */

static const char *const operation_names[] = {"read", "create", "modify", "delete", "execute"};

/* "read", or "create,modify" when one of them would have done. */
void operation_text(unsigned bits, char *out)
{
    out[0] = '\0';
    for (int i = 0; i < 5; i++) {
        if (bits & (1u << i)) {
            strcat(out, out[0] ? "," : "");
            strcat(out, operation_names[i]);
        }
    }
}

/* ---- who asks ------------------------------------------------------------------------------ */

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

/* File names can be forged with compile(); what a subject makes is marked, where subjects are loaded as such. */
bool code_is_library(PyCodeObject *code)
{
    return is_library_file(code->co_filename) && resident_owner(code) == NULL;
}

/* A function of the file facade whose job is to find something for its caller: shutil.which. */
static bool is_finder(PyCodeObject *code)
{
    return PyUnicode_CompareWithASCIIString(code->co_name, "which") == 0 && code_is_library(code);
}

/* The first frame outside the file facade decides: the subject's own code, or a library that looks around. */
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

/* The very frame that made the call, facade or not. */
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

/* ---- which function started a process --------------------------------------------------------- */

static const char *const starters[] = {"subprocess", "os", "pty", "asyncio.subprocess", "platform", "webbrowser"};

/* The name of the module that a starting function is called by; NULL for any other function. */
static const char *starter_module(PyFrameObject *frame)
{
    PyObject *globals = PyFrame_GetGlobals(frame);
    PyObject *name = globals ? PyDict_GetItemString(globals, "__name__") : NULL;
    const char *found = NULL;
    for (size_t i = 0; name != NULL && PyUnicode_Check(name) && i < sizeof starters / sizeof *starters; i++) {
        found = PyUnicode_CompareWithASCIIString(name, starters[i]) == 0 ? starters[i] : found;
    }
    Py_XDECREF(globals);
    return found != NULL && strcmp(found, "asyncio.subprocess") == 0 ? "asyncio" : found;
}

static void write_starter(PyFrameObject *frame, PyCodeObject *code, char *out, size_t size)
{
    const char *module = starter_module(frame);
    const char *function = module && code_is_library(code) ? PyUnicode_AsUTF8(code->co_qualname) : NULL;
    if (function == NULL) {
        PyErr_Clear();
        return;
    }
    size_t length = strlen(function), end = strlen(".__init__");
    length -= length > end && strcmp(function + length - end, ".__init__") == 0 ? end : 0;
    snprintf(out, size, "%s.%.*s", module, (int)length, function);
}

/* The function of the standard library that the subject called to start a process: the outermost one, since
 * subprocess.run and os.popen go through subprocess.Popen. */
static void starting_function(const char *called, char *out, size_t size)
{
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    snprintf(out, size, "%s", called);
    while (frame != NULL) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        bool library = code_is_library(code);
        if (library) {
            write_starter(frame, code, out, size);
        }
        Py_DECREF(code);
        PyFrameObject *back = library ? PyFrame_GetBack(frame) : NULL;
        Py_DECREF(frame);
        frame = back;
    }
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

/* The functions of the import system, by identity: a file name can be claimed by anybody who compiles a text. */
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

/* ---- denying ------------------------------------------------------------------------------- */

static const char *const kind_names[] = {"filesystem",  "descriptor", "module", "subprocess",
                                         "environment", "tamper",     "network"};

/* The latest denials, for the host. Facts, not exceptions: those would keep frames alive. */
enum { RECENT = 512 };
static PyObject *recent[RECENT];
static size_t recent_next = 0;
bool recording = true;
size_t denials_made = 0;

static void remember_denial(PyObject *facts, bool silent)
{
    PyObject *record = NULL, *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    record = Py_BuildValue("(dOO)", (double)now.tv_sec + (double)now.tv_nsec / 1e9, silent ? Py_True : Py_False, facts);
    if (record != NULL) {
        Py_XSETREF(recent[recent_next % RECENT], record);
        recent_next++;
    }
    PyErr_Restore(type, value, trace);
}

PyObject *recent_denials(PyObject *module, PyObject *unused)
{
    PyObject *list = PyList_New(0);
    size_t first = recent_next > RECENT ? recent_next - RECENT : 0;
    for (size_t i = first; list != NULL && i < recent_next; i++) {
        if (PyList_Append(list, recent[i % RECENT]) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

/* Runs a callable of the host's outside the guard; NULL with an exception when it fails. */
PyObject *call_outside(State *state, PyObject *function, PyObject *args)
{
    State *outside = state_new(state, NULL, MODE_BYPASS, true, NULL);
    PyObject *result = NULL;
    Entered entered;
    if (outside != NULL && state_enter(outside, &entered) == 0) {
        outside_begin();
        /* for whom the subject works, whatever it has put into the variable that says so */
        PyObject *pretended = served_save();
        served_restore(Py_XNewRef(state->served));
        result = PyObject_Call(function, args, NULL);
        served_restore(pretended);
        state_leave(&entered);
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        if (outside_end() < 0) {
            Py_CLEAR(result);
            Py_XDECREF(type);
            Py_XDECREF(value);
            Py_XDECREF(trace);
        }
        else {
            PyErr_Restore(type, value, trace);
        }
    }
    Py_XDECREF(outside);
    return result;
}

static void tell_recorder(State *state, PyObject *error)
{
    static _Thread_local bool telling = false; /* what a subject left in its way is denied too, and not told of */
    if (recorder == NULL || recorder == Py_None || telling) {
        return;
    }
    PyObject *args = PyTuple_Pack(1, error);
    telling = true;
    PyObject *result = args ? call_outside(state, recorder, args) : NULL;
    telling = false;
    Py_XDECREF(args);
    Py_XDECREF(result);
    PyErr_Clear(); /* a recorder that fails changes nothing about the denial */
}

static PyObject *word_denial(PyObject *facts, PyObject *decision)
{
    PyObject *keywords = decision ? Py_BuildValue("{sO}", "decision", decision) : NULL;
    PyObject *error = PyObject_Call(denial_factory, facts, keywords);
    Py_XDECREF(keywords);
    return error;
}

static void *deny_quietly(State *state, DenialKind kind, const char *operation, PyObject *target, bool silent,
                          PyObject *decision)
{
    denials_made++;
    PyObject *view = state_view(state);
    PyObject *facts = view ? Py_BuildValue("(sOsO)", kind_names[kind], view, operation, target) : NULL;
    bool told = recorder != NULL && recorder != Py_None;
    /* a library that looks around is answered "not there": nobody but a recorder would see the wording */
    PyObject *error = facts && denial_factory && (!silent || told) ? word_denial(facts, decision) : NULL;
    if (facts != NULL && recording) {
        remember_denial(facts, silent);
    }
    if (error == NULL || !PyExceptionInstance_Check(error)) {
        PyErr_Clear();
        PyErr_Format(PyExc_PermissionError, "sandbox_%s_denied", kind_names[kind]);
    }
    else {
        tell_recorder(state, error);
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    }
    Py_XDECREF(view);
    Py_XDECREF(facts);
    Py_XDECREF(error);
    return NULL;
}

/* Sets the exception and returns NULL. Whatever goes wrong in wording it, nothing is allowed. */
void *deny(State *state, DenialKind kind, const char *operation, PyObject *target)
{
    return deny_quietly(state, kind, operation, target, false, NULL);
}

/* The same, with what the decider said: whether a request is pending, and under which number. */
void *deny_decided(State *state, DenialKind kind, const char *operation, PyObject *target, PyObject *decision)
{
    bool told = decision != NULL && decision_type != NULL && (PyObject *)Py_TYPE(decision) == decision_type;
    return deny_quietly(state, kind, operation, target, false, told ? decision : NULL);
}

void *deny_text(State *state, DenialKind kind, const char *text)
{
    char function[256];
    if (kind == DENY_SUBPROCESS) {
        starting_function(text, function, sizeof function);
    }
    PyObject *target = PyUnicode_DecodeFSDefault(kind == DENY_SUBPROCESS ? function : text);
    if (target != NULL) {
        deny(state, kind, kind == DENY_SUBPROCESS ? "execute" : kind == DENY_FILESYSTEM ? "read" : "use", target);
        Py_DECREF(target);
    }
    return NULL;
}

/* A probe by library code is answered as on a machine where nothing is there; the denial is recorded all the same. */
void *deny_path(State *state, const char *path, unsigned missing, bool probe)
{
    PyObject *target = PyUnicode_DecodeFSDefault(path);
    if (target == NULL) {
        return NULL;
    }
    char operation[64];
    operation_text(missing, operation);
    bool silent = probe && asker_is_library();
    deny_quietly(state, DENY_FILESYSTEM, operation, target, silent, NULL);
    if (silent) {
        PyErr_Clear();
        errno = ENOENT;
        PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, target);
    }
    Py_DECREF(target);
    return NULL;
}

/* Whether the present exception is a denial of ours, as against an error of the system's. */
bool error_is_denial(void)
{
    static PyObject *layer = NULL;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    layer = layer ? layer : PyUnicode_InternFromString("layer");
    bool is = type != NULL && layer != NULL && PyObject_HasAttr(type, layer);
    PyErr_Restore(type, value, trace);
    return is;
}

PyObject *errno_error(PyObject *filename)
{
    return PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, filename);
}

/* Like deny_path; the error names the path as the caller wrote it, as the kernel's errors do. */
int deny_given(State *state, const PathText *given, const char *path, unsigned missing, bool probe)
{
    deny_path(state, path, missing, probe);
    errno_filename(given->shown, NULL);
    return -1;
}

/* The call went through a handle: its error should still name the path the caller gave. */
void errno_filename(PyObject *filename, PyObject *second)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value != NULL && PyObject_TypeCheck(value, (PyTypeObject *)PyExc_OSError)) {
        PyOSErrorObject *error = (PyOSErrorObject *)value;
        Py_XSETREF(error->filename, Py_NewRef(filename));
        if (second != NULL) {
            Py_XSETREF(error->filename2, Py_NewRef(second));
        }
    }
    PyErr_Restore(type, value, trace);
}
