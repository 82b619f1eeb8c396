/* Native modules: checks which ones guarded code loads, and patches each copy of them under any name.
 *
 * Modules of the interpreter are in a list for its version. Other modules must come from read-only code; see
 * import_native_check(). */
#include "interpreter/interpreter.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#ifdef __linux__
#include <link.h>
#endif

PyObject *native_allowed = NULL; /* frozenset: names of the interpreter's modules that guarded code loads */
PyObject *native_refused = NULL; /* frozenset: names of all others that it has */
PyObject *native_folder = NULL;  /* str: where it has those that are not built in */

static PyObject *namespace_type = NULL;

static const char *last_part(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? dot + 1 : name;
}

/* The name in C, which cannot be changed; "_io" has another one there. */
static const char *defined_name(PyObject *module)
{
    PyModuleDef *definition = PyModule_GetDef(module);
    PyErr_Clear();
    const char *name = definition && definition->m_name ? definition->m_name : "";
    return strcmp(name, "io") == 0 ? "_io" : name;
}

static int patch_copy(PyObject *module, const char *given)
{
    const char *names[] = {given, last_part(given), defined_name(module)};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        bool seen = false;
        for (size_t k = 0; k < i; k++) {
            seen = seen || strcmp(names[i], names[k]) == 0;
        }
        if (!seen && patch_module(names[i], module) < 0) {
            return -1;
        }
    }
    return 0;
}

/* A native module is patched before any code can use it, even if it never enters sys.modules. */
static PyObject *patched(PyObject *result, PyObject *module, const char *given)
{
    if (result == NULL || PyErr_Occurred() || module == NULL || !PyModule_Check(module)) {
        return result;
    }
    const char *name = given ? given : PyModule_GetName(module);
    PyErr_Clear();
    if (patch_copy(module, name ? name : "") < 0) {
        Py_CLEAR(result);
    }
    return result;
}

/* ---- creating ------------------------------------------------------------------------------------ */

static PyObject *exact_text(PyObject *spec, const char *name)
{
    PyObject *value = PyObject_GetAttrString(spec, name);
    if (value != NULL && !PyUnicode_Check(value)) {
        PyErr_Format(PyExc_TypeError, "the spec's %s must be a str", name);
        Py_CLEAR(value);
    }
    PyObject *exact = value ? PyUnicode_FromObject(value) : NULL;
    Py_XDECREF(value);
    return exact;
}

/* A copy with attributes that are read once: those of the subject's object could differ each time. */
static PyObject *settled_spec(PyObject *spec, bool has_file)
{
    static const char *const further[] = {"loader", "submodule_search_locations", "parent", "cached", "has_location"};
    PyObject *fields = PyDict_New(), *name = fields ? exact_text(spec, "name") : NULL;
    PyObject *origin = !name ? NULL : has_file ? exact_text(spec, "origin") : PyUnicode_FromString("built-in");
    PyObject *result = NULL;
    if (origin == NULL || PyDict_SetItemString(fields, "name", name) < 0 ||
        PyDict_SetItemString(fields, "origin", origin) < 0) {
        goto done;
    }
    for (size_t i = 0; i < sizeof further / sizeof *further; i++) {
        PyObject *value = PyObject_GetAttrString(spec, further[i]);
        PyErr_Clear();
        int set = PyDict_SetItemString(fields, further[i], value ? value : Py_None);
        Py_XDECREF(value);
        if (set < 0) {
            goto done;
        }
    }
    PyObject *nothing = PyTuple_New(0);
    result = nothing ? PyObject_Call(namespace_type, nothing, fields) : NULL;
    Py_XDECREF(nothing);
done:
    Py_XDECREF(fields);
    Py_XDECREF(name);
    Py_XDECREF(origin);
    return result;
}

/* The name of a file of the interpreter's, up to its first dot; a file can have several modules in it. None for files
 * of others, NULL with an exception. */
static PyObject *own_file(PyObject *origin)
{
    PathText text;
    char location[PATH_MAX];
    const char *folder = native_folder ? PyUnicode_AsUTF8(native_folder) : "";
    if (folder == NULL || path_text(origin, &text) < 0) {
        return NULL;
    }
    int found = location_of(&text, FOLLOW, location);
    Py_DECREF(text.object);
    if (found < 0) {
        return NULL;
    }
    size_t length = strlen(folder);
    if (strncmp(location, folder, length) != 0 || location[length] != '/') {
        return Py_NewRef(Py_None);
    }
    const char *file = strrchr(location, '/') + 1;
    return PyUnicode_DecodeFSDefaultAndSize(file, (Py_ssize_t)strcspn(file, "."));
}

bool native_is_refused(PyObject *name)
{
    return native_refused != NULL && PySet_Contains(native_refused, name) == 1;
}

static int allow(State *state, PyObject *name)
{
    if (name == Py_None || native_allowed == NULL || PySet_Contains(native_allowed, name) == 1) {
        return 0;
    }
    deny(state, DENY_MODULE, "use", name);
    return -1;
}

/* -1 with an exception for a module that is sensitive, or one of the interpreter's that is not on the list. */
static int native_check(State *state, PyObject *spec, bool has_file)
{
    PyObject *name = PyObject_GetAttrString(spec, "name"), *origin = PyObject_GetAttrString(spec, "origin");
    const char *text = name ? PyUnicode_AsUTF8(name) : NULL;
    PyObject *last = text ? PyUnicode_FromString(last_part(text)) : NULL;
    PyObject *own = !last || !origin ? NULL : has_file ? own_file(origin) : Py_NewRef(last);
    int result = own && import_check(state, last, true) == 0 ? allow(state, own) : -1;
    Py_XDECREF(name);
    Py_XDECREF(origin);
    Py_XDECREF(last);
    Py_XDECREF(own);
    return result;
}

/* ---- damaged files ------------------------------------------------------------------------------- */

#ifdef __linux__
/* The defect of the file of a native module; NULL without one, or when the loader reports it. */
static const char *damage(int fd)
{
    struct stat info;
    ElfW(Ehdr) head;
    if (fstat(fd, &info) < 0 || pread(fd, &head, sizeof head, 0) != (ssize_t)sizeof head ||
        memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_phentsize != sizeof(ElfW(Phdr))) {
        return NULL;
    }
    uint64_t size = (uint64_t)info.st_size;
    size_t length = head.e_phnum * sizeof(ElfW(Phdr));
    ElfW(Phdr) *parts = PyMem_Malloc(length);
    bool sound = head.e_phoff <= size && parts && pread(fd, parts, length, (off_t)head.e_phoff) == (ssize_t)length;
    for (unsigned i = 0; sound && i < head.e_phnum; i++) {
        sound = parts[i].p_type != PT_LOAD ||
                (parts[i].p_offset <= size && parts[i].p_filesz <= size - parts[i].p_offset);
    }
    PyMem_Free(parts);
    return sound ? NULL : "the file is truncated";
}

/* The loader of the system maps a truncated file; reading past its end would kill the process by a signal. */
static int refuse_damaged(State *state, PyObject *spec)
{
    PyObject *name = PyObject_GetAttrString(spec, "name"), *origin = PyObject_GetAttrString(spec, "origin");
    PyObject *path = NULL;
    /* first check whether it may be loaded: nothing is revealed about any other file */
    bool may = name && origin && import_native_check(state, origin) == 0;
    int result = may && PyUnicode_FSConverter(origin, &path) ? 0 : -1;
    int fd = result == 0 ? open(PyBytes_AS_STRING(path), O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    const char *wrong = fd >= 0 ? damage(fd) : NULL;
    if (wrong != NULL) {
        PyObject *text = PyUnicode_FromFormat("%U: %s", origin, wrong);
        if (text != NULL) {
            PyErr_SetImportError(text, name, origin);
        }
        Py_XDECREF(text);
        result = -1;
    }
    if (fd >= 0) {
        close(fd);
    }
    Py_XDECREF(name);
    Py_XDECREF(origin);
    Py_XDECREF(path);
    return result;
}
#else
static int refuse_damaged(State *state, PyObject *spec)
{
    return 0;
}
#endif

/* create_dynamic(spec, file=None) and create_builtin(spec). */
PyObject *on_create_native(State *unused, Call *call)
{
    State *state = state_guarding();
    bool has_file = call->row->has_file;
    if (call->nargs < 1) {
        return call_original(call);
    }
    PyObject *spec = state ? settled_spec(call->args[0], has_file) : Py_NewRef(call->args[0]);
    PyObject *result = NULL, *name = NULL;
    if (spec != NULL && (state == NULL || (native_check(state, spec, has_file) == 0 &&
                                           (!has_file || refuse_damaged(state, spec) == 0)))) {
        Call settled = *call;
        settled.tuple = NULL;
        settled.args = &spec;
        settled.nargs = 1;
        result = state ? call_original(&settled) : call_original(call);
        name = result ? PyObject_GetAttrString(spec, "name") : NULL;
        const char *text = name && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
        if (result != NULL) {
            PyErr_Clear();
        }
        result = patched(result, result, text);
    }
    Py_XDECREF(name);
    Py_XDECREF(spec);
    return result;
}

/* exec_dynamic(module) and exec_builtin(module). */
PyObject *on_exec_native(State *unused, Call *call)
{
    return patched(call_original(call), call->nargs > 0 ? call->args[0] : NULL, NULL);
}

int native_modules_ready(void)
{
    PyObject *types = PyImport_ImportModule("types");
    namespace_type = types ? PyObject_GetAttrString(types, "SimpleNamespace") : NULL;
    Py_XDECREF(types);
    return namespace_type ? 0 : -1;
}
