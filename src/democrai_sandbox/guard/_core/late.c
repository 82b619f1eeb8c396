/* Modules that are loaded later than the core: patched, diverted or adapted as soon as they are there, without
 * importing them ourselves. */
#include "core.h"
#include "network.h"

#include <string.h>

bool look_at_all_modules = true;

typedef struct {
    const char *module;
    int (*patch)(PyObject *module);
    bool native; /* every copy of the module has types of its own, so each one is patched */
    bool done;
} LatePatch;

static LatePatch late[] = {
    {"_sqlite3", databases_patch, true},
    {"_multiprocessing", semaphores_patch, true},
    {"_ctypes", ctypes_patch, true},
    {"ctypes", ctypes_functions},
    {"_socket", socket_patch, true},
    {"_ssl", ssl_patch, true},
    {"_io", fileio_patch, true},
    {"_thread", local_patch, true},
    {"concurrent.futures.thread", executor_patch},
    {"anyio._backends._asyncio", anyio_patch},
    {"concurrent.futures._base", future_patch},
    {"asyncio.events", asyncio_patch},
    {"asyncio.base_events", loop_patch},
    {"_asyncio", task_patch, true},
    {"multiprocessing.pool", pool_patch},
    {"threading", threading_patch},
    {"_cffi_backend", cffi_patch, true},
};

/* Names of modules that still have something to be patched, and those of them that are loaded, but were not complete
 * at the last look. */
static PyObject *awaited = NULL, *incomplete = NULL;
static Py_ssize_t modules_seen = -1;

static int await_all(void)
{
    Py_XSETREF(incomplete, PySet_New(NULL));
    awaited = incomplete ? PySet_New(NULL) : NULL;
    for (int i = 0; awaited != NULL && i < row_count + (int)(sizeof late / sizeof *late); i++) {
        PyObject *name = PyUnicode_InternFromString(i < row_count ? rows[i].module : late[i - row_count].module);
        if (name == NULL || PySet_Add(awaited, name) < 0) {
            Py_CLEAR(awaited);
        }
        Py_XDECREF(name);
    }
    return awaited ? 0 : -1;
}

static bool other_modules(void)
{
    PyObject *modules = PyImport_GetModuleDict();
    return look_at_all_modules || (modules && PyDict_CheckExact(modules) && PyDict_GET_SIZE(modules) != modules_seen);
}

/* Whether something optional may have come since the last look. */
bool modules_changed(void)
{
    return other_modules() || PySet_GET_SIZE(incomplete) > 0;
}

/* 1 when everything of this module is patched, 0 when it is still being imported. */
static int patch_late(const char *name, PyObject *module)
{
    int complete = 1;
    for (size_t i = 0; i < sizeof late / sizeof *late; i++) {
        if ((late[i].native || !late[i].done) && strcmp(late[i].module, name) == 0) {
            int state = late[i].patch(module);
            if (state < 0) {
                return -1;
            }
            late[i].done = state == 1;
            complete = complete && late[i].done;
        }
    }
    return complete;
}

/* ---- clients: adapted by Python, which only asks; see guard/clients -------------------------------- */

static PyObject *adapters = NULL; /* dict: module name -> function(module) -> whether it is done */
/* dict: module name -> the module it was done for, None while it is being done, or the number of names that the module
 * had when it could not be done yet */
static PyObject *adapted = NULL;

static int await_names(PyObject *names)
{
    PyObject *iterator = PyObject_GetIter(names), *name;
    while (iterator != NULL && (name = PyIter_Next(iterator)) != NULL) {
        int result = PySet_Add(awaited, name);
        Py_DECREF(name);
        if (result < 0) {
            break;
        }
    }
    Py_XDECREF(iterator);
    look_at_all_modules = true;
    return PyErr_Occurred() ? -1 : 0;
}

int adapters_set(PyObject *functions)
{
    Py_XSETREF(adapters, PyDict_Copy(functions));
    Py_XSETREF(adapted, PyDict_New());
    if (adapters == NULL || adapted == NULL || (awaited == NULL && await_all() < 0)) {
        return -1;
    }
    PyObject_GC_UnTrack(adapters);
    PyObject_GC_UnTrack(adapted);
    return await_names(adapters);
}

int diverted_await(PyObject *rows)
{
    PyObject *names = PySet_New(NULL);
    for (Py_ssize_t i = 0; names != NULL && i < PyTuple_GET_SIZE(rows); i++) {
        if (PySet_Add(names, PyTuple_GET_ITEM(PyTuple_GET_ITEM(rows, i), 0)) < 0) {
            Py_CLEAR(names);
        }
    }
    int result = names && (awaited != NULL || await_all() == 0) ? await_names(names) : -1;
    Py_XDECREF(names);
    return result;
}

static bool is_initialising(PyObject *module)
{
    PyObject *spec = PyObject_GetAttrString(module, "__spec__");
    PyObject *flag = spec ? PyObject_GetAttrString(spec, "_initializing") : NULL;
    bool is = flag != NULL && PyObject_IsTrue(flag) == 1;
    Py_XDECREF(spec);
    Py_XDECREF(flag);
    PyErr_Clear();
    return is;
}

static Py_ssize_t names_in(PyObject *module)
{
    return PyModule_Check(module) ? PyDict_GET_SIZE(PyModule_GetDict(module)) : -1;
}

static bool is_without_news(PyObject *known, PyObject *module)
{
    return known != NULL && PyLong_CheckExact(known) && PyLong_AsSsize_t(known) == names_in(module) &&
           is_initialising(module);
}

static bool is_adapted(PyObject *name, PyObject *module)
{
    return adapted != NULL && PyDict_GetItemWithError(adapted, name) == module;
}

static void note_adapted(const char *name, PyObject *module, bool done)
{
    PyObject *value = done ? Py_NewRef(module) : PyLong_FromSsize_t(names_in(module));
    if (value == NULL || PyDict_SetItemString(adapted, name, value) < 0) {
        PyErr_Clear();
    }
    Py_XDECREF(value);
}

/* 1 when done or nothing is to be done, 0 when the module is still being imported. The adapter runs as whoever imported
 * the client: it needs no rights, and a subject may have had a hand in what it meets. It is done again for another
 * module under the same name, since a subject could have put a first one there. */
static int adapt(const char *name, PyObject *module)
{
    PyObject *function = adapters ? PyDict_GetItemString(adapters, name) : NULL;
    PyObject *known = function ? PyDict_GetItemString(adapted, name) : NULL;
    if (function == NULL || known == module || known == Py_None || module == Py_None) { /* None: "not to be imported" */
        return 1;
    }
    if (is_without_news(known, module)) {
        return 0;
    }
    if (PyDict_SetItemString(adapted, name, Py_None) < 0) {
        return -1;
    }
    PyObject *done = PyObject_CallOneArg(function, module);
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    int result = done == NULL ? -1 : done != Py_False;
    note_adapted(name, module, result == 1);
    if (done == NULL && PyErr_GivenExceptionMatches(type, PyExc_Exception)) {
        /* a broken package, or what a subject put in its place, must not fail every later import: its sockets are
         * checked as ever. It is adapted at a later look if it can be by then. */
        Py_CLEAR(type);
        Py_CLEAR(value);
        Py_CLEAR(trace);
        result = 0;
    }
    PyErr_Restore(type, value, trace);
    Py_XDECREF(done);
    return result;
}

int patch_module(const char *name, PyObject *module)
{
    for (int i = 0; i < row_count; i++) {
        bool waiting = rows[i].original == NULL && strcmp(rows[i].module, name) == 0;
        if (waiting && PyObject_HasAttrString(module, rows[i].owner[0] ? rows[i].owner : rows[i].name)) {
            if (patch_row(&rows[i], module) < 0) {
                return -1;
            }
        }
    }
    int complete = patch_late(name, module), diverted = complete < 0 ? -1 : divert_module(name, module);
    int suited = diverted < 0 ? -1 : adapt(name, module);
    if (suited < 0) {
        return -1;
    }
    bool finished = complete && diverted && suited && !is_initialising(module);
    PyObject *key = PyUnicode_FromString(name);
    int wanted = key ? PySet_Contains(awaited, key) : -1, result = wanted;
    if (wanted == 1) {
        bool adaptable = adapters != NULL && PyDict_GetItemWithError(adapters, key) != NULL; /* stays on the list */
        result = finished ? PySet_Discard(incomplete, key) : PySet_Add(incomplete, key);
        result = result >= 0 && finished && !adaptable ? PySet_Discard(awaited, key) : result;
    }
    Py_XDECREF(key);
    return result < 0 ? -1 : 0;
}

/* Optional modules are patched as soon as they are there, without importing them ourselves. While no other module came,
 * only the incomplete ones are looked at. */
int patch_loaded_modules(void)
{
    if (awaited == NULL && await_all() < 0) {
        return -1;
    }
    PyObject *names = PySequence_List(other_modules() ? awaited : incomplete), *modules = PyImport_GetModuleDict();
    int result = names && modules ? 0 : -1;
    look_at_all_modules = false;
    for (Py_ssize_t i = 0; result == 0 && i < PyList_GET_SIZE(names); i++) {
        PyObject *name = PyList_GET_ITEM(names, i);
        PyObject *module = PyDict_GetItemWithError(modules, name);
        if (module != NULL && is_adapted(name, module) && PySet_Contains(incomplete, name) == 0) {
            continue;
        }
        if (module != NULL) {
            result = patch_module(PyUnicode_AsUTF8(name), module);
        }
        else if (PySet_Discard(incomplete, name) < 0) {
            result = -1;
        }
    }
    Py_XDECREF(names);
    modules_seen = modules && PyDict_CheckExact(modules) ? PyDict_GET_SIZE(modules) : -1;
    return result;
}
