/* Removes the audit hook from the interpreter's list while no guard is active.
 *
 * With any hook in the list, CPython builds an argument tuple for every event: id(), copy.deepcopy() and each open()
 * pay for it. CPython has no function to remove a hook, so this file changes the list itself. It finds the entry by
 * the address of our function right after adding it. If the entry is not found, the hook stays in the list. */
#define Py_BUILD_CORE 1
#include "core/core.h"

#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>

#if PY_VERSION_HEX < 0x030C0000
#define HEAD (_PyRuntime.audit_hook_head)
#else
#define HEAD (_PyRuntime.audit_hooks.head)
#endif

static _Py_AuditHookEntry *own = NULL;
static bool linked = false;
static PyMethodDef *id_entry = NULL; /* of id(), whose event guards do not need: copies and imports call it often */
static PyCFunction id_original = NULL;

static void unlink_hook(void)
{
    for (_Py_AuditHookEntry **place = &HEAD; *place != NULL; place = &(*place)->next) {
        if (*place == own) {
            *place = own->next;
            linked = false;
            return;
        }
    }
}

static PyObject *id_without_event(PyObject *module, PyObject *object)
{
    return audit_hook_list_is_ours() ? PyLong_FromVoidPtr(object) : id_original(module, object);
}

/* Finds the entry of the hook, right after it was added at the end of the list. The list may move between patch
 * releases, so it is only used in the release that this was compiled for. `id` is the writable entry of id(). */
void audit_hook_list_found(Py_AuditHookFunction hook, PyMethodDef *id)
{
    if (Py_Version != PY_VERSION_HEX) {
        return;
    }
    for (_Py_AuditHookEntry *entry = HEAD; entry != NULL; entry = entry->next) {
        if (entry->hookCFunction == hook) {
            own = entry;
            linked = true;
        }
    }
    if (own != NULL && id != NULL && id->ml_flags == METH_O) {
        id_original = id->ml_meth;
        id_entry = id;
    }
}

/* Whether our hook is the only one, in C and in Python. */
bool audit_hook_list_is_ours(void)
{
    return linked && HEAD == own && own->next == NULL && PyInterpreterState_Get()->audit_hooks == NULL;
}

/* Turns audit events off or on again. Only for callers that have asked audit_hook_list_is_ours(), around calls that run
 * no Python code. */
void audit_hook_list_silence(bool silent)
{
    HEAD = silent ? NULL : own;
}

/* Adds the hook before the first state can act, and removes it after the last state is freed. */
void audit_hook_list_follow(bool guarded)
{
    if (own == NULL || guarded == linked) {
        return;
    }
    if (id_entry != NULL) {
        id_entry->ml_meth = guarded ? id_without_event : id_original;
    }
    if (guarded) {
        own->next = HEAD;
        HEAD = own;
        linked = true;
    }
    else {
        unlink_hook();
    }
}
