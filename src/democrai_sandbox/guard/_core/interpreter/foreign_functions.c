/* Use of ctypes and cffi, which can reach any address. The subject's own code needs a declaration for it.
 *
 * Installed packages may use them if the host trusts the package, or if the kernel confines the process. The calling
 * frame counts and, for a function pointer, the package that made it. This keeps honest code working. It does not
 * contain hostile code, which can make a package call native functions with chosen arguments. */
#include "interpreter/interpreter.h"

#include <string.h>

PyObject *native_packages = NULL; /* frozenset: packages that the host trusts with foreign functions */

enum { NAME = 128 };

/* ---- who calls ------------------------------------------------------------------------------------ */

/* The package that a file of a code root belongs to: "numpy" for .../site-packages/numpy/a/b.py. Empty for the standard
 * library, and false for what has no such name. */
static bool package_name(const char *file, char *out)
{
    static const char *const folders[] = {"/site-packages/", "/dist-packages/"};
    const char *start = NULL;
    for (size_t i = 0; i < sizeof folders / sizeof *folders && start == NULL; i++) {
        const char *found = strstr(file, folders[i]);
        start = found ? found + strlen(folders[i]) : NULL;
    }
    out[0] = '\0';
    if (start == NULL) {
        return true;
    }
    size_t length = strcspn(start, "/.");
    if (length == 0 || length >= NAME) {
        return false;
    }
    memcpy(out, start, length);
    out[length] = '\0';
    return true;
}

/* Helpers that act for their caller, with what they are given. */
static bool is_helper(const char *file)
{
    return strstr(file, "/ctypes/") != NULL || strstr(file, "/cffi/") != NULL ||
           strstr(file, "/numpy/ctypeslib") != NULL;
}

/* Whether code contains the name of a helper. A package can also call functions that a subject passed to it. */
static bool names(PyCodeObject *code, PyCodeObject *helper)
{
    const char *text = PyUnicode_AsUTF8(helper->co_qualname);
    size_t length = text ? strcspn(text, ".") : 0; /* CDLL of CDLL.__init__ */
    bool found = false;
    for (Py_ssize_t i = 0; text != NULL && i < PyTuple_GET_SIZE(code->co_names) && !found; i++) {
        const char *name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(code->co_names, i));
        found = name != NULL && strlen(name) == length && strncmp(name, text, length) == 0;
    }
    PyErr_Clear();
    return found;
}

typedef struct {
    char package[NAME];
    bool behind_helper; /* of ctypes or cffi, which the package calls */
    bool named;         /* by the package itself */
} Caller;

/* The package whose frame makes the call; false when that is the subject's own code. */
static bool find_caller(Caller *out)
{
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    PyCodeObject *helper = NULL;
    bool found = false, done = false;
    while (frame != NULL && !done) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        bool package = code_is_library(code) && !code_is_ours(code);
        const char *file = package ? PyUnicode_AsUTF8(code->co_filename) : NULL;
        PyErr_Clear();
        bool importing =
            file != NULL && strncmp(file, "<frozen importlib", 17) == 0; /* a native module, by its maker */
        bool passed_on =
            file != NULL && is_helper(file) &&
            PyUnicode_CompareWithASCIIString(code->co_name, "<module>") != 0; /* it works for itself then */
        done = !importing && !passed_on;
        found = done && file != NULL && file[0] == '/' && package_name(file, out->package);
        out->behind_helper = helper != NULL;
        out->named = found && helper != NULL && names(code, helper);
        if (passed_on) {
            Py_XSETREF(helper, (PyCodeObject *)Py_NewRef(code));
        }
        Py_DECREF(code);
        PyFrameObject *back = done ? NULL : PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    Py_XDECREF(helper);
    return found;
}

/* Whether a module of a library is being imported, and nothing but libraries is at work since. */
static bool library_is_imported(void)
{
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    bool is = false, done = false;
    while (frame != NULL && !done) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        bool module = PyUnicode_CompareWithASCIIString(code->co_name, "<module>") == 0;
        is = module && is_imported_library((PyObject *)code);
        done = module || !code_is_library(code);
        Py_DECREF(code);
        PyFrameObject *back = done ? NULL : PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    return is;
}

static bool is_trusted(const char *package)
{
    PyObject *name = package[0] && native_packages ? PyUnicode_FromString(package) : NULL;
    bool is = name != NULL && PySet_Contains(native_packages, name) == 1;
    Py_XDECREF(name);
    PyErr_Clear();
    return is;
}

/* ---- who made a function pointer ----------------------------------------------------------------- */

static PyObject *makers = NULL;   /* address of the object -> the package that made it */
static const char anyone[] = "*"; /* in place of a package: made before the guard was loaded, so not by a subject */

static void set_maker(PyObject *function, const char *package)
{
    PyObject *key = PyLong_FromVoidPtr(function), *name = package ? PyUnicode_FromString(package) : NULL;
    makers = makers ? makers : PyDict_New();
    if (makers != NULL && key != NULL && name != NULL) {
        PyDict_SetItem(makers, key, name);
    }
    else if (makers != NULL && key != NULL && PyDict_Contains(makers, key) == 1) {
        PyDict_DelItem(makers, key);
    }
    Py_XDECREF(key);
    Py_XDECREF(name);
    PyErr_Clear();
}

/* The package that made a function; NULL when no library has. Borrowed. */
static PyObject *maker_of(PyObject *function)
{
    PyObject *key = makers ? PyLong_FromVoidPtr(function) : NULL;
    PyObject *name = key ? PyDict_GetItemWithError(makers, key) : NULL;
    Py_XDECREF(key);
    PyErr_Clear();
    return name;
}

/* Whether a trusted package made it, which need not be the caller: packages come in two parts, one for the functions.
 */
static bool is_made_by_trusted(PyObject *function)
{
    PyObject *name = maker_of(function);
    const char *text = name ? PyUnicode_AsUTF8(name) : NULL;
    PyErr_Clear();
    return text != NULL && (strcmp(text, anyone) == 0 || is_trusted(text));
}

/* ---- who opened a library -------------------------------------------------------------------------- */

static PyObject *openers = NULL; /* "handle:package" of each library that a package has opened */

static PyObject *opener_key(PyObject *handle, const char *package)
{
    return handle && PyLong_CheckExact(handle) ? PyUnicode_FromFormat("%S:%s", handle, package) : NULL;
}

static void set_opener(PyObject *handle, const char *package)
{
    openers = openers ? openers : PySet_New(NULL);
    PyObject *key = openers ? opener_key(handle, package) : NULL;
    if (key != NULL) {
        PySet_Add(openers, key);
    }
    Py_XDECREF(key);
    PyErr_Clear();
}

static void note_opener(PyObject *handle)
{
    Caller caller;
    if (find_caller(&caller)) {
        set_opener(handle, caller.package);
    }
}

/* The number of an open library, as ctypes keeps it; no code of the object's runs. */
static PyObject *handle_of(PyObject *library)
{
    PyObject *fields = library ? PyObject_GenericGetDict(library, NULL) : NULL;
    PyObject *handle = fields && PyDict_Check(fields) ? PyDict_GetItemString(fields, "_handle") : NULL;
    Py_XINCREF(handle);
    Py_XDECREF(fields);
    PyErr_Clear();
    return handle;
}

static bool has_opener(PyObject *handle, const char *package)
{
    PyObject *key = openers ? opener_key(handle, package) : NULL;
    bool has = key != NULL && PySet_Contains(openers, key) == 1;
    Py_XDECREF(key);
    PyErr_Clear();
    return has;
}

static bool is_opened_by(PyObject *library, const char *package)
{
    PyObject *handle = handle_of(library);
    bool is = has_opener(handle, package) || has_opener(handle, anyone);
    Py_XDECREF(handle);
    return is;
}

/* ---- the decision ---------------------------------------------------------------------------------- */

/* Whether a package may do this. `function` is the called pointer and `library` the library of a lookup, or NULL. While
 * a module is imported, the library works for itself. Later a subject may be the cause: then the code of the package
 * must name the helper, and a trusted package must have made the function. */
static bool is_package_use(PyObject *function, PyObject *library)
{
    Caller caller;
    if (!find_caller(&caller)) {
        return false;
    }
    if (process_confined && caller.package[0] != '\0') {
        return true;
    }
    if (!is_trusted(caller.package)) {
        return false;
    }
    if (library_is_imported()) {
        return function == NULL || maker_of(function) != NULL;
    }
    if (library != NULL) {
        return is_opened_by(library, caller.package);
    }
    return caller.behind_helper ? caller.named : function == NULL || is_made_by_trusted(function);
}

static int check_use(State *state, const char *root, PyObject *function, PyObject *library)
{
    PyObject *name = PyUnicode_FromString(root);
    int result = name && (import_allowed(state, name) || is_package_use(function, library)) ? 0 : -1;
    if (name != NULL && result < 0) {
        deny(state, DENY_MODULE, "use", name);
    }
    Py_XDECREF(name);
    return result;
}

int foreign_check(State *state, const char *root, PyObject *function)
{
    return check_use(state, root, function, NULL);
}

int foreign_event(State *state, const char *event, PyObject *args)
{
    bool looks_up = strcmp(event, "ctypes.dlsym") == 0 && PyTuple_GET_SIZE(args) > 0;
    return check_use(state, "ctypes", NULL, looks_up ? PyTuple_GET_ITEM(args, 0) : NULL);
}

PyObject *on_foreign(State *state, Call *call)
{
    return foreign_check(state, call->row->module, NULL) < 0 ? NULL : call_original(call);
}

/* A library is loaded from where no subject can write, or by a name that the system looks up. */
static int library_check(State *state, Call *call)
{
    PyObject *path = call->nargs > 0 ? call->args[0] : NULL;
    const char *text = path && PyUnicode_Check(path) ? PyUnicode_AsUTF8(path) : NULL;
    PyErr_Clear();
    if (foreign_check(state, call->row->module, NULL) < 0) {
        return -1;
    }
    if (path == NULL || path == Py_None || (text != NULL && strchr(text, '/') == NULL)) {
        return 0;
    }
    PyObject *root = PyUnicode_FromString(call->row->module);
    bool declared = root != NULL && import_allowed(state, root);
    Py_XDECREF(root);
    return declared ? 0 : import_native_check(state, path);
}

/* Also for unguarded code: a package that the host has loaded works for subjects later. */
PyObject *on_foreign_library(State *unused, Call *call)
{
    State *state = state_guarding();
    if (state != NULL && library_check(state, call) < 0) {
        return NULL;
    }
    PyObject *handle = call_original(call);
    if (handle != NULL) {
        note_opener(handle);
    }
    return handle;
}

/* ---- cffi ------------------------------------------------------------------------------------------- */

static ternaryfunc pointer_original = NULL, cdata_original = NULL;

static PyObject *cdata_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    State *state = state_guarding();
    if (state != NULL && foreign_check(state, "_cffi_backend", self) < 0) {
        return NULL;
    }
    return cdata_original(self, args, kwargs);
}

int cffi_patch(PyObject *module)
{
    PyTypeObject *type = (PyTypeObject *)PyObject_GetAttrString(module, "_CDataBase");
    if (type == NULL || type->tp_call == NULL) {
        PyErr_Clear();
        Py_XDECREF(type);
        return 0;
    }
    Py_DECREF(type);
    return patch_type(module, "_CDataBase", NULL, offsetof(PyTypeObject, tp_call), (void *)cdata_call, &cdata_original);
}

/* ---- ctypes ----------------------------------------------------------------------------------------- */

/* Calling a C function pointer raises no event, and memmove alone writes anywhere. */
static PyObject *pointer_call(PyObject *self, PyObject *args, PyObject *kwargs)
{
    State *state = state_guarding();
    if (state != NULL && foreign_check(state, "ctypes", self) < 0) {
        return NULL;
    }
    return pointer_original(self, args, kwargs);
}

/* Data types need no call either: a c_char_p made of a number reads at that address. */
static const char *const data_types[] = {"_SimpleCData", "Structure", "Union", "Array", "_Pointer", "CFuncPtr"};
enum { DATA_TYPES = sizeof data_types / sizeof *data_types, FUNCTION = DATA_TYPES - 1 };
static newfunc data_original[DATA_TYPES];

static PyObject *data_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);

/* Which of these types a type derives from: the last one whose slot was replaced, in any copy of the module. */
static int data_index(PyTypeObject *type)
{
    const char *name = "";
    for (; type != NULL; type = type->tp_base) {
        name = type->tp_new == data_new ? type->tp_name : name;
    }
    const char *dot = strrchr(name, '.');
    for (int i = 0; i < DATA_TYPES; i++) {
        if (strcmp(dot ? dot + 1 : name, data_types[i]) == 0) {
            return i;
        }
    }
    return -1;
}

/* Whether it is a type of ctypes: what its attributes say decides how memory is read. */
bool is_foreign_type(PyTypeObject *type)
{
    return type->tp_new == data_new;
}

static PyObject *data_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    State *state = state_guarding();
    int index = data_index(type);
    PyObject *first = index == FUNCTION && PyTuple_GET_SIZE(args) > 0 ? PyTuple_GET_ITEM(args, 0) : NULL;
    bool looks_up = first != NULL && PyTuple_Check(first) && PyTuple_GET_SIZE(first) == 2; /* (name, library) */
    if (state != NULL && check_use(state, "ctypes", NULL, looks_up ? PyTuple_GET_ITEM(first, 1) : NULL) < 0) {
        return NULL;
    }
    if (index < 0 || data_original[index] == NULL) {
        PyErr_SetString(PyExc_TypeError, "not a ctypes type");
        return NULL;
    }
    PyObject *made = data_original[index](type, args, kwargs);
    if (made != NULL && index == FUNCTION) {
        Caller caller;
        set_maker(made, find_caller(&caller) ? caller.package : NULL);
    }
    return made;
}

static destructor function_dealloc_original = NULL;

static void function_dealloc(PyObject *self)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    set_maker(self, NULL);
    PyErr_Restore(type, value, trace);
    function_dealloc_original(self);
}

/* ---- patching -------------------------------------------------------------------------------------- */

/* ctypes makes these functions for itself, before the guard knows where libraries lie. Another module of that name may
 * bring functions of others, and does not count. */
int ctypes_functions(PyObject *module)
{
    static const char *const names[] = {"memmove", "memset", "_cast", "_string_at", "_wstring_at"};
    static PyObject *first = NULL;
    PyObject *fields = PyModule_Check(module) ? PyModule_GetDict(module) : NULL;
    if (first != NULL && first != module) {
        return 1;
    }
    for (size_t i = 0; fields != NULL && i < sizeof names / sizeof *names; i++) {
        PyObject *function = PyDict_GetItemString(fields, names[i]);
        if (function != NULL && Py_TYPE(function)->tp_call == pointer_call) {
            set_maker(function, "");
            Py_XSETREF(first, Py_NewRef(module));
        }
    }
    return first != NULL;
}

/* Registers functions and libraries that packages made before the guard was loaded, so that they work for subjects. */
static void note_earlier(void)
{
    PyObject *ctypes = PyDict_GetItemString(PyImport_GetModuleDict(), "ctypes");
    PyObject *library = ctypes ? PyObject_GetAttrString(ctypes, "CDLL") : NULL;
    PyObject *own = library ? PyObject_GetAttrString(ctypes, "pythonapi") : NULL;
    PyObject *collector = own && PyType_Check(library) ? PyImport_ImportModule("gc") : NULL;
    PyObject *objects = collector ? PyObject_CallMethod(collector, "get_objects", NULL) : NULL;
    for (Py_ssize_t i = 0; objects != NULL && i < PyList_GET_SIZE(objects); i++) {
        PyObject *object = PyList_GET_ITEM(objects, i);
        if (Py_TYPE(object)->tp_call == pointer_call) {
            set_maker(object, anyone);
        }
        else if (object != own && PyType_IsSubtype(Py_TYPE(object), (PyTypeObject *)library)) {
            PyObject *handle = handle_of(object);
            set_opener(handle, anyone);
            Py_XDECREF(handle);
        }
    }
    PyErr_Clear();
    Py_XDECREF(objects);
    Py_XDECREF(collector);
    Py_XDECREF(own);
    Py_XDECREF(library);
}

int ctypes_patch(PyObject *module)
{
    int result = patch_type(module, "CFuncPtr", "__call__", offsetof(PyTypeObject, tp_call), (void *)pointer_call,
                            &pointer_original);
    for (int i = 0; result == 1 && i < DATA_TYPES; i++) {
        result = patch_type(module, data_types[i], NULL, offsetof(PyTypeObject, tp_new), (void *)data_new,
                            &data_original[i]);
    }
    if (result == 1) {
        result = patch_type(module, "CFuncPtr", NULL, offsetof(PyTypeObject, tp_dealloc), (void *)function_dealloc,
                            &function_dealloc_original);
    }
    if (result == 1 && makers == NULL && state_guarding() == NULL) {
        note_earlier();
    }
    return result == 1 ? pointers_patch(module) : result;
}
