/* signal.set_wakeup_fd, which event loops call (asyncio, uvloop). The descriptor of the host is restored when
 * guarded code removes its own, or leaves the guard. */
#include "interpreter/interpreter.h"

static int wakeup_of_host = -1;
static unsigned long wakeup_thread = 0; /* the main thread; others cannot set a number */

static Row *wakeup_row = NULL;

static int set_wakeup(int fd)
{
    PyObject *number = PyLong_FromLong(fd), *args[1] = {number};
    Call call = {.row = wakeup_row, .self = wakeup_row->module_object, .args = args, .nargs = 1};
    PyObject *old = number ? call_original(&call) : NULL;
    Py_XDECREF(number);
    Py_XDECREF(old);
    return old ? 0 : -1;
}

static void restore_wakeup(void)
{
    PyObject *type, *value, *trace;
    if (PyThread_get_thread_ident() != wakeup_thread) {
        return;
    }
    PyErr_Fetch(&type, &value, &trace);
    if (set_wakeup(wakeup_of_host) < 0) { /* the host has closed it */
        PyErr_Clear();
        set_wakeup(-1);
    }
    wakeup_lent = -1;
    PyErr_Restore(type, value, trace);
}

static PyObject *lend_wakeup(Call *call, PyObject *number, int fd)
{
    int before = wakeup_lent;
    if (fd < 0 && before >= 0) {
        restore_wakeup();
    }
    else if (fd >= 0) {
        PyObject *old = call_with(call, 0, number);
        if (old == NULL) {
            return NULL;
        }
        wakeup_of_host = before < 0 ? (int)PyLong_AsLong(old) : wakeup_of_host;
        wakeup_restore = restore_wakeup;
        wakeup_lent = fd;
        wakeup_row = call->row;
        wakeup_thread = PyThread_get_thread_ident();
        Py_DECREF(old);
    }
    return PyLong_FromLong(before);
}

PyObject *on_wakeup_number(State *state, Call *call)
{
    PyObject *number = call->nargs > 0 ? PyNumber_Index(call->args[0]) : NULL, *result = NULL;
    int fd = -1;
    if (number == NULL) {
        return PyErr_Occurred() ? NULL : call_original(call);
    }
    Wire *wire = NULL;
    bool known = descriptor_exact(number, &fd) == 0, own = known && fd >= 0 && descriptor_owned(state, fd, &wire);
    bool of_loop = known && fd >= 0 && !own && is_unnamed_pair(fd) && caller_is_library(); /* of the host's own loop */
    if (known && (fd < 0 || of_loop ||
                  (descriptor_check(state, number, WANT_MANAGE) == 0 && refuse_internet_socket(state, number) == 0))) {
        result = process_owned || of_loop ? call_with(call, 0, number) : lend_wakeup(call, number, fd);
    }
    Py_DECREF(number);
    return result;
}
