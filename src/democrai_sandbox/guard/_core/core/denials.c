/* Denials: raises the exception, records it, and reports it to the host. */
#include "core/core.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

PyObject *usage_error = NULL;    /* the class for wrong use of the guard by the host */
PyObject *decision_type = NULL;  /* democrai_sandbox.policy.AccessDecision: an answer with its reasons */
PyObject *denial_factory = NULL; /* builds the exception; Python, because it only words what was decided here */
PyObject *recorder = NULL;       /* of the host: called for every denial, outside the guard */

static const char *const operation_names[] = {"read", "create", "modify", "delete", "execute"};

/* Writes "read", or "create,modify" when one of several would have been enough. */
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

/* ---- which function started a process --------------------------------------------------------- */

static const char *const starters[] = {"subprocess", "os", "pty", "asyncio.subprocess", "platform", "webbrowser"};

/* The public module of a function that starts processes; NULL for other functions. */
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

/* Finds the function of the standard library that the subject called to start a process: the outermost one, because
 * subprocess.run and os.popen call subprocess.Popen. */
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

/* ---- denying ------------------------------------------------------------------------------- */

static const char *const kind_names[] = {"filesystem",  "descriptor", "module", "subprocess",
                                         "environment", "tamper",     "network"};

/* The latest denials, for the host. They are stored as facts, because exceptions would keep frames alive. */
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

static void tell_recorder(State *state, PyObject *error)
{
    static _Thread_local bool telling = false; /* denials inside the recorder are not recorded */
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
    /* a library that probes gets "not found", so only a recorder would see the message */
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

/* Sets the exception and returns NULL. If the message cannot be built, the operation is denied all the same. */
void *deny(State *state, DenialKind kind, const char *operation, PyObject *target)
{
    return deny_quietly(state, kind, operation, target, false, NULL);
}

/* Like deny(), with the answer of the decider: whether a request is pending, and its number. */
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

/* Denies a path. A probe by library code gets "not found"; the denial is still recorded. */
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

/* Whether the current exception is a denial, not an error of the system. */
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

/* Like deny_path(); the error names the path as the caller wrote it. */
int deny_given(State *state, const PathText *given, const char *path, unsigned missing, bool probe)
{
    deny_path(state, path, missing, probe);
    errno_filename(given->shown, NULL);
    return -1;
}

/* Sets the file names of the current OSError to those of the caller, after a call through a handle. */
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
