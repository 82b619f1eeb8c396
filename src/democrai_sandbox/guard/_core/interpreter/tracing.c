/* Trace and profile functions of guarded code: sys.settrace, sys.setprofile, frame.f_trace, and profilers in C.
 *
 * A subject can trace its own code and libraries that work for it. Its function is called for those frames only,
 * while its guard is active on the thread that set it. When the guard is left, the function of the host is restored;
 * when it is entered again, for the next step of a coroutine, the function of the subject is. */
#include "interpreter/interpreter.h"

enum { MOST_BEFORE_CLEANING = 64 };

/* ---- a callable for the frames of one subject ---------------------------------------------------- */

typedef struct {
    PyObject_HEAD uint64_t serial; /* of the state that installed it; not owned, since that would keep it alive */
    Policy *subject;
    PyObject *function;
    Py_tracefunc native; /* NULL for a callable; otherwise `function` is what belongs to it */
    TracingKind kind;
} Tracer;

static FAST_THREAD_LOCAL bool passing = false; /* the next event of the interpreter is about what was checked */

static PyObject *tracer_make(State *state, PyObject *function, Py_tracefunc native, TracingKind kind)
{
    Tracer *tracer = PyObject_GC_New(Tracer, &Tracer_Type);
    if (tracer == NULL) {
        return NULL;
    }
    tracer->serial = state->serial;
    tracer->subject = (Policy *)Py_NewRef(state_subject(state));
    tracer->function = Py_NewRef(function);
    tracer->native = native;
    tracer->kind = kind;
    PyObject_GC_Track(tracer);
    return (PyObject *)tracer;
}

PyObject *tracer_new(State *state, PyObject *function, TracingKind kind)
{
    return tracer_make(state, function, NULL, kind);
}

static int tracer_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Tracer *)self)->function);
    return 0;
}

static int tracer_clear(PyObject *self)
{
    Py_CLEAR(((Tracer *)self)->function);
    return 0;
}

static void tracer_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    tracer_clear(self);
    Py_XDECREF(((Tracer *)self)->subject);
    PyObject_GC_Del(self);
}

static bool is_same_subject(const Policy *one, const Policy *other)
{
    return one == other ||
           (PyUnicode_Compare(one->subject, other->subject) == 0 && PyUnicode_Compare(one->kind, other->kind) == 0);
}

/* Whether the subject is at work here, and the frame is its own or a library's that works for it. */
static bool sees(const Tracer *tracer, const PyFrameObject *frame)
{
    State *state = state_guarding();
    const State *origin = state;
    while (origin != NULL && origin->serial != tracer->serial) {
        origin = origin->parent;
    }
    return origin != NULL && is_same_subject(state_subject(state), tracer->subject) && frame_is_for(state, frame);
}

/* The installed function as the subject sees it: its own function, or None. */
PyObject *tracer_function(State *state, PyObject *installed)
{
    if (installed == NULL || !Py_IS_TYPE(installed, &Tracer_Type)) {
        return Py_NewRef(Py_None);
    }
    const Tracer *tracer = (Tracer *)installed;
    bool own = tracer->function != NULL && is_same_subject(state_subject(state), tracer->subject);
    return Py_NewRef(own ? tracer->function : Py_None);
}

/* The function for the rest of a frame, which a trace function returns. */
static PyObject *local_tracer(Tracer *tracer, PyObject *result)
{
    State *state = state_guarding();
    if (result == tracer->function) {
        Py_DECREF(result);
        return Py_NewRef(tracer);
    }
    if (result == Py_None || state == NULL) {
        return result;
    }
    PyObject *local = tracer_new(state, result, TRACE);
    Py_DECREF(result);
    return local;
}

/* Called with (frame, event, argument), and for sys.monitoring with (code, ...). */
static PyObject *tracer_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    Tracer *tracer = (Tracer *)self;
    PyObject *first = PyTuple_GET_SIZE(args) > 0 ? PyTuple_GET_ITEM(args, 0) : NULL;
    const PyFrameObject *frame = first && PyFrame_Check(first) ? (PyFrameObject *)first : NULL;
    if (tracer->native != NULL || tracer->function == NULL || (frame == NULL) != (tracer->kind == MONITOR) ||
        !sees(tracer, frame)) {
        return Py_NewRef(Py_None);
    }
    Py_INCREF(self); /* the function may replace itself, and the interpreter does not hold what it calls */
    PyObject *result = PyObject_Call(tracer->function, args, NULL);
    if (result == NULL && tracer->kind != MONITOR) {
        tracing_failed(tracer->kind);
    }
    else if (result != NULL && tracer->kind == TRACE) {
        result = local_tracer(tracer, result);
    }
    Py_DECREF(self);
    return result;
}

PyTypeObject Tracer_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "democrai_sandbox.guard._core.Tracer",
    .tp_basicsize = sizeof(Tracer),
    .tp_dealloc = tracer_dealloc,
    .tp_traverse = tracer_traverse,
    .tp_clear = tracer_clear,
    .tp_call = tracer_call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
};

/* A profiler in C, for the same frames. */
static int native_event(PyObject *self, PyFrameObject *frame, int what, PyObject *argument)
{
    Tracer *tracer = (Tracer *)self;
    if (tracer->function == NULL || !sees(tracer, frame)) {
        return 0;
    }
    Py_INCREF(self);
    int result = tracer->native(tracer->function, frame, what, argument);
    Py_DECREF(self);
    return result;
}

/* ---- what the thread has installed --------------------------------------------------------------- */

typedef struct {
    Py_tracefunc function;
    PyObject *object;
} Installed;

static Installed installed_here(TracingKind kind)
{
    const PyThreadState *thread = PyThreadState_Get();
    return kind == TRACE ? (Installed){thread->c_tracefunc, thread->c_traceobj}
                         : (Installed){thread->c_profilefunc, thread->c_profileobj};
}

static void install(TracingKind kind, Installed what)
{
    passing = true;
    if (kind == TRACE) {
        PyEval_SetTrace(what.function, what.object);
    }
    else {
        PyEval_SetProfile(what.function, what.object);
    }
    passing = false;
}

static bool is_same(Installed one, Installed other)
{
    return one.function == other.function && one.object == other.object;
}

/* ---- one for each thread, kind and state --------------------------------------------------------- */

typedef struct Tracing {
    struct Tracing *next;
    uint64_t thread;
    State *state; /* not owned: this goes when the state does */
    TracingKind kind;
    Installed own, host; /* both owned; `host` only while in force */
    bool in_force;
} Tracing;
static Tracing *all = NULL;

uint64_t thread_here(void)
{
    return PyThreadState_GetID(PyThreadState_Get());
}

static Tracing *find_in_force(TracingKind kind)
{
    Tracing *tracing = all;
    uint64_t thread = thread_here();
    while (tracing != NULL && !(tracing->in_force && tracing->kind == kind && tracing->thread == thread)) {
        tracing = tracing->next;
    }
    return tracing;
}

/* The tracing of the innermost state of the chain that has one. */
static Tracing *find_wanted(TracingKind kind)
{
    uint64_t thread = thread_here();
    for (const State *state = floor_get(); state != NULL; state = state->parent) {
        for (Tracing *tracing = all; tracing != NULL; tracing = tracing->next) {
            if (tracing->state == state && tracing->kind == kind && tracing->thread == thread) {
                return tracing;
            }
        }
    }
    return NULL;
}

/* A tracer in C is known when it is installed: from then on it gets no frames of others. */
static void adopt(Tracing *tracing)
{
    Installed now = installed_here(tracing->kind);
    if (is_same(now, tracing->own) || is_same(now, tracing->host) || now.object == NULL) {
        return;
    }
    PyObject *tracer = tracer_make(tracing->state, now.object, now.function, tracing->kind);
    if (tracer == NULL) {
        PyErr_Clear();
        install(tracing->kind, (Installed){NULL, NULL});
        return;
    }
    Py_XSETREF(tracing->own.object, tracer);
    tracing->own.function = native_event;
    install(tracing->kind, tracing->own);
}

static void put_up(Tracing *tracing)
{
    tracing->host = installed_here(tracing->kind);
    Py_XINCREF(tracing->host.object);
    tracing->in_force = true;
    install(tracing->kind, tracing->own);
}

static void take_down(Tracing *tracing)
{
    adopt(tracing);
    Installed host = tracing->host;
    tracing->host = (Installed){NULL, NULL};
    tracing->in_force = false;
    if (is_same(installed_here(tracing->kind), tracing->own) || installed_here(tracing->kind).object == NULL) {
        install(tracing->kind, host);
    }
    Py_XDECREF(host.object);
}

static void drop(Tracing *tracing)
{
    Tracing **at = &all;
    while (*at != tracing) {
        at = &(*at)->next;
    }
    *at = tracing->next;
    tracings--;
    if (tracing->in_force && tracing->thread == thread_here()) {
        take_down(tracing);
    }
    PyObject *own = tracing->own.object, *host = tracing->host.object;
    PyMem_Free(tracing);
    Py_XDECREF(own);
    Py_XDECREF(host);
}

static bool thread_lives(uint64_t id)
{
    PyThreadState *thread = PyInterpreterState_ThreadHead(PyInterpreterState_Get());
    while (thread != NULL && PyThreadState_GetID(thread) != id) {
        thread = PyThreadState_Next(thread);
    }
    return thread != NULL;
}

static void drop_of_ended_threads(void)
{
    for (Tracing *tracing = all, *next; tracing != NULL; tracing = next) {
        next = tracing->next;
        if (!thread_lives(tracing->thread)) {
            drop(tracing);
            next = all; /* letting go may have run code that changed the list */
        }
    }
}

/* The state's own that is in force here, or a new one; what it is to call is set by the caller. */
static Tracing *tracing_of(State *state, TracingKind kind)
{
    Tracing *before = find_in_force(kind);
    if (before != NULL && before->state == state) {
        return before;
    }
    if (before != NULL) {
        take_down(before);
    }
    if (tracings >= MOST_BEFORE_CLEANING) {
        drop_of_ended_threads();
    }
    Tracing *tracing = PyMem_Calloc(1, sizeof *tracing);
    if (tracing == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    *tracing = (Tracing){.next = all, .thread = thread_here(), .state = state, .kind = kind, .in_force = true};
    tracing->host = installed_here(kind);
    Py_XINCREF(tracing->host.object);
    all = tracing;
    tracings++;
    return tracing;
}

/* ---- following the guard ------------------------------------------------------------------------- */

static void follow(TracingKind kind)
{
    Tracing *now = find_in_force(kind), *wanted = find_wanted(kind);
    if (now != NULL && now == wanted) {
        adopt(now);
        return;
    }
    if (now != NULL) {
        take_down(now);
    }
    if (wanted != NULL && wanted->own.object != NULL) {
        put_up(wanted);
    }
}

/* Called when a thread has entered or left a state, while there is anything to follow. */
static void follow_all(void)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    follow(TRACE);
    follow(PROFILE);
    monitoring_follow();
    PyErr_Restore(type, error, trace);
}

/* Called when a state is freed. */
static void forget(const State *state)
{
    for (Tracing *tracing = all, *next; tracing != NULL; tracing = next) {
        next = tracing->next;
        if (tracing->state == state) {
            drop(tracing);
            next = all;
        }
    }
    monitoring_gone(state);
}

/* A function has raised: the interpreter removes it, and says so by an event. */
void tracing_failed(TracingKind kind)
{
    Tracing *tracing = find_in_force(kind);
    passing = true;
    if (tracing != NULL) {
        tracing->own.function = NULL;
        PyObject *object = tracing->own.object;
        tracing->own.object = NULL;
        Py_XDECREF(object);
    }
}

/* ---- the calls ----------------------------------------------------------------------------------- */

/* Where a function can be installed: the guard that was entered on this thread is that of the caller, so leaving it is
 * seen. */
bool tracing_has_place(const State *state)
{
    return floor_get() == state;
}

/* The event of a function that is being installed or removed. -1 with a denial. */
int tracing_event(State *state, const char *event, TracingKind kind)
{
    if (passing) {
        passing = false;
        return 0;
    }
    if (!tracing_has_place(state)) {
        deny_text(state, DENY_TAMPER, event);
        return -1;
    }
    return tracing_of(state, kind) == NULL ? -1 : 0; /* a tracer in C: set when the interpreter continues */
}

static PyObject *remove_function(State *state, TracingKind kind)
{
    Tracing *tracing = find_in_force(kind);
    if (tracing != NULL && is_same_subject(state_subject(tracing->state), state_subject(state))) {
        drop(tracing);
    }
    return Py_NewRef(Py_None);
}

static FAST_THREAD_LOCAL bool installing = false; /* this thread releases the old function before it sets the new one */

static PyObject *install_function(State *state, Call *call, TracingKind kind)
{
    PyObject *tracer = tracer_new(state, call->args[0], kind);
    Tracing *tracing = tracer ? tracing_of(state, kind) : NULL;
    PyObject *result = NULL, *before = NULL;
    if (tracing != NULL) {
        before = tracing->own.object;
        passing = true;
        result = call_with(call, 0, tracer);
        passing = false;
        tracing->own = installed_here(kind);
        Py_XINCREF(tracing->own.object);
    }
    Py_XDECREF(tracer);
    installing = true;
    Py_XDECREF(before); /* last: its finaliser may install another one */
    installing = false;
    return result;
}

/* sys.settrace, sys.setprofile */
PyObject *on_trace(State *state, Call *call)
{
    TracingKind kind = (TracingKind)call->row->kind;
    if (!tracing_has_place(state)) {
        return deny_text(state, DENY_TAMPER, call->row->denied);
    }
    if (installing && PY_VERSION_HEX < 0x030C0000) { /* as the interpreter itself, up to 3.11 */
        PyErr_Format(PyExc_RuntimeError, "Cannot call %s while another one is being installed", call->row->denied);
        return NULL;
    }
    return call->args[0] == Py_None ? remove_function(state, kind) : install_function(state, call, kind);
}

/* sys.gettrace, sys.getprofile: the function of the host is hidden. */
PyObject *on_traced_by(State *state, Call *call)
{
    TracingKind kind = (TracingKind)call->row->kind;
    Tracing *tracing = find_in_force(kind);
    if (tracing == NULL || installed_here(kind).object == NULL) {
        return Py_NewRef(Py_None);
    }
    adopt(tracing);
    return tracer_function(state, tracing->own.object);
}

/* A profiler in C that begins (enable) or ends (disable): its own function is taken over at once. */
PyObject *on_profiler(State *state, Call *call)
{
    PyObject *result = call_original(call);
    Tracing *tracing = find_in_force(PROFILE);
    if (tracing != NULL && tracing->state == state) {
        adopt(tracing);
        if (installed_here(PROFILE).object == NULL) {
            drop(tracing);
        }
    }
    return result;
}

int tracing_ready(void)
{
    tracing_follow = follow_all;
    tracing_gone = forget;
    return PyType_Ready(&Tracer_Type);
}
