/* The ticket of the current request. A context variable carries it into tasks, bound callables carry it into
 * threads. */
#include "core/core.h"

PyObject *ticket_variable = NULL;
PyTypeObject *ticket_type = NULL; /* Ticket_Type */
Py_ssize_t open_tickets = 0;

PyObject *ticket_carried(void)
{
    PyObject *value = NULL;
    if (LIKELY(open_tickets == 0) || PyContextVar_Get(ticket_variable, NULL, &value) < 0) {
        PyErr_Clear();
        return NULL;
    }
    if (value != NULL && !(Py_IS_TYPE(value, ticket_type) && ((CarriedTicket *)value)->open)) {
        Py_CLEAR(value);
    }
    return value;
}

/* Sets the carried ticket, or None, and returns the previous one. */
PyObject *ticket_carry(PyObject *ticket)
{
    PyObject *previous = NULL;
    if (PyContextVar_Get(ticket_variable, Py_None, &previous) < 0) {
        return NULL;
    }
    if (variable_put(ticket_variable, ticket) < 0) {
        Py_CLEAR(previous);
    }
    return previous;
}

void ticket_restore(PyObject *carried)
{
    PyObject *type, *value, *trace;
    if (carried == NULL) {
        return;
    }
    PyErr_Fetch(&type, &value, &trace);
    Py_XDECREF(ticket_carry(carried));
    Py_DECREF(carried);
    PyErr_Clear();
    PyErr_Restore(type, value, trace);
}
