/* Decides about a network target: the rules of the chain first, then the decider, then a denial with a hint. Also
 * reports permitted connections to the host. */
#include "network/network.h"

#include <stdio.h>
#include <string.h>
#include <structseq.h>
#include <time.h>

PyObject *observer = NULL; /* of the host: called with the endpoint of each permitted connection */

int net_deny(State *state, unsigned operation, PyObject *target)
{
    deny(state, DENY_NETWORK, net_operation(operation), target);
    return -1;
}

int net_deny_text(State *state, unsigned operation, const char *target)
{
    PyObject *text = PyUnicode_DecodeFSDefault(target);
    if (text != NULL) {
        net_deny(state, operation, text);
        Py_DECREF(text);
    }
    return -1;
}

/* 1 when the chain or an approval allows it, 0 when not, -1 when the check itself failed. */
static int decide(State *state, unsigned operation, Matcher match, const void *what, PyObject *target,
                  PyObject **answer)
{
    if (state_net(state, match, what) & operation) {
        return 1;
    }
    if (net_narrowed_away(state, operation, match, what)) {
        return 0;
    }
    return approved(state, "network", net_operation(operation), target, true, answer);
}

int net_granted(State *state, unsigned operation, Matcher match, const void *what, PyObject *target)
{
    return decide(state, operation, match, what, target, NULL);
}

/* 0 when it may happen, -1 with the denial or the failure of the check. */
int net_require(State *state, unsigned operation, Matcher match, const void *what, PyObject *target)
{
    PyObject *answer = NULL;
    int allowed = decide(state, operation, match, what, target, &answer);
    if (allowed == 0) {
        deny_decided(state, DENY_NETWORK, net_operation(operation), target, answer);
    }
    Py_XDECREF(answer);
    return allowed == 1 ? 0 : -1;
}

/* ---- names that an approval permitted -------------------------------------------------------------- */

/* A request that an approval permitted may look its host up, too. */
int note_name(State *state, const Host *host)
{
    PyObject *key = PyUnicode_FromFormat("name:%s", host->key);
    int result = key ? PyDict_SetItem(decisions_of(state), key, Py_True) : -1;
    Py_XDECREF(key);
    return result;
}

bool name_noted(const State *state, const Host *host)
{
    PyObject *key = PyUnicode_FromFormat("name:%s", host->key);
    bool noted = key != NULL && PyDict_GetItemWithError(decisions_of((State *)state), key) != NULL;
    Py_XDECREF(key);
    PyErr_Clear();
    return noted;
}

/* ---- the observer ---------------------------------------------------------------------------------- */

static PyStructSequence_Field fields[] = {
    {"subject", "name of the innermost subject"},
    {"subject_kind", "its kind"},
    {"host", "the name that was permitted, or the address when none was involved"},
    {"addresses", "what the name led to"},
    {"port", NULL},
    {NULL},
};

static PyStructSequence_Desc description = {
    .name = "democrai_sandbox.guard._core.ObservedEndpoint",
    .doc = "A permitted connection that is about to be made.",
    .fields = fields,
    .n_in_sequence = 5,
};

static PyTypeObject *endpoint_type = NULL;

int endpoints_ready(PyObject *module)
{
    endpoint_type = PyStructSequence_NewType(&description);
    return endpoint_type ? PyModule_AddObjectRef(module, "ObservedEndpoint", (PyObject *)endpoint_type) : -1;
}

static PyObject *endpoint_new(const State *state, const char *host, PyObject *addresses, int port)
{
    while (state->mode == MODE_NARROW) {
        state = state->parent;
    }
    PyObject *values[] = {Py_NewRef(state->policy->subject), Py_NewRef(state->policy->kind), PyUnicode_FromString(host),
                          Py_XNewRef(addresses), PyLong_FromLong(port)};
    PyObject *endpoint = PyStructSequence_New(endpoint_type);
    for (int i = 0; i < 5; i++) {
        if (endpoint == NULL || values[i] == NULL) {
            Py_XDECREF(values[i]);
            Py_CLEAR(endpoint);
        }
        else {
            PyStructSequence_SetItem(endpoint, i, values[i]);
        }
    }
    return endpoint;
}

/* The same endpoint is reported again after a minute, so that the observer can forget old ones. */
static bool reported_lately(State *state, PyObject *key)
{
    enum { SECONDS = 60 };
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    PyObject *decisions = decisions_of(state), *last = PyDict_GetItemWithError(decisions, key);
    if (last != NULL && PyLong_Check(last) && now.tv_sec - PyLong_AsLong(last) < SECONDS) {
        return true;
    }
    PyObject *time = PyLong_FromLong((long)now.tv_sec);
    if (time == NULL || PyDict_SetItem(decisions, key, time) < 0) {
        PyErr_Clear();
    }
    Py_XDECREF(time);
    return false;
}

/* Notifies the observer, outside the guard and before the connection is made, because a packet filter may have to allow
 * it first. If the observer fails, the connection fails with its error. */
int observe(State *state, const Host *name, const Address *address, int port)
{
    if (observer == NULL || observer == Py_None) {
        return 0;
    }
    char text[64];
    address_text(address, text);
    const char *host = name ? name->text : text;
    PyObject *key = PyUnicode_FromFormat("seen:%s:%s:%d", host, text, port);
    int result = key ? 0 : -1;
    if (key != NULL && !reported_lately(state, key)) {
        PyObject *addresses = addresses_of(name, text);
        PyObject *endpoint = endpoint_new(state, host, addresses, port);
        PyObject *args = endpoint ? PyTuple_Pack(1, endpoint) : NULL;
        PyObject *done = args ? call_outside(state, observer, args) : NULL;
        if (done == NULL) {
            PyObject *type, *value, *trace;
            PyErr_Fetch(&type, &value, &trace);
            PyDict_DelItem(decisions_of(state), key);
            PyErr_Clear();
            PyErr_Restore(type, value, trace);
            raise_check_failed();
            result = -1;
        }
        Py_XDECREF(addresses);
        Py_XDECREF(endpoint);
        Py_XDECREF(args);
        Py_XDECREF(done);
    }
    Py_XDECREF(key);
    return result;
}
