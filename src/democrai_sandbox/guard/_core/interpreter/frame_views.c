/* The view of frames that guarded code gets: its own frames, and those of libraries that work for it. Frames of the
 * host, and of libraries that work for the host (such as a web server around the subject's code), are hidden.
 *
 * A frame leads to its caller, a task to its coroutine, and local variables to objects of the runtime and of other
 * subjects. Names, lines and files of hidden frames stay readable, because tracebacks and log records need them.
 * Their variables are not readable. */
#include "interpreter/interpreter.h"

#include <string.h>

static getter locals_original = NULL, globals_original = NULL, trace_original = NULL;
static setter set_trace_original = NULL, set_line_original = NULL;

static bool frame_is_hidden(State *state, PyObject *frame)
{
    PyCodeObject *code = PyFrame_GetCode((PyFrameObject *)frame);
    bool hidden = code_is_hidden(state, code);
    Py_DECREF(code);
    return hidden;
}

/* Whether a frame without an owner works for another subject: it waits in another task, or has called the host. */
static bool frame_is_elsewhere(PyObject *frame)
{
    PyCodeObject *code = PyFrame_GetCode((PyFrameObject *)frame);
    bool elsewhere = residents > 0 && resident_owner(code) == NULL && !frame_works_here((PyFrameObject *)frame);
    Py_DECREF(code);
    return elsewhere;
}

static PyObject *frame_locals(PyObject *frame, void *closure)
{
    State *state = state_guarding();
    if (state != NULL && (frame_is_hidden(state, frame) || frame_is_elsewhere(frame))) {
        /* a library that looks for names around its caller finds none: models of pydantic are made that way */
        return caller_is_library() ? PyDict_New() : deny_text(state, DENY_TAMPER, "f_locals");
    }
    return locals_original(frame, closure);
}

/* Of our own frames a copy, like the dictionaries of our modules. */
static PyObject *frame_globals(PyObject *frame, void *closure)
{
    PyObject *globals = globals_original(frame, closure);
    PyCodeObject *code = PyFrame_GetCode((PyFrameObject *)frame);
    if (globals != NULL && state_guarding() != NULL && (code_is_ours(code) || is_environment_globals(globals))) {
        Py_SETREF(globals, PyDict_Copy(globals));
    }
    Py_DECREF(code);
    return globals;
}

/* Whether a frame is for the subject to trace: its own, or a library's that works for it. */
static bool may_trace(State *state, PyObject *frame)
{
    PyCodeObject *code = PyFrame_GetCode((PyFrameObject *)frame);
    const Policy *owner = resident_owner(code);
    Py_DECREF(code);
    return owner ? state_has_subject(state, owner) : frame_is_for(state, (PyFrameObject *)frame);
}

static PyObject *frame_trace(PyObject *frame, void *closure)
{
    State *state = state_guarding();
    PyObject *function = trace_original(frame, closure);
    if (state != NULL && function != NULL) {
        Py_SETREF(function, tracer_function(state, function));
    }
    return function;
}

/* A debugger sets f_trace in every calling frame. Frames of other owners are unchanged. */
static int set_frame_trace(PyObject *frame, PyObject *value, void *closure)
{
    State *state = state_guarding();
    if (state == NULL) {
        return set_trace_original(frame, value, closure);
    }
    if (!may_trace(state, frame)) {
        return caller_is_library() ? 0 : (deny_text(state, DENY_TAMPER, "f_trace"), -1);
    }
    if (value == NULL || value == Py_None) {
        return set_trace_original(frame, value, closure);
    }
    PyObject *tracer = tracer_new(state, value, TRACE);
    int result = tracer ? set_trace_original(frame, tracer, closure) : -1;
    Py_XDECREF(tracer);
    return result;
}

static int set_frame_line(PyObject *frame, PyObject *value, void *closure)
{
    State *state = value ? state_guarding() : NULL; /* it cannot be deleted */
    if (state != NULL && !may_trace(state, frame)) {
        deny_text(state, DENY_TAMPER, "f_lineno");
        return -1;
    }
    return set_line_original(frame, value, closure);
}

/* frame.clear(): a coroutine of the host's that waits would lose its variables. A library that clears all frames of a
 * traceback, as unittest does, leaves such a frame as it is. */
PyObject *on_frame_clear(State *state, Call *call)
{
    if (!frame_is_hidden(state, call->self)) {
        return call_original(call);
    }
    return caller_is_library() ? Py_NewRef(Py_None) : deny_text(state, DENY_TAMPER, "frame.clear");
}

static void replace_getter(PyGetSetDef *entry, const char *name, getter *original, getter replacement)
{
    if (strcmp(entry->name, name) == 0) {
        *original = entry->get;
        entry->get = replacement;
    }
}

static void replace_setter(PyGetSetDef *entry, const char *name, setter *original, setter replacement)
{
    if (strcmp(entry->name, name) == 0) {
        *original = entry->set;
        entry->set = replacement;
    }
}

int frame_views_ready(void)
{
    for (PyGetSetDef *entry = PyFrame_Type.tp_getset; entry != NULL && entry->name != NULL; entry++) {
        replace_getter(entry, "f_locals", &locals_original, frame_locals);
        replace_getter(entry, "f_globals", &globals_original, frame_globals);
        replace_getter(entry, "f_trace", &trace_original, frame_trace);
        replace_setter(entry, "f_trace", &set_trace_original, set_frame_trace);
        replace_setter(entry, "f_lineno", &set_line_original, set_frame_line);
    }
    if (locals_original && globals_original && trace_original && set_trace_original && set_line_original) {
        return 0;
    }
    PyErr_SetString(PyExc_ImportError, "frame.f_locals was not found: the guard does not fit this interpreter");
    return -1;
}
