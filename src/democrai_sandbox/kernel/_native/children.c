/* Exit status of children, and children that are not registered. */
#include "native.h"

#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

enum { AT_ONCE = 4096, DECIMAL = 10 };
#ifndef P_PIDFD
#define P_PIDFD 3
#endif

/* exit_code(pidfd): exit code of a child, negative for a signal; None while it runs. The zombie stays. */
PyObject *native_exit_code(PyObject *module, PyObject *value)
{
    int pidfd = native_announce("exit_code") < 0 ? -1 : (int)PyLong_AsLong(value);
    if (PyErr_Occurred()) {
        return NULL;
    }
    siginfo_t found = {.si_pid = 0};
    if (waitid((idtype_t)P_PIDFD, (id_t)pidfd, &found, WEXITED | WNOHANG | WNOWAIT) < 0) {
        return native_failed(errno);
    }
    if (found.si_pid == 0) {
        return Py_NewRef(Py_None);
    }
    return PyLong_FromLong(found.si_code == CLD_EXITED ? found.si_status : -found.si_status);
}

static int append_unknown(PyObject *list, long number, PyObject *known)
{
    PyObject *pid = PyLong_FromLong(number);
    int found = pid == NULL ? -1 : PyDict_Contains(known, pid);
    if (found == 0) {
        found = PyList_Append(list, pid);
    }
    Py_XDECREF(pid);
    return found < 0 ? -1 : 0;
}

/* Parses numbers that are each followed by a space; a number may be split between two reads. */
static int read_unknown(int file, PyObject *list, PyObject *known)
{
    char part[AT_ONCE];
    long number = 0;
    off_t place = 0;
    ssize_t size;
    while ((size = pread(file, part, sizeof part, place)) > 0) {
        place += size;
        for (ssize_t i = 0; i < size; i++) {
            if (part[i] >= '0' && part[i] <= '9') {
                number = number * DECIMAL + (part[i] - '0');
            }
            else if (number > 0) {
                if (append_unknown(list, number, known) < 0) {
                    return -1;
                }
                number = 0;
            }
        }
    }
    return size < 0 ? (native_failed(errno), -1) : 0;
}

/* strangers(file, known): the children in an open /proc/.../children that are not keys of the dictionary. */
PyObject *native_strangers(PyObject *module, PyObject *args)
{
    int file;
    PyObject *known;
    if (native_announce("strangers") < 0 || !PyArg_ParseTuple(args, "iO!:strangers", &file, &PyDict_Type, &known)) {
        return NULL;
    }
    PyObject *list = PyList_New(0);
    if (list != NULL && read_unknown(file, list, known) < 0) {
        Py_CLEAR(list);
    }
    return list;
}
