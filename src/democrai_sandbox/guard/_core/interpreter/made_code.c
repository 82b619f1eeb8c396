/* Code objects that guarded code makes by compile() or marshal. They belong to its subject. */
#include "interpreter/interpreter.h"

#include <marshal.h>
#include <string.h>

/* Does the work of marshal.loads. Without another hook the event is left out, because the interpreter copies the whole
 * content for it. Reading runs no Python code while garbage collection is off. */
static PyObject *load_code(const Call *call)
{
    PyObject *given = call->args[0];
    Py_buffer content;
    bool plain = call->nargs == 1 && call->kwnames == NULL && (PyBytes_CheckExact(given) || PyMemoryView_Check(given));
    if (!plain || !audit_hook_list_is_ours() || PyObject_GetBuffer(given, &content, PyBUF_SIMPLE) < 0) {
        PyErr_Clear();
        return call_original(call);
    }
    int collects = PyGC_Disable();
    audit_hook_list_silence(true);
    PyObject *made = PyMarshal_ReadObjectFromString(content.buf, content.len);
    audit_hook_list_silence(false);
    if (collects) {
        PyGC_Enable();
    }
    PyBuffer_Release(&content);
    return made;
}

/* compile, marshal.load, marshal.loads */
PyObject *on_made_code(State *state, Call *call)
{
    Bytecode from;
    bool loads = call->nargs > 0 && strcmp(call->row->name, "loads") == 0;
    bool noted = loads && bytecode_of(call->args[0], &from);
    PyObject *made = loads ? load_code(call) : call_original(call);
    if (noted) {
        bytecode_note(made, &from);
    }
    if (made != NULL && resident_claim(state, made) < 0) {
        Py_CLEAR(made);
    }
    return made;
}
