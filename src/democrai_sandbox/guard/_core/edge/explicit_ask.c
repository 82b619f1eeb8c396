/* Access that guarded code asks for before it acts: the rules of its chain decide first, then the decider. The
 * question is built from guard state; the caller only chooses the target and the context to resume with. */
#include "edge/edge.h"

#include <limits.h>
#include <string.h>

static unsigned net_bit(const char *operation)
{
    return strcmp(operation, "connect") == 0 ? NET_CONNECT : strcmp(operation, "receive") == 0 ? NET_RECEIVE : NET_SEND;
}

static unsigned file_bit(const char *operation)
{
    static const char *const names[] = {"read", "create", "modify", "delete", "execute"};
    for (unsigned i = 0; i < 5; i++) {
        if (strcmp(operation, names[i]) == 0) {
            return 1U << i;
        }
    }
    return 0;
}

/* True, False, or the answer of the decider. Steals `target`, which is canonical. */
static PyObject *put(State *state, const Asked *asked, PyObject *target, PyObject *place)
{
    Asked canonical = *asked;
    canonical.target = target;
    PyObject *answer = target ? decision_explicit(state, &canonical, place) : NULL;
    Py_XDECREF(target);
    return answer;
}

/* `place` is the target in the words of the guard, NULL where the two are the same. */
static PyObject *put_network(State *state, const Asked *asked, Matcher match, const void *what, PyObject *target,
                             PyObject *place)
{
    unsigned bit = net_bit(asked->operation);
    if (UNLIKELY(candidates_held) && target != NULL) {
        shadow_net(state, bit, match, what, target, WHEN_DONE);
    }
    if (target != NULL && (state_net(state, match, what) & bit)) {
        Py_DECREF(target);
        Py_RETURN_TRUE;
    }
    if (target != NULL && net_narrowed_away(state, bit, match, what)) {
        Py_DECREF(target);
        Py_RETURN_FALSE;
    }
    return put(state, asked, target, place ? place : target);
}

static PyObject *ask_url(State *state, const Asked *asked)
{
    Url url;
    if (url_of_object(asked->target, &url) < 0) {
        return NULL;
    }
    /* as it was written: an ambiguous path has to be seen as one again */
    PyObject *place = url_text(&url);
    PyObject *answer = place ? put_network(state, asked, match_url, &url, Py_NewRef(asked->target), place) : NULL;
    Py_XDECREF(place);
    url_clear(&url);
    return answer;
}

static PyObject *ask_host(State *state, const Asked *asked, int port)
{
    Host host;
    if (host_of_object(asked->target, &host) < 0) {
        return NULL;
    }
    SocketTarget what = {&host, port};
    return put_network(state, asked, match_socket, &what, host_target(host.text, port), NULL);
}

static PyObject *ask_socket(State *state, const Asked *asked)
{
    const char *address = PyUnicode_AsUTF8(asked->target);
    PyObject *target = address ? PyUnicode_FromFormat("unix:%s", address) : NULL;
    return target ? put_network(state, asked, match_unix, address, target, NULL) : NULL;
}

/* Asks for the resolved path, like every check of the guard. */
static PyObject *ask_path(State *state, const Asked *asked)
{
    PathText *text = PyMem_Malloc(sizeof *text);
    char place[PATH_MAX];
    if (text == NULL || path_text(asked->target, text) < 0) {
        PyMem_Free(text);
        return text ? NULL : PyErr_NoMemory();
    }
    if (location_of(text, true, place) < 0) {
        PyMem_Free(text);
        return NULL;
    }
    PyMem_Free(text);
    unsigned bit = file_bit(asked->operation), mask = location_mask(state, place);
    if (UNLIKELY(candidates_held)) {
        shadow_path(state, place, bit);
    }
    if (mask & bit) {
        Py_RETURN_TRUE;
    }
    if ((never_approved(mask) & bit) || path_narrowed_away(state, place, bit)) {
        Py_RETURN_FALSE; /* paths that the host protects cannot be approved */
    }
    return put(state, asked, PyUnicode_DecodeFSDefault(place), NULL);
}

/* location(path): the resolved path, for the host only: guarded code must not resolve paths that it may not read. */
PyObject *core_location(PyObject *module, PyObject *path)
{
    State *state = state_guarding();
    if (state != NULL) {
        return deny_text(state, DENY_TAMPER, "location");
    }
    PathText *text = PyMem_Malloc(sizeof *text);
    char place[PATH_MAX];
    if (text == NULL || path_text(path, text) < 0) {
        PyMem_Free(text);
        return text ? NULL : PyErr_NoMemory();
    }
    int failed = location_of(text, true, place);
    PyMem_Free(text);
    return failed < 0 ? NULL : PyUnicode_DecodeFSDefault(place);
}

/* ask(kind, operation, target, port, register, action, context) -> None outside a guard; True when the rules allow it,
 * False when it cannot be approved, otherwise the answer of the decider. Kinds: url, host, unix, path, dependency. */
PyObject *core_ask(PyObject *module, PyObject *args)
{
    State *state = state_guarding();
    const char *kind;
    int port, registers;
    Asked asked = {0};
    if (!PyArg_ParseTuple(args, "ssUipsO", &kind, &asked.operation, &asked.target, &port, &registers, &asked.action,
                          &asked.context)) {
        return NULL;
    }
    asked.registers = registers != 0;
    if (asked.context != Py_None && !PyUnicode_Check(asked.context)) {
        return PyErr_Format(PyExc_TypeError, "the context is given as text");
    }
    if (state == NULL) {
        Py_RETURN_NONE;
    }
    asked.resource = kind[0] == 'p' ? "filesystem" : kind[0] == 'd' ? "system_dependency" : "network";
    /* exact str only: methods of a subclass would run with the decider, outside the guard */
    PyObject *exact = PyUnicode_FromObject(asked.target);
    PyObject *context = asked.context == Py_None ? Py_NewRef(Py_None) : PyUnicode_FromObject(asked.context);
    asked.target = exact;
    asked.context = context;
    Py_INCREF(state);
    PyObject *answer = !exact || !context ? NULL
                       : kind[0] == 'u'   ? (kind[1] == 'r' ? ask_url(state, &asked) : ask_socket(state, &asked))
                       : kind[0] == 'h'   ? ask_host(state, &asked, port)
                       : kind[0] == 'p'   ? ask_path(state, &asked)
                                          : put(state, &asked, Py_NewRef(exact), NULL);
    Py_DECREF(state);
    Py_XDECREF(exact);
    Py_XDECREF(context);
    return answer;
}
