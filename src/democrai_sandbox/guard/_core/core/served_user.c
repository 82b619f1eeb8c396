/* The user that the host serves, in a context variable, which tasks and threads inherit. Guarded code can find and
 * set this variable. Its value is restored when guarded code returns, so the host never acts for a user that a
 * subject chose. */
#include "core/core.h"

PyObject *served_variable = NULL;

int served_user_ready(void)
{
    served_variable = PyContextVar_New("democrai_sandbox_served", Py_None);
    return served_variable ? 0 : -1;
}

/* The current value, for served_restore(). NULL only when memory is exhausted. */
PyObject *served_save(void)
{
    PyObject *value = NULL;
    if (PyContextVar_Get(served_variable, Py_None, &value) < 0) {
        PyErr_Clear();
    }
    return value;
}

/* Restores the saved value and keeps the current exception. Steals `saved`. */
void served_restore(PyObject *saved)
{
    PyObject *present = NULL, *type, *value, *trace;
    if (saved == NULL) {
        return;
    }
    PyErr_Fetch(&type, &value, &trace);
    if (PyContextVar_Get(served_variable, Py_None, &present) < 0 || present != saved) {
        variable_put(served_variable, saved);
    }
    Py_XDECREF(present);
    Py_DECREF(saved);
    PyErr_Restore(type, value, trace);
}
