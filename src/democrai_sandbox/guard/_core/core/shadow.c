/* Shadow checks: a subject with a candidate policy is decided by its current policy, and the host is notified where
 * the candidate would decide differently. Nothing in this file changes a decision. */
#include "core/core.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

PyObject *watcher = NULL; /* of the host: called where the candidate of a subject decides differently */

/* ---- which policies ---------------------------------------------------------------------------------- */

static bool concerns(const State *state)
{
    for (; state != NULL && state->mode != MODE_BYPASS; state = state->parent) {
        if (candidate_of(state) != state->policy) {
            return true;
        }
        if (state->mode == MODE_EXACT) {
            return false;
        }
    }
    return false;
}

/* candidate(label, policy or None): sets or removes the candidate of a subject, for all its activations. */
PyObject *core_candidate(PyObject *module, PyObject *args)
{
    State *state = state_guarding();
    PyObject *label, *policy;
    if (state != NULL) {
        return deny_text(state, DENY_TAMPER, "candidate");
    }
    if (!PyArg_ParseTuple(args, "UO", &label, &policy)) {
        return NULL;
    }
    if (policy != Py_None && !Py_IS_TYPE(policy, &Policy_Type)) {
        return PyErr_Format(PyExc_TypeError, "expected a policy or None");
    }
    return candidate_set(label, policy == Py_None ? NULL : policy) < 0 ? NULL : Py_NewRef(Py_None);
}

/* ---- telling ------------------------------------------------------------------------------------------- */

/* One operation can be checked more than once: a name is looked up, then connected to; a request is permitted, then
 * read on its connection. It is reported once. */
static _Thread_local struct {
    Py_hash_t key;
    int height;
} last = {0, 0};

static bool told_below(PyObject *target, const char *operation, int height)
{
    Py_hash_t key = PyObject_Hash(target) ^ (Py_hash_t)(unsigned char)operation[0];
    bool told = last.key == key && height > last.height;
    last.key = key;
    last.height = height;
    return told;
}

/* Calls the watcher outside the guard, with the question as the decider gets it. Its errors are ignored. */
static void tell(State *state, const char *resource, const char *operation, PyObject *target, bool allowed)
{
    static _Thread_local bool telling = false;
    if (telling || watcher == NULL || watcher == Py_None || target == NULL) {
        PyErr_Clear();
        return;
    }
    int number = errno;
    State *asking = answering(state);
    telling = true;
    PyObject *question = question_new(asking, &(Asked){resource, operation, target, false, NULL, NULL});
    PyObject *args = question ? PyTuple_Pack(2, question, allowed ? Py_True : Py_False) : NULL;
    PyObject *done = args ? call_outside(asking, watcher, args) : NULL;
    telling = false;
    Py_XDECREF(question);
    Py_XDECREF(args);
    Py_XDECREF(done);
    PyErr_Clear();
    errno = number;
}

/* ---- checks -------------------------------------------------------------------------------------------- */

void shadow_path(State *state, const char *path, unsigned wanted)
{
    if (!concerns(state) || path_is_memory(path)) {
        return;
    }
    PathKey key;
    path_key(&key, path);
    unsigned present = state_mask(state, &key);
    by_candidate = true;
    unsigned other = state_mask(state, &key);
    by_candidate = false;
    unsigned differs = (present ^ other) & wanted;
    if ((other & FLAG_IMPORT) && (differs & OP_READ) && frame_is_import_machinery()) {
        differs &= ~(unsigned)OP_READ;
    }
    for (unsigned bit = OP_READ; differs != 0 && bit <= OP_EXECUTE; bit <<= 1) {
        if (differs & bit) {
            char operation[64];
            operation_text(bit, operation);
            PyObject *target = PyUnicode_DecodeFSDefault(path);
            tell(state, "filesystem", operation, target, present & bit);
            Py_XDECREF(target);
        }
    }
}

/* Like shadow_path(), for an open that creates the file or modifies it. */
void shadow_open(State *state, const char *path, unsigned must, unsigned either)
{
    if (!concerns(state)) {
        return;
    }
    if (either != 0) {
        either = faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0 ? either & ~(unsigned)OP_CREATE : OP_CREATE;
    }
    shadow_path(state, path, must | either);
}

unsigned candidate_net(const State *state, Matcher match, const void *what)
{
    by_candidate = true;
    unsigned mask = state_net(state, match, what);
    by_candidate = false;
    return mask;
}

static void shadow_target(State *state, unsigned operation, PyObject *target, bool allowed, int height)
{
    if (target != NULL && !told_below(target, net_operation(operation), height)) {
        tell(state, "network", net_operation(operation), target, allowed);
    }
    PyErr_Clear();
}

void shadow_net(State *state, unsigned operation, Matcher match, const void *what, PyObject *target, int height)
{
    if (!concerns(state)) {
        return;
    }
    bool allowed = state_net(state, match, what) & operation;
    if (allowed != (bool)(candidate_net(state, match, what) & operation)) {
        shadow_target(state, operation, target, allowed, height);
    }
}

void shadow_url(State *state, unsigned operations, Matcher match, const Url *url, int height)
{
    if (!concerns(state)) {
        return;
    }
    unsigned present = state_net(state, match, url);
    unsigned differs = (present ^ candidate_net(state, match, url)) & operations;
    PyObject *target = differs ? url_text(url) : NULL;
    for (unsigned bit = NET_CONNECT; target != NULL && bit <= NET_SEND; bit <<= 1) {
        if (differs & bit) {
            shadow_target(state, bit, target, present & bit, height);
        }
    }
    Py_XDECREF(target);
    PyErr_Clear();
}

/* Reports a target that the rules allow and the candidate does not. Does nothing for NULL. */
void shadow_told(State *state, unsigned operation, PyObject *target)
{
    shadow_target(state, operation, target, true, WHEN_DONE);
}

/* Reports a host that the caller has matched with both policies. */
void shadow_socket(State *state, const Host *host, int port, bool allowed, int height)
{
    PyObject *target = host_target(host->text, port);
    shadow_target(state, NET_CONNECT, target, allowed, height);
    Py_XDECREF(target);
}

bool shadow_concerns(const State *state)
{
    return candidates_held != 0 && concerns(state);
}

void shadow_import(State *state, PyObject *root, bool (*allows)(const State *, PyObject *))
{
    if (!concerns(state)) {
        return;
    }
    bool present = allows(state, root);
    by_candidate = true;
    bool other = allows(state, root);
    by_candidate = false;
    if (present != other) {
        tell(state, "import", "use", root, present);
    }
}
