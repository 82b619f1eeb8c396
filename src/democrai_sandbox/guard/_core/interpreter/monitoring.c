/* sys.monitoring for guarded code, from CPython 3.12; cProfile uses it too.
 *
 * The six tools belong to the whole interpreter. A subject can take tools that are free. Its callbacks are called
 * for its own code only, and it releases its tools while its guard is not active on the thread that took them. */
#include "interpreter/interpreter.h"

enum { TOOLS = 6, EVENTS = 32 };

typedef struct {
    const State *state; /* not owned; NULL: not a subject's */
    uint64_t thread;
    PyObject *name;
    PyObject *callbacks[EVENTS];
    PyObject *events, *local; /* an int; a dict: code -> int */
    bool in_force;
} Tool;

static Tool tools[TOOLS];
static FAST_THREAD_LOCAL bool working = false; /* these calls are our own */

bool monitoring_works(void)
{
    return working;
}

/* A call of sys.monitoring on behalf of the guard; NULL without an exception when it fails: the tool stays as it is. */
static PyObject *call(const char *name, int tool, PyObject *second, PyObject *third)
{
    PyObject *module = PySys_GetObject("monitoring"), *number = PyLong_FromLong(tool);
    PyObject *function = module && number ? PyObject_GetAttrString(module, name) : NULL;
    working = true;
    PyObject *result = function ? PyObject_CallFunctionObjArgs(function, number, second, third, NULL) : NULL;
    working = false;
    Py_XDECREF(function);
    Py_XDECREF(number);
    PyErr_Clear();
    return result;
}

static bool ask(const char *name, int tool, PyObject *second, PyObject *third)
{
    PyObject *result = call(name, tool, second, third);
    Py_XDECREF(result);
    return result != NULL;
}

/* Whether a tool is in use; false for invalid numbers. */
static bool is_used(long id)
{
    PyObject *name = id >= 0 && id < TOOLS ? call("get_tool", (int)id, NULL, NULL) : NULL;
    Py_XDECREF(name);
    return name != NULL && name != Py_None;
}

static void set_callbacks(int id, bool on)
{
    for (int i = 0; i < EVENTS; i++) {
        PyObject *event = tools[id].callbacks[i] ? PyLong_FromLong(1L << i) : NULL;
        if (event != NULL) {
            ask("register_callback", id, event, on ? tools[id].callbacks[i] : Py_None);
            Py_DECREF(event);
        }
    }
}

static void set_local(int id, bool on)
{
    PyObject *code, *events, *zero = PyLong_FromLong(0);
    for (Py_ssize_t at = 0; zero && tools[id].local && PyDict_Next(tools[id].local, &at, &code, &events);) {
        ask("set_local_events", id, code, on ? events : zero);
    }
    Py_XDECREF(zero);
}

static void take_down(int id)
{
    PyObject *zero = PyLong_FromLong(0);
    if (zero != NULL) {
        ask("set_events", id, zero, NULL);
        Py_DECREF(zero);
    }
    set_local(id, false);
    set_callbacks(id, false);
    ask("free_tool_id", id, NULL, NULL);
    tools[id].in_force = false;
}

/* Another tool may be there by now: then the subject's stays off. */
static void put_up(int id)
{
    if (!ask("use_tool_id", id, tools[id].name, NULL)) {
        return;
    }
    tools[id].in_force = true;
    set_callbacks(id, true);
    set_local(id, true);
    if (tools[id].events != NULL) {
        ask("set_events", id, tools[id].events, NULL);
    }
}

static void clear(int id)
{
    Tool tool = tools[id];
    tools[id] = (Tool){.state = NULL};
    tracings -= tool.state != NULL;
    Py_XDECREF(tool.name);
    Py_XDECREF(tool.events);
    Py_XDECREF(tool.local);
    for (int i = 0; i < EVENTS; i++) {
        Py_XDECREF(tool.callbacks[i]);
    }
}

void monitoring_follow(void)
{
    for (int id = 0; id < TOOLS; id++) {
        const Tool *tool = &tools[id];
        if (tool->state == NULL || tool->thread != thread_here()) {
            continue;
        }
        bool wanted = state_descends(floor_get(), tool->state);
        if (tool->in_force && !wanted) {
            take_down(id);
        }
        else if (!tool->in_force && wanted) {
            put_up(id);
        }
    }
}

void monitoring_gone(const State *state)
{
    for (int id = 0; id < TOOLS; id++) {
        if (tools[id].state == state) {
            if (tools[id].in_force) {
                take_down(id);
            }
            clear(id);
        }
    }
}

/* ---- the calls ----------------------------------------------------------------------------------- */

/* The number of an argument, as an exact int: what is checked is what is passed on. */
static PyObject *exact_int(PyObject *argument, long *value)
{
    PyObject *number = PyNumber_Index(argument);
    *value = number ? PyLong_AsLong(number) : -1;
    if (number != NULL && *value == -1 && PyErr_Occurred()) {
        PyErr_Clear(); /* out of range: the interpreter says so */
        *value = -1;
    }
    return number;
}

static int keep(int id, State *state, PyObject *name)
{
    clear(id);
    tools[id] = (Tool){.state = state, .thread = thread_here(), .name = Py_NewRef(name), .in_force = true};
    tools[id].local = PyDict_New();
    tracings++;
    return tools[id].local ? 0 : -1;
}

/* use_tool_id(tool, name) */
PyObject *on_use_tool(State *state, Call *call)
{
    long id;
    if (working || call->nargs < 2) {
        return call_original(call);
    }
    if (!tracing_has_place(state)) {
        return deny_text(state, DENY_TAMPER, "sys.monitoring.use_tool_id");
    }
    PyObject *number = exact_int(call->args[0], &id);
    PyObject *result = number ? call_with(call, 0, number) : NULL;
    Py_XDECREF(number);
    if (result != NULL && id >= 0 && id < TOOLS && keep((int)id, state, call->args[1]) < 0) {
        Py_CLEAR(result);
    }
    return result;
}

static bool is_own(State *state, long id)
{
    return id >= 0 && id < TOOLS && tools[id].in_force && state_descends(state, tools[id].state) &&
           state_subject(state) == state_subject(tools[id].state);
}

static int bit_of(long event)
{
    return event > 0 && (event & (event - 1)) == 0 && event < (1L << (EVENTS - 1))
               ? __builtin_ctzl((unsigned long)event)
               : -1;
}

/* register_callback(tool, event, function): what was there before is the subject's own. */
static PyObject *set_callback(State *state, Call *call, long id)
{
    long event;
    PyObject *argv[MAX_ARGS], *result = NULL;
    Call copy;
    if (call->nargs != 3) {
        return call_original(call);
    }
    PyObject *number = exact_int(call->args[1], &event), *function = call->args[2];
    PyObject *tracer = function == Py_None ? Py_NewRef(Py_None) : tracer_new(state, function, MONITOR);
    if (number != NULL && tracer != NULL && call_copy(call, argv, &copy) == 0) {
        argv[1] = number;
        argv[2] = tracer;
        working = true;
        result = call_original(&copy);
        working = false;
    }
    int bit = bit_of(event);
    if (result != NULL && bit >= 0) {
        Py_XSETREF(tools[id].callbacks[bit], function == Py_None ? NULL : Py_NewRef(tracer));
        Py_SETREF(result, tracer_function(state, result));
    }
    Py_XDECREF(number);
    Py_XDECREF(tracer);
    return result;
}

/* A call whose last of `count` arguments is a set of events: an exact int is passed on, and given to the caller. */
static PyObject *call_with_events(Call *call, Py_ssize_t count, PyObject **events)
{
    long value;
    *events = NULL;
    if (call->nargs != count) {
        return call_original(call); /* which refuses it */
    }
    *events = exact_int(call->args[count - 1], &value);
    return *events ? call_with(call, count - 1, *events) : NULL;
}

static PyObject *set_events(Call *call, long id)
{
    PyObject *events, *result = call_with_events(call, 2, &events);
    if (result != NULL && events != NULL) {
        Py_XSETREF(tools[id].events, Py_NewRef(events));
    }
    Py_XDECREF(events);
    return result;
}

static PyObject *set_local_events(Call *call, long id)
{
    PyObject *events, *result = call_with_events(call, 3, &events);
    if (result != NULL && events != NULL && PyDict_SetItem(tools[id].local, call->args[1], events) < 0) {
        Py_CLEAR(result);
    }
    Py_XDECREF(events);
    return result;
}

static PyObject *free_tool(Call *call, long id)
{
    PyObject *result = call_original(call);
    if (result != NULL) {
        take_down((int)id);
        clear((int)id);
    }
    return result;
}

static PyObject *use_own(State *state, Call *call, long id)
{
    switch (call->row->kind) {
    case TOOL_CALLBACK:
        return set_callback(state, call, id);
    case TOOL_EVENTS:
        return set_events(call, id);
    case TOOL_LOCAL_EVENTS:
        return set_local_events(call, id);
    case TOOL_FREE:
        return free_tool(call, id);
    default:
        return call_original(call);
    }
}

/* A tool that is not the subject's: one that is in use stays as it is, and one that is free gets no callbacks. */
static PyObject *use_other(State *state, Call *call, long id)
{
    bool plants = call->row->kind == TOOL_CALLBACK && (call->nargs < 3 || call->args[2] != Py_None);
    if (is_used(id) || plants) {
        return deny_text(state, DENY_TAMPER, call->row->denied);
    }
    working = true;
    PyObject *result = call_original(call);
    working = false;
    return result;
}

/* The functions whose first argument is a tool. */
PyObject *on_tool(State *state, Call *call)
{
    long id;
    PyObject *argv[MAX_ARGS], *result = NULL;
    Call copy;
    if (working || call->nargs < 1) {
        return call_original(call);
    }
    PyObject *number = exact_int(call->args[0], &id);
    if (number != NULL && call_copy(call, argv, &copy) == 0) {
        argv[0] = number;
        result = is_own(state, id) ? use_own(state, &copy, id) : use_other(state, &copy, id);
    }
    Py_XDECREF(number);
    return result;
}

/* restart_events(): of every tool. */
PyObject *on_restart_events(State *state, Call *call)
{
    for (int id = 0; id < TOOLS; id++) {
        if (is_own(state, id)) {
            return call_original(call);
        }
    }
    return deny_text(state, DENY_TAMPER, "sys.monitoring.restart_events");
}
