/* Doors and entrances: functions of the host, and of other subjects, that guarded code may call.
 *
 * A Door calls a function of the host outside the guard, and passes it the caller's identity from guard state. An
 * Entrance calls a function of a subject under that subject's own policy, inside the restrictions of the caller. The
 * host makes both. They store their function where guarded code cannot replace it. */
#include "edge/edge.h"

typedef struct {
    PyObject_HEAD vectorcallfunc call;
    PyObject *function;
    Policy *policy; /* of an entrance */
    Policy *guest;  /* owner of the called code, if known */
    Mode mode;
} Passage;

static Passage *passage_new(PyTypeObject *type, vectorcallfunc call, PyObject *function)
{
    State *state = state_guarding();
    if (state != NULL) {
        return deny_text(state, DENY_TAMPER, type == &Door_Type ? "door" : "entrance");
    }
    if (!PyFunction_Check(function) && !PyMethod_Check(function)) {
        PyErr_Format(PyExc_TypeError, "expected a function, got %s", Py_TYPE(function)->tp_name);
        return NULL;
    }
    Passage *passage = PyObject_New(Passage, type);
    if (passage != NULL) {
        passage->call = call;
        passage->function = Py_NewRef(function);
        passage->policy = passage->guest = NULL;
        passage->mode = MODE_MERGE;
    }
    return passage;
}

static void passage_dealloc(PyObject *self)
{
    Py_XDECREF(((Passage *)self)->function);
    Py_XDECREF(((Passage *)self)->policy);
    Py_XDECREF(((Passage *)self)->guest);
    PyObject_Free(self);
}

/* ---- doors ------------------------------------------------------------------------------------- */

/* (view, *arguments), copied, so that no code of the caller runs outside the guard. A function is passed as it is. */
static PyObject *plain_arguments(State *state, PyObject *const *args, Py_ssize_t count)
{
    PyObject *all = PyTuple_New(count + 1);
    PyObject *view = all ? state ? state_view(state) : Py_NewRef(Py_None) : NULL;
    if (view == NULL) {
        Py_XDECREF(all);
        return NULL;
    }
    PyTuple_SET_ITEM(all, 0, view);
    for (Py_ssize_t i = 0; i < count; i++) {
        bool as_it_is = state == NULL || Py_IS_TYPE(args[i], &PyFunction_Type);
        PyObject *copy = as_it_is ? Py_NewRef(args[i]) : plain_copy(args[i], false);
        if (copy == NULL) {
            Py_DECREF(all);
            return NULL;
        }
        PyTuple_SET_ITEM(all, i + 1, copy);
    }
    return all;
}

/* Removes the traceback: frames of the host hold its objects. */
static void forget_frames(void)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value != NULL && PyExceptionInstance_Check(value)) {
        PyException_SetTraceback(value, Py_None);
        PyException_SetContext(value, NULL);
        PyException_SetCause(value, NULL);
    }
    Py_XDECREF(trace);
    PyErr_Restore(type, value, NULL);
}

static PyObject *door_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (kwnames != NULL && PyTuple_GET_SIZE(kwnames) > 0) {
        PyErr_SetString(PyExc_TypeError, "a door takes positional arguments only");
        return NULL;
    }
    State *state = (State *)Py_XNewRef(state_guarding());
    PyObject *all = plain_arguments(state, args, PyVectorcall_NARGS(nargsf)), *result = NULL;
    if (all != NULL && state == NULL) {
        result = PyObject_Call(((Passage *)self)->function, all, NULL);
    }
    else if (all != NULL) {
        result = call_outside(state, ((Passage *)self)->function, all);
        if (result == NULL) {
            forget_frames();
        }
    }
    Py_XDECREF(all);
    Py_XDECREF(state);
    return result;
}

PyObject *core_door(PyObject *module, PyObject *function)
{
    return (PyObject *)passage_new(&Door_Type, door_call, function);
}

/* ---- entrances --------------------------------------------------------------------------------- */

static PyObject *entrance_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Passage *passage = (Passage *)self;
    if (UNLIKELY(!sealed || modules_changed()) && guard_prepare() < 0) {
        return NULL;
    }
    bool children = passage->policy->allow_subprocess;
    State *state = state_new(state_current(), passage->policy, passage->mode, children, NULL);
    Entered entered;
    PyObject *result = NULL;
    if (state != NULL) {
        state->guest = (Policy *)Py_XNewRef(passage->guest);
    }
    if (state != NULL && state_enter(state, &entered) == 0) {
        PyObject *served = served_save();
        result = PyObject_Vectorcall(passage->function, args, nargsf, kwnames);
        state_leave(&entered);
        served_restore(served);
        result = guarded_result(state, result);
        if (steps_isolate(result) < 0) {
            Py_CLEAR(result);
        }
    }
    Py_XDECREF(state);
    return result;
}

/* entrance(policy, function, exact, whose): `whose` is the function that it finally calls, or None. */
PyObject *core_entrance(PyObject *module, PyObject *args)
{
    PyObject *policy, *function, *whose;
    int exact;
    if (!PyArg_ParseTuple(args, "O!OpO", &Policy_Type, &policy, &function, &exact, &whose)) {
        return NULL;
    }
    Passage *passage = passage_new(&Entrance_Type, entrance_call, function);
    if (passage != NULL) {
        passage->policy = (Policy *)Py_NewRef(policy);
        passage->mode = exact ? MODE_EXACT : MODE_MERGE;
        const Policy *owner =
            PyFunction_Check(whose) ? resident_owner((PyCodeObject *)PyFunction_GET_CODE(whose)) : NULL;
        passage->guest = (Policy *)Py_XNewRef((PyObject *)owner);
    }
    return (PyObject *)passage;
}

/* ---- types ------------------------------------------------------------------------------------- */

#define PASSAGE_FLAGS                                                                                                  \
    (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE)

PyTypeObject Door_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "democrai_sandbox.guard._core.Door",
    .tp_doc = "A function of the host's that guarded code may call with plain data; it runs outside the guard.",
    .tp_basicsize = sizeof(Passage),
    .tp_dealloc = passage_dealloc,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Passage, call),
    .tp_flags = PASSAGE_FLAGS,
};

PyTypeObject Entrance_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "democrai_sandbox.guard._core.Entrance",
    .tp_doc = "A function of a subject that runs under that subject's declarations, for every caller.",
    .tp_basicsize = sizeof(Passage),
    .tp_dealloc = passage_dealloc,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Passage, call),
    .tp_flags = PASSAGE_FLAGS,
};

int crossing_ready(void)
{
    return PyType_Ready(&Door_Type) < 0 || PyType_Ready(&Entrance_Type) < 0 ? -1 : 0;
}
