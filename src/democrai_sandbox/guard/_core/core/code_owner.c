/* Ownership of code: code objects that belong to a subject are guarded wherever they run.
 *
 * A subject can leave functions behind that the host calls later: a hook, a log handler, a replaced method. No guard
 * is active then, or only a bypass in which the host works for another subject. Therefore code that was loaded for a
 * subject carries a mark. Where no guard restricts an operation, the Python frames that led to it are searched, and
 * the innermost marked frame decides under which state the operation runs. Only frames newer than the entry of the
 * current state count, because that state already covers the older ones.
 *
 * The mark is a state of the subject's policy in the extra slot of the code object. Python code cannot reach it,
 * copies of the code do not have it, and it is freed with the code. While no marked code exists, no frames are
 * searched. */
#define Py_BUILD_CORE 1
#include "core/core.h"

#include <dlfcn.h>
#include <internal/pycore_frame.h>
#include <string.h>

#if PY_VERSION_HEX < 0x030C0000
#define REQUEST_EXTRA _PyEval_RequestCodeExtraIndex
#define GET_EXTRA _PyCode_GetExtra
#define SET_EXTRA _PyCode_SetExtra
#else
#define REQUEST_EXTRA PyUnstable_Eval_RequestCodeExtraIndex
#define GET_EXTRA PyUnstable_Code_GetExtra
#define SET_EXTRA PyUnstable_Code_SetExtra
#endif

typedef struct _PyInterpreterFrame Frame;

Py_ssize_t residents = 0;
static Py_ssize_t extra = -1;                  /* our place among the extras of a code object */
static PyInterpreterState *interpreter = NULL; /* in which it is ours; another one numbers its own */

/* ---- frames ------------------------------------------------------------------------------------ */

/* Creates no frame objects, because the frames are walked for every file operation of the host. */
static inline Frame *innermost(const PyThreadState *thread)
{
#if PY_VERSION_HEX < 0x030D0000
    return thread->cframe->current_frame;
#else
    return thread->current_frame;
#endif
}

/* NULL for a frame that only marks where C code has called into the interpreter. */
static inline PyCodeObject *code_of(const Frame *frame)
{
#if PY_VERSION_HEX < 0x030C0000
    return frame->f_code;
#elif PY_VERSION_HEX < 0x030D0000
    return frame->owner == FRAME_OWNED_BY_CSTACK ? NULL : frame->f_code;
#else
    return frame->owner == FRAME_OWNED_BY_CSTACK ? NULL : (PyCodeObject *)frame->f_executable;
#endif
}

void *frame_here(void)
{
    return innermost(PyThreadState_Get());
}

/* ---- code of the sandbox, and code that is hidden from a subject --------------------------------- */

static char package[PATH_MAX] = ""; /* ".../democrai_sandbox/" */

static void find_package(void)
{
    Dl_info info;
    if (dladdr((void *)&find_package, &info) == 0 || info.dli_fname == NULL || strlen(info.dli_fname) >= PATH_MAX) {
        return;
    }
    strcpy(package, info.dli_fname);
    for (int i = 0; i < 2 && package[0] != '\0'; i++) { /* the file, and the folder of the guard */
        char *cut = strrchr(package, '/');
        *(cut ? cut : package) = '\0';
    }
    strcat(package, "/");
}

static bool is_library_file(State *state, const char *file)
{
    char path[PATH_MAX];
    if (file[0] == '<') {
        return true; /* frozen modules, and code that a library made of a text */
    }
    if (file[0] != '/' || strlen(file) >= PATH_MAX || path_normalise(file, path) < 0) {
        return false;
    }
    PathKey key;
    path_key(&key, path);
    return state_mask(state, &key) & FLAG_CODE;
}

bool code_is_ours(PyCodeObject *code)
{
    const char *file = PyUnicode_AsUTF8(code->co_filename);
    PyErr_Clear();
    return file != NULL && package[0] != '\0' && strncmp(file, package, strlen(package)) == 0;
}

/* Whether the variables of this code are hidden from the subject. */
bool code_is_hidden(State *state, PyCodeObject *code)
{
    const Policy *owner = resident_owner(code);
    if (owner != NULL) {
        return !state_has_subject(state, owner);
    }
    const char *file = PyUnicode_AsUTF8(code->co_filename);
    if (file == NULL) {
        PyErr_Clear();
        return true;
    }
    if (code_is_ours(code)) {
        return true;
    }
    /* without code that is known to be a subject's, the rest may be the subject's as well as the host's */
    return residents > 0 && !is_library_file(state, file);
}

/* ---- frames of a subject ---------------------------------------------------------------------- */

/* Whether a frame works for the running code: it is on this stack, above the entry of the guard and above all frames of
 * the sandbox. */
bool frame_works_here(const PyFrameObject *frame)
{
    const void *boundary = boundary_get();
    const Frame *inner = innermost(PyThreadState_Get());
    for (; inner != NULL && inner != boundary; inner = inner->previous) {
        PyCodeObject *code = code_of(inner);
        if (code != NULL && inner == frame->f_frame) {
            return true;
        }
        if (code != NULL && code_is_ours(code)) {
            return false;
        }
    }
    return false;
}

/* Whether a frame (NULL: the innermost) is the subject's, or belongs to a library that the subject called. If a frame
 * of the sandbox or the host lies in between, it called the library for itself. The frame that entered the guard is the
 * subject's inside its with statement. */
bool frame_is_for(State *state, const PyFrameObject *frame)
{
    const Frame *first = frame ? frame->f_frame : innermost(PyThreadState_Get());
    const void *boundary = boundary_get();
    for (const Frame *inner = first; inner != NULL; inner = inner->previous) {
        PyCodeObject *code = code_of(inner);
        const Policy *owner = code ? resident_owner(code) : NULL;
        if (owner != NULL) {
            return state_has_subject(state, owner);
        }
        if (code != NULL && code_is_ours(code)) {
            return false;
        }
        if (inner == boundary) {
            return inner != first || (state->entering != NULL && state->entering->f_frame == inner);
        }
        if (code != NULL && code_is_hidden(state, code)) {
            return false;
        }
    }
    return boundary == NULL; /* the whole thread is the subject's */
}

/* Whether the layout of frames is as compiled: each frame of the public list must be found, in order. */
static bool frames_fit(void)
{
    const Frame *inner = innermost(PyThreadState_Get());
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    bool fit = true;
    while (frame != NULL && fit) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        while (inner != NULL && (code_of(inner) == NULL || inner->frame_obj != frame)) {
            inner = inner->previous;
        }
        fit = inner != NULL && code_of(inner) == code && frame->f_frame == inner;
        Py_DECREF(code);
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    return fit;
}

/* ---- marks ------------------------------------------------------------------------------------- */

static void drop_mark(void *mark)
{
    Py_XDECREF((PyObject *)mark);
}

static inline State *mark_of(PyCodeObject *code)
{
    void *mark = NULL;
    if (LIKELY(code->co_extra == NULL)) {
        return NULL;
    }
    return GET_EXTRA((PyObject *)code, extra, &mark) < 0 ? NULL : (State *)mark;
}

static int mark(PyObject *object, State *resident);

static int mark_items(PyObject *items, State *resident)
{
    PyObject *iterator = PyObject_GetIter(items), *item;
    int result = iterator ? 0 : -1;
    while (result == 0 && (item = PyIter_Next(iterator)) != NULL) {
        result = mark(item, resident);
        Py_DECREF(item);
    }
    Py_XDECREF(iterator);
    return result < 0 || PyErr_Occurred() ? -1 : 0;
}

static int mark_code(PyCodeObject *code, State *resident)
{
    if (mark_of(code) != NULL) {
        return 0; /* the first owner stays */
    }
    if (SET_EXTRA((PyObject *)code, extra, Py_NewRef(resident)) < 0) {
        Py_DECREF(resident);
        return -1;
    }
    return mark_items(code->co_consts, resident);
}

/* Marks code and all code inside it. marshal returns code in containers too. */
static int mark(PyObject *object, State *resident)
{
    int result = 0;
    if (Py_EnterRecursiveCall(" in marking code")) {
        return -1;
    }
    if (PyCode_Check(object)) {
        result = mark_code((PyCodeObject *)object, resident);
    }
    else if (PyTuple_CheckExact(object) || PyList_CheckExact(object) || PyAnySet_CheckExact(object)) {
        result = mark_items(object, resident);
    }
    else if (PyDict_CheckExact(object)) {
        PyObject *values = PyDict_Values(object);
        result = values && mark_items(object, resident) == 0 ? mark_items(values, resident) : -1;
        Py_XDECREF(values);
    }
    Py_LeaveRecursiveCall();
    return result;
}

/* The state of marked code: the subject's own declarations, without a user. One for each policy. */
static State *resident_of(Policy *policy)
{
    if (policy->resident != NULL) {
        return (State *)Py_NewRef(policy->resident);
    }
    State *resident = state_new(NULL, policy, MODE_EXACT, policy->allow_subprocess, NULL);
    if (resident != NULL) {
        policy->resident = resident;
        residents++;
    }
    return resident;
}

/* Called when a state is freed. */
void resident_gone(State *state)
{
    if (state->policy != NULL && state->policy->resident == state) {
        state->policy->resident = NULL;
        residents--;
    }
}

/* The policy of the subject. Contexts that guarded code opened, and those for the network only, are skipped. */
Policy *state_subject(const State *state)
{
    while (state->parent != NULL && state->parent->mode != MODE_BYPASS &&
           (state->mode == MODE_NARROW || (state->mode == MODE_MERGE && state->policy->network_only))) {
        state = state->parent;
    }
    return state->policy;
}

static int mark_for(State *state, PyObject *object)
{
    State *resident = resident_of(state_subject(state));
    int result = resident ? mark(object, resident) : -1;
    Py_XDECREF(resident);
    return result;
}

/* ---- code that is made under a guard ------------------------------------------------------------ */

/* Whether this is the code of a library module: it names a file and equals its content. Library modules that are first
 * imported under a guard later serve the host. Text that a library compiles is the subject's, because the subject can
 * choose it by an argument or a value in the module. */
static bool is_library(PyObject *object)
{
    return PyCode_Check(object) && is_library_code(object);
}

/* Marks code that guarded code has compiled or unmarshalled as the subject's, if any marked code exists. A guard for
 * the network only is the host's, around its own code. */
int resident_claim(State *state, PyObject *made)
{
    return residents == 0 || state_guards_network_only(state) || is_library(made) ? 0 : mark_for(state, made);
}

/* The same for one code object that was compiled from a text, even if no marked code exists. */
int resident_take(State *state, PyObject *code)
{
    PyObject *file = ((PyCodeObject *)code)->co_filename;
    bool of_text = PyUnicode_GET_LENGTH(file) > 0 && PyUnicode_READ_CHAR(file, 0) == '<';
    return !of_text || resident_owner((PyCodeObject *)code) != NULL ? 0 : mark_for(state, code);
}

/* Marks the code of exec(text), which was made for this call only. Other code is marked already, or is the host's,
 * which must not be restricted. */
int resident_exec(State *state, PyObject *code)
{
    bool fresh = PyCode_Check(code) && Py_REFCNT(code) <= 2;
    return fresh ? resident_claim(state, code) : 0;
}

/* A copy of code has the owner of the original. A copy with another file name is the subject's, because the file name
 * gives rights. */
int resident_inherit(State *state, PyObject *code, PyObject *copy)
{
    State *resident = residents > 0 ? mark_of((PyCodeObject *)code) : NULL;
    if (!PyCode_Check(copy)) {
        return 0;
    }
    PyObject *before = ((PyCodeObject *)code)->co_filename, *after = ((PyCodeObject *)copy)->co_filename;
    if (resident == NULL && PyUnicode_Compare(before, after) != 0) {
        return resident_claim(state, copy);
    }
    return resident ? mark(copy, resident) : 0;
}

static bool is_running(PyObject *code)
{
    const Frame *frame = innermost(PyThreadState_Get());
    while (frame != NULL && (PyObject *)code_of(frame) != code) {
        frame = frame->previous;
    }
    return frame != NULL;
}

/* own_code(code): a loader calls it under the guard of the subject before it runs the subject's code. Subjects can call
 * it too; functions, and modules that run already, are rejected, because the call would restrict code of the host. */
PyObject *core_own_code(PyObject *module, PyObject *code)
{
    if (!PyCode_Check(code) || PyUnicode_CompareWithASCIIString(((PyCodeObject *)code)->co_name, "<module>") != 0 ||
        is_running(code)) {
        PyErr_SetString(PyExc_TypeError, "expected the code of a module, before it runs");
        return NULL;
    }
    State *state = state_guarding();
    return state != NULL && mark_for(state, code) < 0 ? NULL : Py_NewRef(Py_None);
}

/* ---- code that runs ----------------------------------------------------------------------------- */

/* The state of the subject whose code called, since the current state was entered. Borrowed; NULL without such code. */
State *resident_running(const State *state, const void *boundary)
{
    const PyThreadState *thread = PyThreadState_Get();
    if (thread->interp != interpreter) {
        return NULL;
    }
    const Frame *entering = state && state->entering ? state->entering->f_frame : NULL;
    const Frame *frame = innermost(thread);
    for (; frame != NULL && frame != boundary && frame != entering; frame = frame->previous) {
        PyCodeObject *code = code_of(frame);
        State *found = code ? mark_of(code) : NULL;
        if (UNLIKELY(found != NULL)) {
            return state != NULL && state_has_policy(state, found->policy->id) ? NULL : found;
        }
    }
    return NULL;
}

int code_owner_ready(void)
{
    find_package();
    interpreter = PyInterpreterState_Get();
    extra = REQUEST_EXTRA(drop_mark);
    if (extra < 0 || !frames_fit()) {
        PyErr_SetString(PyExc_ImportError, "code objects cannot be marked: the guard does not fit this interpreter");
        return -1;
    }
    return 0;
}

/* The policy of the subject that owns the code; NULL without an owner. Borrowed. */
const Policy *resident_owner(PyCodeObject *code)
{
    State *mark = extra < 0 ? NULL : mark_of(code);
    return mark ? mark->policy : NULL;
}
