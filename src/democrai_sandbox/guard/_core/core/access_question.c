/* The question for the decider. It is built from guard state only, so guarded code cannot change who asks. */
#include "core/core.h"

#include <structseq.h>

enum { FIELDS = 12 };

static PyStructSequence_Field fields[] = {
    {"subject", "name of the innermost subject"},
    {"subject_kind", "its kind"},
    {"subject_chain", "the nested subjects as kind:name, outermost first"},
    {"resource_type", "filesystem or network"},
    {"operation", "the operation that no rule allows"},
    {"target", "the resolved path, or the target"},
    {"register_request", "whether a pending request may be registered; never for file probes"},
    {"user_id", "who the request is for"},
    {"organization_id", NULL},
    {"session_key", NULL},
    {"resume_action",
     "what the subject wants to go on with after an approval; empty for what the guard asks by itself"},
    {"resume_context", "JSON text for it, or None"},
    {NULL},
};

static PyStructSequence_Desc description = {
    .name = "democrai_sandbox.guard._core.AccessQuestion",
    .doc = "May this subject do this? Who asks comes from the guard's state, never from the code that is guarded.",
    .fields = fields,
    .n_in_sequence = FIELDS,
};

static PyTypeObject *question_type = NULL;

static const State *actor_of(const State *state)
{
    while (state->mode == MODE_NARROW || state->mode == MODE_BYPASS) {
        state = state->parent;
    }
    return state;
}

PyObject *question_new(State *state, const Asked *asked)
{
    const State *actor = actor_of(state);
    PyObject *values[] = {
        Py_NewRef(actor->policy->subject),
        Py_NewRef(actor->policy->kind),
        state_chain(state),
        PyUnicode_FromString(asked->resource),
        PyUnicode_FromString(asked->operation),
        Py_NewRef(asked->target),
        PyBool_FromLong(asked->registers),
        Py_NewRef(state->user),
        Py_NewRef(state->organization),
        Py_NewRef(state->session),
        PyUnicode_FromString(asked->action ? asked->action : ""),
        Py_NewRef(asked->context ? asked->context : Py_None),
    };
    PyObject *question = PyStructSequence_New(question_type);
    for (int i = 0; i < FIELDS; i++) {
        if (question == NULL || values[i] == NULL) {
            Py_XDECREF(values[i]);
            Py_CLEAR(question);
        }
        else {
            PyStructSequence_SetItem(question, i, values[i]);
        }
    }
    return question;
}

int access_question_ready(PyObject *module)
{
    question_type = PyStructSequence_NewType(&description);
    return question_type ? PyModule_AddObjectRef(module, "AccessQuestion", (PyObject *)question_type) : -1;
}
