/* Imports of sensitive modules. They are refused when the subject's own code imports or uses them, even if other
 * code has imported them. */
#include "interpreter/interpreter.h"

#include <stdio.h>

#include <string.h>

#define EXTENSIONS "democrai_extensions."

PyObject *sensitive_roots = NULL; /* frozenset of str, with those of native_refused */

static PyObject *import_original = NULL, *sanity_original = NULL;

/* An exact str: a subclass could answer for itself when it is looked up in a set. */
static PyObject *root_of(PyObject *name)
{
    if (!PyUnicode_CheckExact(name)) {
        PyObject *exact = PyUnicode_FromObject(name);
        PyObject *root = exact ? root_of(exact) : NULL;
        Py_XDECREF(exact);
        return root;
    }
    Py_ssize_t length = PyUnicode_GET_LENGTH(name);
    Py_ssize_t dot = PyUnicode_FindChar(name, '.', 0, length, 1);
    return dot > 0 ? PyUnicode_Substring(name, 0, dot) : Py_NewRef(name);
}

/* "ctypes" allows "_ctypes" with it, and "cffi" its backend: neither works without the other. */
bool import_allowed(const State *state, PyObject *root)
{
    static const char *const pairs[][2] = {{"ctypes", "_ctypes"}, {"cffi", "_cffi_backend"}};
    if (state_allows_import(state, root)) {
        return true;
    }
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 2; k++) {
            if (PyUnicode_CompareWithASCIIString(root, pairs[i][k]) == 0) {
                PyObject *other = PyUnicode_FromString(pairs[i][1 - k]);
                bool allowed = other && state_allows_import(state, other);
                Py_XDECREF(other);
                return allowed;
            }
        }
    }
    return false;
}

static int refuse(State *state, PyObject *root)
{
    deny(state, DENY_MODULE, "use", root);
    return -1;
}

/* "democrai_extensions.module.x_demo" for module:demo, as runtime/extensions/importer.py names packages. */
static int package_of(const State *state, char *out, size_t room)
{
    const char *kind = PyUnicode_AsUTF8(state->policy->kind);
    Py_ssize_t length = PyUnicode_GET_LENGTH(state->policy->subject);
    int used = kind ? snprintf(out, room, EXTENSIONS "%s.x_", kind) : -1;
    for (Py_ssize_t i = 0; i < length && used > 0 && (size_t)used < room; i++) {
        Py_UCS4 c = PyUnicode_READ_CHAR(state->policy->subject, i);
        bool plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
        used += snprintf(out + used, room - (size_t)used, plain ? "%c" : "_%x_", (unsigned)c);
    }
    return used > 0 && (size_t)used < room ? used : -1;
}

static bool is_of_extension(PyObject *name)
{
    const char *text = PyUnicode_AsUTF8(name);
    PyErr_Clear();
    return text != NULL && strncmp(text, EXTENSIONS, strlen(EXTENSIONS)) == 0;
}

/* Extensions share a process, not their modules: one that held another's could put functions into it. */
static bool is_of_others(const State *state, PyObject *name)
{
    const char *text = is_of_extension(name) ? PyUnicode_AsUTF8(name) : NULL;
    if (text == NULL || strchr(text + strlen(EXTENSIONS), '.') == NULL) {
        return false;
    }
    for (; state != NULL && state->mode != MODE_BYPASS; state = state->parent) {
        char own[4096];
        int length = state->mode == MODE_NARROW ? -1 : package_of(state, own, sizeof own); /* that all users can open */
        if (length > 0 && strncmp(text, own, (size_t)length) == 0 && strchr(".", text[length]) != NULL) {
            return false;
        }
    }
    PyErr_Clear();
    return true;
}

static int check_sensitive(State *state, PyObject *root, bool ask_frame)
{
    bool by_library = ask_frame && asker_is_library();
    if (native_is_refused(root)) {
        int result = refuse(state, root);
        if (by_library) {
            PyErr_Clear(); /* a library that can do without it asks for an ImportError */
            PyErr_Format(PyExc_ModuleNotFoundError, "No module named %R", root);
        }
        return result;
    }
    if (by_library) {
        return 0;
    }
    if (UNLIKELY(candidates_held)) {
        shadow_import(state, root, import_allowed);
    }
    return import_allowed(state, root) ? 0 : refuse(state, root);
}

/* Names that any subject may import while these are the sensitive roots. Owned; most import statements repeat one. */
enum { PLAIN_BITS = 8 };
static PyObject *plain_names[1 << PLAIN_BITS], *plain_under = NULL;

static PyObject **place_of(const PyObject *name)
{
    return &plain_names[(uintptr_t)name * 0x9E3779B97F4A7C15ULL >> (64 - PLAIN_BITS)];
}

static bool is_plain(PyObject *name)
{
    return *place_of(name) == name && LIKELY(plain_under == sensitive_roots);
}

static void note_plain(PyObject *name)
{
    if (plain_under != sensitive_roots) {
        for (size_t i = 0; i < sizeof plain_names / sizeof *plain_names; i++) {
            Py_CLEAR(plain_names[i]);
        }
        Py_XSETREF(plain_under, Py_NewRef(sensitive_roots));
    }
    if (PyUnicode_CheckExact(name)) {
        Py_XSETREF(*place_of(name), Py_NewRef(name));
    }
}

/* -1 with an exception when the module is sensitive and the subject's own code asks for it. A library below the
 * read-only code roots may import it (numpy does); what it then calls is refused at the call. */
int import_check(State *state, PyObject *name, bool ask_frame)
{
    if (!PyUnicode_Check(name) || sensitive_roots == NULL || is_plain(name)) {
        return 0;
    }
    if (UNLIKELY(is_of_others(state, name))) {
        return refuse(state, name);
    }
    PyObject *root = root_of(name);
    if (root == NULL) {
        return -1;
    }
    int sensitive = PySet_Contains(sensitive_roots, root);
    int result = UNLIKELY(sensitive == 1) ? check_sensitive(state, root, ask_frame) : 0;
    if (sensitive == 0 && !is_of_extension(name)) {
        note_plain(name);
    }
    Py_DECREF(root);
    return result;
}

/* The guard cannot contain native code, so it must come from a place that the subject cannot write to. */
int import_native_check(State *state, PyObject *path)
{
    PathText text;
    char location[PATH_MAX];
    if (state_guards_network_only(state)) {
        return 0;
    }
    if (path_text(path, &text) < 0) {
        return -1;
    }
    if (is_location_of_code(state, &text)) {
        strcpy(location, text.text);
    }
    else if (location_of(&text, FOLLOW, location) < 0) {
        Py_DECREF(text.object);
        return -1;
    }
    unsigned mask = location_mask(state, location);
    int result = 0;
    bool readonly_code = (mask & FLAG_CODE) && !(mask & (OP_CREATE | OP_MODIFY | OP_DELETE));
    /* who may start programs gains nothing by loading one: build tools come with native modules in a scratch folder */
    bool starts_any = state->allow_subprocess && !state_names_programs(state);
    if (!readonly_code && !(starts_any && (mask & OP_READ))) {
        deny_path(state, location, OP_EXECUTE, false);
        result = -1;
    }
    Py_DECREF(text.object);
    return result;
}

/* ---- finder caches: what a subject may not read must not look empty to the host ------------------- */

bool finders_suspect = false;

/* A folder that a subject put on sys.path and may not look into is remembered as "no finder". */
static void forget_missing_finders(void)
{
    PyObject *cache = PySys_GetObject("path_importer_cache"), *keys = NULL;
    finders_suspect = false;
    if (cache == NULL || !PyDict_CheckExact(cache) || (keys = PyDict_Keys(cache)) == NULL) {
        return;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(keys); i++) {
        PyObject *key = PyList_GET_ITEM(keys, i);
        if (PyDict_GetItemWithError(cache, key) == Py_None && PyDict_DelItem(cache, key) < 0) {
            PyErr_Clear();
        }
    }
    Py_DECREF(keys);
}

/* ---- __import__, importlib ---------------------------------------------------------------------- */

static PyObject *import_checked(PyObject *name, PyObject *globals, PyObject *locals, PyObject *fromlist, int level)
{
    State *state = live_states > 0 ? state_guarding() : NULL;
    if (state != NULL && level == 0 && import_check(state, name, true) < 0) {
        return NULL;
    }
    if (state == NULL && UNLIKELY(finders_suspect)) {
        forget_missing_finders();
    }
    PyObject *result = PyImport_ImportModuleLevelObject(name, globals, locals, fromlist, level);
    if (UNLIKELY(modules_added()) && result != NULL && patch_added_modules() < 0) {
        Py_CLEAR(result);
    }
    return result;
}

/* Every import statement comes this way, so the five arguments it gives are taken as they are. */
static PyObject *guarded_import(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const char *const names[] = {"name", "globals", "locals", "fromlist", "level"};
    PyObject *given[5] = {NULL};
    Call call = {.args = args, .nargs = nargs, .kwnames = kwnames};
    bool complete = nargs == 5 && kwnames == NULL;
    for (int i = 0; i < 5; i++) {
        Py_ssize_t at = LIKELY(complete) || i < nargs ? i : call_find(&call, -1, names[i]);
        given[i] = at < 0 ? NULL : args[at];
    }
    if (given[0] == NULL || !PyUnicode_Check(given[0]) || nargs > 5) {
        PyErr_SetString(PyExc_TypeError, "__import__() takes a module name and up to four more arguments");
        return NULL;
    }
    long level = given[4] ? PyLong_AsLong(given[4]) : 0;
    if (level == -1 && PyErr_Occurred()) {
        return NULL;
    }
    return import_checked(given[0], given[1], given[2], given[3], (int)level);
}

/* importlib's own first step, for modules that are loaded already and raise no event. */
static PyObject *guarded_sanity(PyObject *module, PyObject *args)
{
    State *state = state_guarding();
    PyObject *name = PyTuple_GET_SIZE(args) > 0 ? PyTuple_GET_ITEM(args, 0) : NULL;
    long level = PyTuple_GET_SIZE(args) > 2 && PyLong_Check(PyTuple_GET_ITEM(args, 2))
                     ? PyLong_AsLong(PyTuple_GET_ITEM(args, 2))
                     : 0;
    if (state != NULL && name != NULL && level == 0 && import_check(state, name, true) < 0) {
        return NULL;
    }
    if (finders_suspect && state == NULL) {
        forget_missing_finders();
    }
    return PyObject_Call(sanity_original, args, NULL);
}

static PyMethodDef import_def = {"__import__", (PyCFunction)(void (*)(void))guarded_import,
                                 METH_FASTCALL | METH_KEYWORDS, NULL};
static PyMethodDef sanity_def = {"_sanity_check", guarded_sanity, METH_VARARGS, NULL};

static int replace(const char *module_name, const char *name, PyMethodDef *def, PyObject **original)
{
    PyObject *module = PyImport_ImportModule(module_name);
    PyObject *owner = module ? PyUnicode_FromString(module_name) : NULL;
    PyObject *function = owner ? PyCFunction_NewEx(def, module, owner) : NULL;
    *original = function ? PyObject_GetAttrString(module, name) : NULL;
    if (*original != NULL && PyCFunction_Check(*original)) {
        def->ml_doc = ((PyCFunctionObject *)*original)->m_ml->ml_doc; /* its signature is read from there */
    }
    int result = *original ? PyObject_SetAttrString(module, name, function) : -1;
    Py_XDECREF(function);
    Py_XDECREF(owner);
    Py_XDECREF(module);
    return result;
}

int imports_ready(void)
{
    if (replace("builtins", "__import__", &import_def, &import_original) < 0 ||
        replace("_frozen_importlib", "_sanity_check", &sanity_def, &sanity_original) < 0) {
        return -1;
    }
    return 0;
}
