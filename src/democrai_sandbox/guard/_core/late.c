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

/* Names of modules that still have something to be patched; and of those that are loaded, but were not complete at the
 * last look, how many names they had then. */
static PyObject *awaited = NULL, *incomplete = NULL;

/* sys.modules at the last look: its table, the position behind its last entry, and its size. */
static struct {
    const void *table;
    Py_ssize_t position, count;
} seen = {NULL, 0, -1};
bool subjects_ran = true; /* since the last look, or they may run now */

static int await_all(void)
{
    Py_XSETREF(incomplete, PyDict_New());
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
    return look_at_all_modules || (modules && PyDict_CheckExact(modules) && PyDict_GET_SIZE(modules) != seen.count);
}

/* Whether something optional may have come since the last look. */
bool modules_changed(void)
{
    return other_modules() || PyDict_GET_SIZE(incomplete) > 0;
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
static PyObject *adapted = NULL;  /* dict: module name -> the module it was done for, or None while it is being done */

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
    if (PyDict_SetItemString(adapted, name, Py_None) < 0) {
        return -1;
    }
    PyObject *done = PyObject_CallOneArg(function, module);
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    int result = done == NULL ? -1 : done != Py_False;
    if ((result == 1 ? PyDict_SetItemString(adapted, name, module) : PyDict_DelItemString(adapted, name)) < 0) {
        PyErr_Clear();
    }
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

/* ---- looking ------------------------------------------------------------------------------------- */

static bool is_initialising(PyObject *module)
{
    static PyObject *spec_name = NULL, *flag_name = NULL;
    spec_name = spec_name ? spec_name : PyUnicode_InternFromString("__spec__");
    flag_name = flag_name ? flag_name : PyUnicode_InternFromString("_initializing");
    PyObject *spec = spec_name ? PyObject_GetAttr(module, spec_name) : NULL;
    PyObject *flag = spec && flag_name ? PyObject_GetAttr(spec, flag_name) : NULL;
    bool is = flag != NULL && PyObject_IsTrue(flag) == 1;
    Py_XDECREF(spec);
    Py_XDECREF(flag);
    PyErr_Clear();
    return is;
}

static PyObject *names_in(PyObject *module)
{
    return PyLong_FromSsize_t(PyModule_Check(module) ? PyDict_GET_SIZE(PyModule_GetDict(module)) : -1);
}

/* Whether a module is still being imported, and has no more names than at the last look. */
static bool is_unchanged(PyObject *name, PyObject *module)
{
    PyObject *before = PyDict_GetItemWithError(incomplete, name), *now = before ? names_in(module) : NULL;
    bool is = now != NULL && PyObject_RichCompareBool(before, now, Py_EQ) == 1 && is_initialising(module);
    Py_XDECREF(now);
    return is;
}

/* Whether nothing is left to do for this very module; an adapted one stays on the list for others of its name. */
static bool is_done(PyObject *name, PyObject *module)
{
    return adapted != NULL && PyDict_GetItemWithError(adapted, name) == module &&
           PyDict_GetItemWithError(incomplete, name) == NULL;
}

static int forget_incomplete(PyObject *name)
{
    return PyDict_GetItemWithError(incomplete, name) ? PyDict_DelItem(incomplete, name) : 0;
}

static int note_incomplete(PyObject *name, PyObject *module)
{
    PyObject *count = names_in(module);
    int result = count ? PyDict_SetItem(incomplete, name, count) : -1;
    Py_XDECREF(count);
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
        result = finished ? forget_incomplete(key) : note_incomplete(key, module);
        result = result >= 0 && finished && !adaptable ? PySet_Discard(awaited, key) : result;
    }
    Py_XDECREF(key);
    return result < 0 ? -1 : 0;
}

/* Whether new modules are behind the position of the last look: the table is the same, and no subject ran, which could
 * have put entries before it by removing others. */
static bool only_grew(PyObject *modules)
{
    return !look_at_all_modules && !subjects_ran && PyDict_CheckExact(modules) &&
           ((PyDictObject *)modules)->ma_keys == seen.table && PyDict_GET_SIZE(modules) >= seen.count;
}

/* The awaited names behind the position; NULL without an exception when a name is not plain text. */
static PyObject *new_names(PyObject *modules)
{
    PyObject *names = PyList_New(0), *name, *module;
    Py_ssize_t position = seen.position;
    while (names != NULL && PyDict_Next(modules, &position, &name, &module)) {
        int wanted = PyUnicode_CheckExact(name) ? PySet_Contains(awaited, name) : -1;
        if (wanted < 0 || (wanted == 1 && PyList_Append(names, name) < 0)) {
            Py_CLEAR(names);
        }
    }
    for (position = 0; names != NULL && PyDict_Next(incomplete, &position, &name, &module);) {
        if (PyList_Append(names, name) < 0) {
            Py_CLEAR(names);
        }
    }
    return names;
}

static PyObject *names_to_look_at(PyObject *modules)
{
    PyObject *names = only_grew(modules) ? new_names(modules) : NULL;
    return names || PyErr_Occurred() ? names : PySequence_List(other_modules() ? awaited : incomplete);
}

/* The position is looked for only where it will be used: beside a subject, every look is at all names. */
static void note_seen(PyObject *modules)
{
    bool plain = PyDict_CheckExact(modules), growing = plain && live_states == 0;
    Py_ssize_t position = growing && only_grew(modules) ? seen.position : 0;
    while (growing && PyDict_Next(modules, &position, NULL, NULL)) {
    }
    seen.table = growing ? ((PyDictObject *)modules)->ma_keys : NULL;
    seen.position = position;
    seen.count = plain ? PyDict_GET_SIZE(modules) : -1;
    look_at_all_modules = false;
    subjects_ran = live_states > 0;
}

/* Optional modules are patched as soon as they are there, without importing them ourselves. While no other module came,
 * only the incomplete ones are looked at. */
int patch_loaded_modules(void)
{
    PyObject *modules = PyImport_GetModuleDict();
    if (modules == NULL || (awaited == NULL && await_all() < 0)) {
        return -1;
    }
    PyObject *names = names_to_look_at(modules);
    int result = names ? 0 : -1;
    note_seen(modules);
    for (Py_ssize_t i = 0; result == 0 && i < PyList_GET_SIZE(names); i++) {
        PyObject *name = PyList_GET_ITEM(names, i);
        PyObject *module = PyDict_GetItemWithError(modules, name);
        if (module == NULL) {
            result = forget_incomplete(name);
        }
        else if (!is_done(name, module) && !is_unchanged(name, module)) {
            result = patch_module(PyUnicode_AsUTF8(name), module);
        }
    }
    Py_XDECREF(names);
    return result;
}
