/* Asks the decider, and keeps its answers for the activation that asked. */
#include "core/core.h"

#include <string.h>

PyObject *decider = NULL;
PyObject *check_failed = NULL; /* the class of "no decision could be had" */

enum { MOST_DECISIONS = 1024 };

static uint64_t generation = 0; /* moves when the host says that approvals have changed */

/* Raises check_failed with the current exception as its cause. */
void raise_check_failed(void)
{
    PyObject *type, *cause, *trace;
    PyErr_Fetch(&type, &cause, &trace);
    PyErr_NormalizeException(&type, &cause, &trace);
    /* The cause goes to guarded code: without its frames, from which a subject would walk into the service. */
    if (cause != NULL) {
        PyException_SetTraceback(cause, Py_None);
        PyException_SetContext(cause, NULL);
        PyException_SetCause(cause, NULL);
    }
    PyObject *class = check_failed;
    PyObject *error = class && PyObject_IsSubclass(cause ? (PyObject *)Py_TYPE(cause) : class, PyExc_Exception) == 1
                          ? PyObject_CallNoArgs(class)
                          : NULL;
    if (error == NULL) {
        Py_XDECREF(trace);
        PyErr_Restore(type, cause, NULL); /* KeyboardInterrupt and the like are not answers */
        return;
    }
    PyException_SetCause(error, cause);
    PyErr_SetObject(class, error);
    Py_DECREF(error);
    Py_XDECREF(type);
    Py_XDECREF(trace);
}

/* access_changed(): discards the kept answers of every activation. */
PyObject *access_changed(PyObject *module, PyObject *unused)
{
    State *state = state_guarding();
    if (state != NULL) {
        return deny_text(state, DENY_TAMPER, "access_changed");
    }
    generation++;
    Py_RETURN_NONE;
}

/* The state that stores the answers. A context that guarded code opened uses that of its parent. */
State *answering(State *state)
{
    while (state->mode == MODE_NARROW) {
        state = state->parent;
    }
    return state;
}

/* The answers of an activation, cleared when approvals have changed. Borrowed. */
PyObject *decisions_of(State *state)
{
    state = answering(state);
    if (state->generation != generation) {
        PyDict_Clear(state->decisions);
        state->generation = generation;
    }
    return state->decisions;
}

_Thread_local bool probing = false; /* what is asked about is a file that is only looked at: stat, access, readlink */
static bool tells_probes = false;

/* tell_probes(): from now on, probing a file and using it are separate questions. */
PyObject *core_tell_probes(PyObject *module, PyObject *unused)
{
    State *state = state_guarding();
    if (state != NULL) {
        return deny_text(state, DENY_TAMPER, "tell_probes");
    }
    tells_probes = true;
    Py_RETURN_NONE;
}

/* is_probe(): tells the decider whether the current question of this thread is a probe. */
PyObject *core_is_probe(PyObject *module, PyObject *unused)
{
    return PyBool_FromLong(probing);
}

/* Asks the decider. Only the decider runs outside the guard, so that the service can reach its store. */
static PyObject *ask(State *state, const Asked *asked)
{
    PyObject *question = question_new(state, asked);
    PyObject *args = question ? PyTuple_Pack(1, question) : NULL;
    PyObject *answer = args ? call_outside(state, decider, args) : NULL;
    if (answer == NULL && args != NULL) {
        raise_check_failed();
    }
    Py_XDECREF(question);
    Py_XDECREF(args);
    return answer;
}

/* Whether an answer allows: only an exact True or an allowing decision does. */
static int allows(PyObject *answer)
{
    if (decision_type == NULL || (PyObject *)Py_TYPE(answer) != decision_type) {
        return answer == Py_True;
    }
    PyObject *allowed = PyObject_GetAttrString(answer, "allowed");
    int result = allowed ? allowed == Py_True : -1;
    Py_XDECREF(allowed);
    return result;
}

/* Whether the decider cannot be asked: none is set, or code that a subject left behind runs while the host works
 * outside a guard. That code may run inside the decider, which would then ask itself forever. */
static bool nobody_to_ask(State *state)
{
    if (decider == NULL || decider == Py_None) {
        return true;
    }
    State *asking = outside_is_running() ? answering(state) : NULL;
    return asking != NULL && asking->policy != NULL && asking->policy->resident == asking;
}

static PyObject *key_of(const char *resource, const char *operation, PyObject *target)
{
    char kind = tells_probes && probing ? 'l' : resource[0];
    return PyUnicode_FromFormat("%c:%s:%U", kind, operation, target);
}

static int keep(PyObject *decisions, PyObject *key, PyObject *said)
{
    if (PyDict_GET_SIZE(decisions) >= MOST_DECISIONS) {
        PyDict_Clear(decisions); /* a subject chooses what it asks for */
    }
    return PyDict_SetItem(decisions, key, said);
}

/* After an explicit question, the operation itself usually follows. A refusal is kept, so that the operation is not
 * asked for and counted again. An approval is not kept, and removes a kept refusal. */
static int keep_no(State *state, const Asked *asked, PyObject *place, PyObject *said, bool fresh)
{
    PyObject *decisions = decisions_of(state), *key = key_of(asked->resource, asked->operation, place);
    int allowed = key ? allows(said) : -1, result = allowed < 0 ? -1 : 0;
    if (allowed == 0 && asked->registers && fresh) {
        result = keep(decisions, key, said);
    }
    else if (allowed == 1 && PyDict_GetItemWithError(decisions, key) != NULL) {
        result = PyDict_DelItem(decisions, key);
    }
    Py_XDECREF(key);
    return result < 0 || PyErr_Occurred() ? -1 : 0;
}

/* An explicit question of the subject always goes to the decider: the subject may ask again to see whether a decision
 * was made. `place` is the target as the guard itself would ask for it; NULL if it never asks for it. */
PyObject *decision_explicit(State *state, const Asked *asked, PyObject *place)
{
    if (nobody_to_ask(state)) {
        return Py_NewRef(Py_False);
    }
    uint64_t begun = generation;
    PyObject *said = ask(answering(state), asked);
    if (said != NULL && place != NULL && keep_no(state, asked, place, said, begun == generation) < 0) {
        Py_CLEAR(said);
    }
    return said;
}

/* 1 when approved, 0 when not, -1 when the check itself failed. Asks at most once per activation. `*answer`, if not
 * NULL, gets the answer of the decider (new reference, or NULL). */
int approved(State *state, const char *resource, const char *operation, PyObject *target, bool registers,
             PyObject **answer)
{
    if (nobody_to_ask(state)) {
        return 0;
    }
    PyObject *decisions = decisions_of(state);
    uint64_t asked = generation;
    PyObject *key = key_of(resource, operation, target);
    PyObject *said = key ? Py_XNewRef(PyDict_GetItemWithError(decisions, key)) : NULL;
    if (key != NULL && said == NULL && !PyErr_Occurred()) {
        said = ask(answering(state), &(Asked){resource, operation, target, registers, NULL, NULL});
        /* an approval that came while the decider was thinking is asked for again next time */
        if (said != NULL && asked == generation && keep(decisions, key, said) < 0) {
            Py_CLEAR(said);
        }
    }
    Py_XDECREF(key);
    int result = said ? allows(said) : -1;
    if (answer != NULL) {
        *answer = said;
    }
    else {
        Py_XDECREF(said);
    }
    return result;
}
