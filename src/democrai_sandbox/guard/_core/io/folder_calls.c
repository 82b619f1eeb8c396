/* Calls with the descriptor of an open folder and a name, for functions that take both.
 *
 * The call reaches the checked file even if a folder is renamed meanwhile. A path through /proc/self/fd has the same
 * effect for all functions, but is slower because the kernel walks through /proc. */
#include "io/io.h"

/* Whether the function takes these names. The root folder has no name. */
bool call_takes_folders(const Call *call, const Place *places, int count)
{
    bool takes = (call->row->how & TAKES_FOLDER) && call->row->flags == (METH_FASTCALL | METH_KEYWORDS);
    for (int i = 0; i < count; i++) {
        takes = takes && places[i].name[0] != '\0' && places[i].name[0] != '/';
    }
    return takes;
}

/* The names of the keyword arguments with these added that are not there yet. */
static PyObject *names_with_folders(const Call *call, const Place *places, int count)
{
    static PyObject *usual = NULL; /* of the last call that had no keywords and one folder */
    static const char *usual_argument = NULL;
    bool is_usual = call->kwnames == NULL && count == 1;
    if (is_usual && usual_argument == places[0].argument) {
        return Py_NewRef(usual);
    }
    PyObject *names = call->kwnames ? PySequence_List(call->kwnames) : PyList_New(0);
    for (int i = 0; names != NULL && i < count; i++) {
        bool given = call_find(call, -1, places[i].argument) >= 0;
        PyObject *name = given ? NULL : PyUnicode_InternFromString(places[i].argument);
        if (PyErr_Occurred() || (name != NULL && PyList_Append(names, name) < 0)) {
            Py_CLEAR(names);
        }
        Py_XDECREF(name);
    }
    PyObject *tuple = names ? PyList_AsTuple(names) : NULL;
    Py_XDECREF(names);
    if (is_usual && tuple != NULL) {
        Py_XSETREF(usual, Py_NewRef(tuple));
        usual_argument = places[0].argument;
    }
    return tuple;
}

PyObject *call_in_folders(const Call *call, const Place *places, int count)
{
    PyObject *argv[MAX_ARGS + 2], *made[4] = {NULL}, *result = NULL;
    Call copy;
    if (call_copy(call, argv, &copy) < 0) {
        return NULL;
    }
    copy.kwnames = names_with_folders(call, places, count);
    bool ready = copy.kwnames != NULL;
    for (int i = 0; ready && i < count; i++) {
        made[2 * i] = path_object(places[i].name, places[i].like);
        made[2 * i + 1] = PyLong_FromLong(places[i].folder);
        ready = made[2 * i] != NULL && made[2 * i + 1] != NULL;
        argv[places[i].at] = made[2 * i];
        argv[call_find(&copy, -1, places[i].argument)] = made[2 * i + 1];
    }
    result = ready ? call_original(&copy) : NULL;
    Py_XDECREF(copy.kwnames);
    for (int i = 0; i < 4; i++) {
        Py_XDECREF(made[i]);
    }
    return result;
}
