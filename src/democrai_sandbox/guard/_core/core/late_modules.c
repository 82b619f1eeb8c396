/* Modules that are loaded after the core: patches them as soon as they exist, without importing them. */
#include "core/core.h"

#include <string.h>

bool look_at_all_modules = true;

static Row *builtins = NULL; /* the table of patched builtins */
static int builtin_count = 0;
static const LatePatch *late = NULL;
static size_t late_count = 0;

/* A name in sys.modules. Another module of that name is patched, too: a subject can remove the first one. */
typedef struct {
    PyObject *name;
    PyObject *done;   /* the module that was patched last */
    Py_ssize_t names; /* how many a module had that was still being imported at the last look; -1 for others */
    bool added;       /* to sys.modules since the last look */
    bool rows;        /* has patched builtins */
    bool native;      /* looked for until native_modules.c patches those that are created */
    bool busy;        /* being patched, which may import others */
} Awaited;

static Awaited *awaited = NULL;
static Py_ssize_t awaited_count = 0, incomplete = 0;
static bool some_added = false; /* to the awaited ones */

/* A bit for the hash of each awaited name, because nearly all modules have other names. */
enum { HASH_BITS = 4096, WORD_BITS = 64 };
static uint64_t awaited_hashes[HASH_BITS / WORD_BITS];

/* The word with the bit of a name, and the bit. An exact str, whose hash runs no other code and cannot fail. */
static uint64_t *word_of(PyObject *name, uint64_t *bit)
{
    size_t place = (size_t)PyObject_Hash(name) % HASH_BITS;
    *bit = (uint64_t)1 << place % WORD_BITS;
    return &awaited_hashes[place / WORD_BITS];
}

static int await_name(PyObject *name, bool rows, bool native)
{
    uint64_t bit, *word = word_of(name, &bit);
    *word |= bit;
    look_at_all_modules = true;
    for (Py_ssize_t i = 0; i < awaited_count; i++) {
        if (PyUnicode_Compare(awaited[i].name, name) == 0) {
            awaited[i].rows = awaited[i].rows || rows;
            awaited[i].native = awaited[i].native && native;
            Py_CLEAR(awaited[i].done);
            return 0;
        }
    }
    Awaited *grown = PyMem_Realloc(awaited, (size_t)(awaited_count + 1) * sizeof *awaited);
    if (grown == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    awaited = grown;
    awaited[awaited_count++] = (Awaited){.name = Py_NewRef(name), .names = -1, .rows = rows, .native = native};
    return 0;
}

static int await_text(const char *text, bool rows, bool native)
{
    PyObject *name = PyUnicode_InternFromString(text);
    int result = name ? await_name(name, rows, native) : -1;
    Py_XDECREF(name);
    return result;
}

/* ---- noticing ------------------------------------------------------------------------------------- */

static PyObject *sys_names = NULL; /* dict: what the sys module has */
static PyObject *modules = NULL;   /* sys.modules, as long as sys has this version */
static uint64_t seen_sys = 0, seen_modules = 0;

/* The version of a dict. It changes with every change, and no two dicts of a process have the same version. */
static uint64_t version_of(PyObject *dict)
{
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    return ((PyDictObject *)dict)->ma_version_tag;
#pragma GCC diagnostic pop
}

/* Finds sys.modules. Any other type than dict could hide modules: while a guard is active, the dict of the interpreter
 * is restored, with the modules that were added since. */
static PyObject *find_modules(void)
{
    PyObject *found = PyDict_GetItemString(sys_names, "modules"), *own = PyImport_GetModuleDict(), *name, *module;
    Py_ssize_t position = 0;
    if (found != NULL && (PyDict_CheckExact(found) || (live_states == 0 && PyDict_Check(found)))) {
        return found;
    }
    while (live_states > 0 && found != NULL && PyDict_Check(found) && PyDict_Next(found, &position, &name, &module)) {
        if (PyUnicode_CheckExact(name) && PyDict_SetItem(own, name, module) < 0) {
            break;
        }
    }
    if (live_states > 0) {
        PyDict_SetItemString(sys_names, "modules", own);
    }
    PyErr_Clear(); /* without memory, it is tried again at the next look */
    return own;
}

static bool other_modules(void)
{
    static bool odd = false; /* left there until a guard is alive */
    if (UNLIKELY(version_of(sys_names) != seen_sys || (odd && live_states > 0))) {
        Py_XSETREF(modules, Py_NewRef(find_modules()));
        odd = !PyDict_CheckExact(modules) || PyDict_GetItemString(sys_names, "modules") != modules;
        seen_sys = version_of(sys_names);
    }
    return look_at_all_modules || version_of(modules) != seen_modules;
}

/* Whether modules may have been added since the last search. */
bool modules_added(void)
{
    return other_modules() || incomplete > 0;
}

static bool searched_all = false; /* the last search also found modules that replaced others of their name */

/* Whether modules may have been added or replaced since they were last searched for. */
bool modules_changed(void)
{
    return !searched_all || modules_added();
}

static int check_versions(void)
{
    PyObject *dict = PyDict_New(), *other = PyDict_New();
    uint64_t empty = dict ? version_of(dict) : 0;
    int failed = !dict || !other || PyDict_SetItemString(dict, "a", Py_None) < 0;
    uint64_t added = dict ? version_of(dict) : 0;
    failed = failed || PyDict_SetItemString(dict, "a", Py_True) < 0;
    uint64_t replaced = dict ? version_of(dict) : 0;
    failed = failed || PyDict_DelItemString(dict, "a") < 0 || PyDict_SetItemString(other, "a", Py_None) < 0;
    if (!failed && (empty == added || added == replaced || replaced == version_of(dict) ||
                    version_of(other) <= version_of(dict))) {
        PyErr_SetString(PyExc_ImportError, "this interpreter does not count the changes of dicts as expected");
        failed = true;
    }
    Py_XDECREF(dict);
    Py_XDECREF(other);
    return failed ? -1 : 0;
}

/* Sets the tables of patched builtins and of modules with types to patch. */
void late_modules_tables(Row *table, int count, const LatePatch *patches, size_t patch_count)
{
    builtins = table;
    builtin_count = count;
    late = patches;
    late_count = patch_count;
}

int late_modules_ready(void)
{
    PyObject *sys = PyImport_AddModule("sys");
    sys_names = sys ? PyModule_GetDict(sys) : NULL;
    int result = sys_names ? check_versions() : -1;
    for (int i = 0; result == 0 && i < builtin_count; i++) {
        result = await_text(builtins[i].module, true, true);
    }
    for (size_t i = 0; result == 0 && i < late_count; i++) {
        result = await_text(late[i].module, false, late[i].native);
    }
    return result;
}

/* From now on native modules are patched when they are created, so only incomplete ones stay in the list. */
void late_modules_settle(void)
{
    Py_ssize_t kept = 0;
    for (Py_ssize_t i = 0; i < awaited_count; i++) {
        if (awaited[i].native && awaited[i].names < 0) {
            Py_DECREF(awaited[i].name);
            Py_XDECREF(awaited[i].done);
        }
        else {
            awaited[kept++] = awaited[i];
        }
    }
    awaited_count = kept;
}

/* ---- clients: adapted by Python, which only asks; see guard/clients -------------------------------- */

static PyObject *adapters = NULL; /* dict: module name -> function(module) -> whether it is done */

int adapters_set(PyObject *functions)
{
    PyObject *name, *function;
    Py_ssize_t position = 0;
    Py_XSETREF(adapters, PyDict_Copy(functions));
    if (adapters == NULL) {
        return -1;
    }
    PyObject_GC_UnTrack(adapters);
    while (PyDict_Next(adapters, &position, &name, &function)) {
        if (await_name(name, false, false) < 0) {
            return -1;
        }
    }
    return 0;
}

int diverted_await(PyObject *diverted)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(diverted); i++) {
        if (await_name(PyTuple_GET_ITEM(PyTuple_GET_ITEM(diverted, i), 0), false, false) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Calls the adapter under the guard of the importing code: an adapter needs no rights, and the subject may have changed
 * the module. */
static int adapt(PyObject *name, PyObject *module)
{
    PyObject *function = adapters ? PyDict_GetItemWithError(adapters, name) : NULL;
    PyObject *done = function ? PyObject_CallOneArg(function, module) : NULL;
    int result = function == NULL ? 1 : done == NULL ? -1 : done != Py_False;
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

/* Ignores ordinary errors: a broken package, or an object that a subject put in its place, must not fail every later
 * import. The next search tries again. */
static int tolerate(int result)
{
    bool ordinary = result < 0 && PyErr_ExceptionMatches(PyExc_Exception) && !PyErr_ExceptionMatches(PyExc_MemoryError);
    if (ordinary) {
        PyErr_Clear();
    }
    return ordinary ? 0 : result;
}

/* 1 when everything of this module is patched, 0 when it is still being imported. */
static int patch_late(const char *name, PyObject *module)
{
    int complete = 1;
    for (size_t i = 0; i < late_count; i++) {
        if (strcmp(late[i].module, name) == 0) {
            int state = late[i].patch(module);
            state = late[i].native ? state : tolerate(state);
            if (state < 0) {
                return -1;
            }
            complete = complete && state;
        }
    }
    return complete;
}

static int patch_rows(const char *name, PyObject *module)
{
    for (int i = 0; i < builtin_count; i++) {
        bool waiting = builtins[i].original == NULL && strcmp(builtins[i].module, name) == 0;
        if (waiting && PyObject_HasAttrString(module, builtins[i].owner[0] ? builtins[i].owner : builtins[i].name)) {
            if (patch_row(&builtins[i], module) < 0) {
                return -1;
            }
        }
    }
    return 0;
}

static int patch_types(const char *name, PyObject *module)
{
    int complete = patch_late(name, module), diverted = complete < 0 ? -1 : divert_module(name, module);
    return diverted < 0 ? -1 : complete && diverted;
}

/* Patches everything in a module. 1 when that is done, 0 when it is still being imported. */
int patch_module(const char *name, PyObject *module)
{
    return patch_rows(name, module) < 0 ? -1 : patch_types(name, module);
}

static int look_at(Py_ssize_t index, PyObject *module)
{
    Awaited *entry = &awaited[index];
    Py_ssize_t names = PyModule_Check(module) ? PyDict_GET_SIZE(PyModule_GetDict(module)) : 0;
    if (entry->busy || module == Py_None || (names == entry->names && is_initialising(module))) {
        return 0; /* None: "not to be imported" */
    }
    PyObject *name = entry->name;
    entry->busy = true;
    const char *text = PyUnicode_AsUTF8(name);
    int result = entry->rows ? patch_module(text, module) : patch_types(text, module);
    int suited = result < 0 ? -1 : tolerate(adapt(name, module));
    bool finished = result == 1 && suited == 1 && !is_initialising(module);
    entry = &awaited[index]; /* the list may have grown and moved */
    entry->busy = false;
    entry->names = finished ? -1 : names;
    if (finished) {
        Py_XSETREF(entry->done, Py_NewRef(module));
    }
    return suited < 0 ? -1 : 0;
}

static void mark_added(PyObject *name)
{
    if (!PyUnicode_CheckExact(name)) {
        return;
    }
    uint64_t bit, *word = word_of(name, &bit);
    if (!(*word & bit)) {
        return;
    }
    for (Py_ssize_t i = 0; i < awaited_count; i++) {
        PyObject *known = awaited[i].name;
        bool same = known == name || (PyUnicode_GET_LENGTH(known) == PyUnicode_GET_LENGTH(name) &&
                                      PyUnicode_Compare(known, name) == 0);
        awaited[i].added = awaited[i].added || same;
        some_added = some_added || same;
    }
}

/* Marks the names that were added to sys.modules since the last call; false if that is unknown. A dict keeps its items
 * in the order in which they were added, and in their places until it moves them to new memory. */
static bool find_added(PyObject *table)
{
    static const void *last = NULL, *memory = NULL; /* only compared */
    static Py_ssize_t end = 0;
    PyObject *name, *module;
    bool known = last == table && memory == ((PyDictObject *)table)->ma_keys;
    end = known ? end : 0;
    last = table;
    memory = ((PyDictObject *)table)->ma_keys;
    while (PyDict_Next(table, &end, &name, &module)) {
        mark_added(name);
    }
    return known;
}

static int look(PyObject *table, Py_ssize_t index, bool all)
{
    Awaited *entry = &awaited[index];
    if (entry->names < 0 && !entry->added && !all) {
        return 0;
    }
    entry->added = false;
    PyObject *module = PyDict_GetItemWithError(table, entry->name);
    if (module == NULL || module == entry->done) {
        awaited[index].names = -1;
        return PyErr_Occurred() ? -1 : 0;
    }
    Py_INCREF(module);
    int result = look_at(index, module);
    Py_DECREF(module);
    return result;
}

/* Patches modules that are incomplete or were added; with `all`, also those that replaced others of their name. */
static int search(bool all)
{
    bool changed = other_modules();
    PyObject *table = Py_NewRef(modules); /* patching may run code that replaces sys.modules */
    int result = 0;
    all = (changed && !find_added(table)) || all || look_at_all_modules;
    searched_all = all;
    seen_modules = version_of(table);
    look_at_all_modules = false;
    if (!all && !some_added && incomplete == 0) {
        Py_DECREF(table);
        return 0;
    }
    some_added = false; /* before modules are patched, which may import others */
    for (Py_ssize_t i = 0; result == 0 && i < awaited_count; i++) {
        result = look(table, i, all);
    }
    Py_DECREF(table);
    incomplete = 0;
    for (Py_ssize_t i = 0; i < awaited_count; i++) {
        incomplete += awaited[i].names >= 0;
    }
    look_at_all_modules = look_at_all_modules || result < 0;
    return result;
}

int patch_added_modules(void)
{
    return search(false);
}

int patch_loaded_modules(void)
{
    return search(true);
}
