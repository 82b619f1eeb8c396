/* Candidate policies. The policy of a subject can have a candidate that is tried beside it; see shadow.c. */
#include "core/core.h"

Py_ssize_t candidates_held = 0;
bool by_candidate = false; /* the matchers look at candidates; only while the GIL is held and nothing of Python runs */

static PyObject *candidates = NULL; /* "kind:name" -> Policy; out of reach of guarded code */
static uint64_t generation = 1;

static const Policy *find(const Policy *policy)
{
    PyObject *label = PyUnicode_FromFormat("%U:%U", policy->kind, policy->subject);
    PyObject *found = label ? PyDict_GetItemWithError(candidates, label) : NULL;
    Py_XDECREF(label);
    PyErr_Clear();
    return (const Policy *)found;
}

/* The candidate of a subject, or its current policy. A context that guarded code opened has no candidate, because the
 * code can give it any name. */
const Policy *candidate_of(const State *state)
{
    Policy *policy = state->policy;
    if (state->mode == MODE_NARROW || policy->network_only) {
        return policy;
    }
    if (policy->candidate_generation != generation) {
        policy->candidate = find(policy);
        policy->candidate_generation = generation;
    }
    return policy->candidate ? policy->candidate : policy;
}

/* Sets the candidate of a subject, or removes it when `policy` is NULL. */
int candidate_set(PyObject *label, PyObject *policy)
{
    if (candidates == NULL) {
        candidates = PyDict_New();
        if (candidates == NULL) {
            return -1;
        }
        PyObject_GC_UnTrack(candidates);
    }
    generation++;
    int result = 0;
    if (policy != NULL) {
        result = PyDict_SetItem(candidates, label, policy);
    }
    else if (PyDict_Contains(candidates, label) == 1) {
        result = PyDict_DelItem(candidates, label);
    }
    candidates_held = PyDict_GET_SIZE(candidates);
    return result;
}
