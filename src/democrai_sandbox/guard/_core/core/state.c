/* Guard states, and how they are carried.
 *
 * Two carriers work together. The floor is thread-local, is stored in C and is set during a guarded call; it is
 * authoritative. The ContextVar carries the state into child tasks, handles and threads. The current state is the
 * value of the ContextVar if it descends from the floor, otherwise the floor. So an empty or foreign Context removes
 * no restriction, and two tasks on one loop never see each other's guard. */
#include "core/core.h"

Py_ssize_t live_states = 0;
PyObject *state_variable = NULL;
Policy *runtime_policy = NULL, *code_policy = NULL;

static FAST_THREAD_LOCAL State *thread_floor = NULL;
static FAST_THREAD_LOCAL void *thread_boundary = NULL; /* the frame from which the floor was entered */
static PyObject *clean_context;                        /* below */

/* ---- reports to the parts that follow the state in force ---------------------------------------- */

Py_ssize_t tracings = 0;
void (*tracing_follow)(void) = NULL;
void (*tracing_gone)(const State *state) = NULL;
int wakeup_lent = -1;
void (*wakeup_restore)(void) = NULL;

/* ---- states ---------------------------------------------------------------------------------------- */

State *floor_get(void)
{
    return thread_floor;
}

void floor_set(State *state)
{
    thread_floor = state;
}

void *boundary_get(void)
{
    return thread_boundary;
}

void boundary_set(void *frame)
{
    thread_boundary = frame;
}

State *state_new(State *parent, Policy *policy, Mode mode, bool allow_subprocess, PyObject *identity)
{
    State *state = PyObject_New(State, &State_Type);
    if (state == NULL) {
        return NULL;
    }
    live_states++;
    audit_hook_list_follow(true);
    PyObject **own[] = {&state->user, &state->organization, &state->session};
    PyObject *inherited[] = {parent ? parent->user : NULL, parent ? parent->organization : NULL,
                             parent ? parent->session : NULL};
    for (int i = 0; i < 3; i++) {
        PyObject *given = identity ? PyTuple_GET_ITEM(identity, i) : Py_None;
        /* who asks comes from the runtime: a context that guarded code opens keeps the identity it is in */
        bool keep = parent != NULL && (given == Py_None || mode == MODE_NARROW);
        *own[i] = Py_NewRef(keep ? inherited[i] : given);
    }
    state->parent = (State *)Py_XNewRef(parent);
    state->policy = (Policy *)Py_XNewRef(policy);
    state->mode = mode;
    state->allow_subprocess = allow_subprocess;
    static uint64_t serials = 0;
    state->view = state->dialled = NULL;
    state->entering = NULL;
    state->guest = NULL;
    state->served = parent != NULL && parent->mode != MODE_BYPASS ? Py_XNewRef(parent->served) : served_save();
    state->generation = 0;
    state->serial = ++serials;
    state->decisions = PyDict_New();
    if (state->decisions == NULL) {
        Py_DECREF(state);
        return NULL;
    }
    PyObject_GC_UnTrack(state->decisions); /* not to be found through gc */
    return state;
}

static void state_dealloc(PyObject *self)
{
    State *state = (State *)self;
    resident_gone(state);
    if (UNLIKELY(tracings > 0)) {
        tracing_gone(state);
    }
    live_states--;
    audit_hook_list_follow(live_states > 0);
    if (live_states == 0) {
        Py_CLEAR(clean_context);
        bytecode_forget();
    }
    Py_XDECREF(state->parent);
    Py_XDECREF(state->policy);
    Py_XDECREF(state->user);
    Py_XDECREF(state->organization);
    Py_XDECREF(state->session);
    Py_XDECREF(state->decisions);
    Py_XDECREF(state->view);
    Py_XDECREF(state->dialled);
    Py_XDECREF(state->served);
    Py_XDECREF(state->guest);
    PyObject_Free(self);
}

PyTypeObject State_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "democrai_sandbox.guard._core.State",
    .tp_basicsize = sizeof(State),
    .tp_dealloc = state_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
};

bool state_descends(const State *state, const State *ancestor)
{
    for (; state != NULL; state = state->parent) {
        if (state == ancestor) {
            return true;
        }
    }
    return false;
}

static State *carried(void)
{
    PyObject *value = NULL;
    if (PyContextVar_Get(state_variable, NULL, &value) < 0) {
        PyErr_Clear(); /* cannot happen for a live variable; the floor still holds */
        return NULL;
    }
    Py_XDECREF(value); /* the current context keeps it alive */
    return value != NULL && Py_IS_TYPE(value, &State_Type) ? (State *)value : NULL;
}

/* The state that was entered or is carried here, independent of the owner of the running code. */
static State *entered_state(void)
{
    State *floor = thread_floor;
    State *state = carried();
    if (floor == NULL || state == floor) {
        return state;
    }
    return state != NULL && state_descends(state, floor) ? state : floor;
}

/* Whether files, imports and processes are unrestricted here: then the owner of the running code matters. */
static bool is_open(const State *state)
{
    return state == NULL || state->mode == MODE_BYPASS || state_guards_network_only(state);
}

/* Guest states, kept for the next call of new_guest(). Callers hold them without a reference while other code runs. So
 * a guest is freed only when its enclosing state has no other reference, and is therefore not in force. */
typedef struct Guest {
    State *state;
    struct Guest *next;
} Guest;
static Guest *guests = NULL;

static State *find_guest(const State *around, const Policy *policy)
{
    for (const Guest *guest = guests; guest != NULL; guest = guest->next) {
        if (guest->state->parent == around && guest->state->policy == policy) {
            return guest->state;
        }
    }
    return NULL;
}

static void drop_guests(void)
{
    for (Guest **at = &guests; *at != NULL;) {
        Guest *guest = *at;
        if (Py_REFCNT(guest->state) > 1 || Py_REFCNT(guest->state->parent) > 1) {
            at = &guest->next;
            continue;
        }
        *at = guest->next;
        Py_DECREF(guest->state);
        PyMem_Free(guest);
        at = &guests; /* letting go may have run code that made others */
    }
}

/* Borrowed; NULL without an exception if memory runs out. */
static State *new_guest(State *around, Policy *policy)
{
    drop_guests();
    Guest *guest = PyMem_Malloc(sizeof *guest);
    State *state = guest ? state_new(around, policy, MODE_NARROW, false, NULL) : NULL;
    if (state == NULL) {
        PyErr_Clear();
        PyMem_Free(guest);
        return NULL;
    }
    *guest = (Guest){state, guests};
    guests = guest;
    return state;
}

/* Code of one subject that runs under the guard of another subject, which did not call it through an entrance: it was
 * stored in a module or object of that subject. It gets the common rights of both. */
static State *among_others(State *state)
{
    State *found = resident_running(state, thread_boundary);
    if (LIKELY(found == NULL) || state_has_subject(state, found->policy) || state_has_guest(state, found->policy)) {
        return state;
    }
    State *guest = find_guest(state, found->policy);
    guest = guest ? guest : new_guest(state, found->policy);
    return guest ? guest : found; /* only its own rights then */
}

State *state_current(void)
{
    if (LIKELY(live_states == 0)) {
        return NULL;
    }
    State *state = entered_state();
    if (LIKELY(residents == 0)) {
        return state;
    }
    if (!is_open(state)) {
        return among_others(state);
    }
    State *resident = resident_running(state, thread_boundary);
    return resident ? resident : state;
}

State *state_guarding(void)
{
    State *state = state_current();
    return state == NULL || state->mode == MODE_BYPASS ? NULL : state;
}

State *state_of_context(PyObject *context)
{
    int has = PySequence_Contains(context, state_variable);
    if (has <= 0) {
        PyErr_Clear();
        return NULL;
    }
    PyObject *value = PyObject_GetItem(context, state_variable);
    if (value == NULL) {
        PyErr_Clear();
        return NULL;
    }
    Py_DECREF(value);
    return Py_IS_TYPE(value, &State_Type) ? (State *)value : NULL;
}

/* ---- a context known to carry nothing --------------------------------------------------------- */

static PyObject *clean_context = NULL; /* kept, so that its address is not reused; released with the last guard */
static uint64_t clean_since = 0, states_carried = 0;

/* Whether the current context is known to carry no state. A loop runs every step of every task from the same context,
 * and a lookup each time would be most of the cost of a step. Only carry() adds a state to an existing context. */
bool context_is_clean(void)
{
    return clean_context != NULL && PyThreadState_Get()->context == clean_context && clean_since == states_carried;
}

void context_found_clean(void)
{
    PyObject *context = PyThreadState_Get()->context;
    if (context != NULL) {
        Py_XSETREF(clean_context, Py_NewRef(context));
        clean_since = states_carried;
    }
}

static int carry(PyObject *value)
{
    states_carried += value != Py_None;
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    if (variable_put(state_variable, value) < 0) { /* a token left behind could reset the variable */
        Py_XDECREF(type);
        Py_XDECREF(error);
        Py_XDECREF(trace);
        return -1;
    }
    PyErr_Restore(type, error, trace);
    return 0;
}

/* Whether the current context carries this value already. */
static bool is_carried(PyObject *value)
{
    PyObject *present = NULL;
    if (PyContextVar_Get(state_variable, Py_None, &present) < 0) {
        PyErr_Clear();
    }
    Py_XDECREF(present);
    return present == value;
}

/* NULL enters "no guard": a job of unguarded code on a thread that guarded code started. */
int state_enter(State *state, Entered *entered)
{
    PyObject *value = state ? (PyObject *)state : Py_None;
    entered->floor = thread_floor;
    entered->boundary = thread_boundary;
    entered->previous = NULL;
    if (PyContextVar_Get(state_variable, Py_None, &entered->previous) < 0) {
        return -1;
    }
    entered->stays = entered->previous == value; /* a callback of the subject whose code runs: the usual case */
    if (!entered->stays && carry(value) < 0) {
        Py_CLEAR(entered->previous);
        return -1;
    }
    Py_XINCREF(state);
    thread_floor = state;
    thread_boundary = frame_here();
    if (UNLIKELY(tracings > 0)) {
        tracing_follow();
    }
    return 0;
}

/* Without memory, the state in the context cannot be replaced. Then it gets no more rights than its parent. */
static void narrow(State *state)
{
    State *around = state ? state->parent : NULL;
    if (around == NULL || around->mode == MODE_BYPASS) {
        return; /* nothing restricted the caller */
    }
    if (state->mode == MODE_BYPASS) {
        Py_XSETREF(state->policy, (Policy *)Py_NewRef(around->policy));
    }
    state->mode = MODE_NARROW;
    state->allow_subprocess = state->allow_subprocess && around->allow_subprocess;
    PyDict_Clear(state->decisions);
    Py_CLEAR(state->dialled);
    Py_CLEAR(state->view);
}

void state_leave(Entered *entered)
{
    State *left = thread_floor;
    PyObject *type, *error, *trace;
    thread_floor = entered->floor;
    thread_boundary = entered->boundary;
    PyErr_Fetch(&type, &error, &trace);
    if (!(entered->stays && is_carried(entered->previous)) && carry(entered->previous) < 0) {
        narrow(left);
        PyErr_WriteUnraisable(NULL);
    }
    PyErr_Restore(type, error, trace);
    Py_CLEAR(entered->previous);
    if (UNLIKELY(tracings > 0)) {
        tracing_follow();
    }
    if (UNLIKELY(wakeup_lent >= 0) && thread_floor == NULL) {
        wakeup_restore();
    }
    Py_XDECREF(left);
}

bool state_has_policy(const State *state, uint64_t policy_id)
{
    for (; state != NULL && state->mode != MODE_BYPASS; state = state->parent) {
        if (state->policy->id == policy_id) {
            return true;
        }
        if (state->mode == MODE_EXACT) {
            return false;
        }
    }
    return false;
}

/* Whether a subject is in the chain, in any phase or activation. */
bool state_has_subject(const State *state, const Policy *policy)
{
    for (; state != NULL && state->mode != MODE_BYPASS; state = state->parent) {
        const Policy *own = state->policy;
        if (own == policy || (PyUnicode_Compare(own->subject, policy->subject) == 0 &&
                              PyUnicode_Compare(own->kind, policy->kind) == 0)) {
            return true;
        }
    }
    return false;
}

/* Whether code of a subject was called through its entrance, to run under the enclosing state. */
bool state_has_guest(const State *state, const Policy *policy)
{
    for (; state != NULL && state->mode != MODE_BYPASS; state = state->parent) {
        if (state->guest == policy) {
            return true;
        }
    }
    return false;
}

static int append_label(PyObject *chain, PyObject *label)
{
    Py_ssize_t size = PyList_GET_SIZE(chain);
    if (label == NULL) {
        return -1;
    }
    if (size > 0 && PyUnicode_Compare(PyList_GET_ITEM(chain, size - 1), label) == 0) {
        return 0;
    }
    return PyList_Append(chain, label);
}

static int append_labels(PyObject *chain, const State *state)
{
    if (state == NULL) {
        return 0;
    }
    if (append_labels(chain, state->parent) < 0) {
        return -1;
    }
    if (state->mode == MODE_BYPASS || state->mode == MODE_NARROW) {
        return 0; /* neither is a separate actor */
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(state->policy->ancestors); i++) {
        if (append_label(chain, PyTuple_GET_ITEM(state->policy->ancestors, i)) < 0) {
            return -1;
        }
    }
    PyObject *label = PyUnicode_FromFormat("%U:%U", state->policy->kind, state->policy->subject);
    int result = append_label(chain, label);
    Py_XDECREF(label);
    return result;
}

/* ("module:reports", "tool:search"): the nested subjects from the outermost. */
PyObject *state_chain(const State *state)
{
    PyObject *list = PyList_New(0), *chain = NULL;
    if (list != NULL && append_labels(list, state) == 0) {
        chain = PyList_AsTuple(list);
    }
    Py_XDECREF(list);
    return chain;
}

/* (kind, name, declared, mode) of each actor from the outermost. */
static PyObject *view_links(const State *state)
{
    PyObject *links = PyList_New(0), *tuple = NULL;
    for (; links != NULL && state != NULL; state = state->parent) {
        if (state->mode == MODE_BYPASS || state->mode == MODE_NARROW) {
            continue;
        }
        PyObject *link = Py_BuildValue("(OOOi)", state->policy->kind, state->policy->subject, state->policy->declared,
                                       (int)state->mode);
        if (link == NULL || PyList_Append(links, link) < 0) {
            Py_CLEAR(links);
        }
        Py_XDECREF(link);
    }
    if (links != NULL && PyList_Reverse(links) == 0) {
        tuple = PyList_AsTuple(links);
    }
    Py_XDECREF(links);
    return tuple;
}

/* Whether guarded code has opened a context, which gives it less than its declarations. */
static bool is_narrowed(const State *state)
{
    for (; state != NULL && state->mode != MODE_BYPASS; state = state->parent) {
        if (state->mode == MODE_NARROW) {
            return true;
        }
    }
    return false;
}

/* The public function that opened the guard of the innermost actor. Borrowed. */
static PyObject *opened_by(const State *state)
{
    while (state->parent != NULL && (state->mode == MODE_BYPASS || state->mode == MODE_NARROW)) {
        state = state->parent;
    }
    return state->policy ? state->policy->opened_by : Py_None;
}

/* The values that the Python side gets: immutable, made once for each state. */
PyObject *state_view(State *state)
{
    if (state->view == NULL) {
        PyObject *links = view_links(state), *chain = links ? state_chain(state) : NULL;
        PyObject *imports = state->policy ? state->policy->imports : Py_None;
        if (chain != NULL) {
            state->view = Py_BuildValue("(OOOOOOOOO)", links, chain, state->user, state->organization, state->session,
                                        state->allow_subprocess ? Py_True : Py_False, imports,
                                        is_narrowed(state) ? Py_True : Py_False, opened_by(state));
        }
        Py_XDECREF(links);
        Py_XDECREF(chain);
    }
    return Py_XNewRef(state->view);
}

int state_ready(void)
{
    if (PyType_Ready(&Policy_Type) < 0 || PyType_Ready(&State_Type) < 0) {
        return -1;
    }
    state_variable = PyContextVar_New("democrai_sandbox_guard", NULL);
    return state_variable == NULL ? -1 : 0;
}
