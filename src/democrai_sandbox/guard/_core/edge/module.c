/* The extension module: installs all patches when it is imported, takes the settings of the host, and is never
 * unloaded. */
#include "edge/edge.h"

#include <string.h>

static PyObject *libraries = NULL; /* entries of further read-only code */
static PyObject *protected = NULL; /* entries of what the host protects, for every policy made from now on */
static PyObject *read_only = NULL; /* entries of code that no subject may change, for every policy made from now on */
static PyObject *policies = NULL;  /* compiled policies by their declarations; out of reach of guarded code */
enum { POLICIES_KEPT = 1024 };

static int refuse_when_sealed(void)
{
    if (sealed) {
        PyErr_SetString(usage_error ? usage_error : PyExc_RuntimeError,
                        "the guard is sealed: configure it before the first guard is entered");
        return -1;
    }
    return 0;
}

/* setup(**settings): called by the Python side at import and by the host before the first guard; never afterwards. */
static PyObject *setup(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"denial_factory",
                            "usage_error",
                            "child_environment",
                            "decider",
                            "recorder",
                            "facade_files",
                            "sensitive_roots",
                            "protected",
                            "runtime_policy",
                            "code_policy",
                            "runtime_code",
                            "check_failed",
                            "handle_code",
                            "invalid_target",
                            "decision_type",
                            "default_ports",
                            "parse_url",
                            "normalise_host",
                            "observer",
                            "adapters",
                            "diverted",
                            "libraries",
                            "watcher",
                            "native_allowed",
                            "native_refused",
                            "native_folder",
                            "native_packages",
                            "read_only",
                            "opener",
                            NULL};
    PyObject *factory = NULL, *usage = NULL, *environment = NULL, *ask = NULL, *record = NULL, *facade = NULL,
             *roots = NULL;
    PyObject *shut = NULL, *runtime = NULL, *code = NULL, *codes = NULL, *failed = NULL, *handle = NULL;
    PyObject *invalid = NULL, *decision = NULL, *ports = NULL, *parse = NULL, *normalise = NULL, *watch = NULL,
             *clients = NULL, *exchanged = NULL, *further = NULL, *shadow = NULL, *natives = NULL, *refused = NULL,
             *folder = NULL, *packages = NULL, *fixed = NULL, *open = NULL;
    if (refuse_when_sealed() < 0 ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOOOO!O!O!O!O!OOO!OOO!OOOO!O!O!OO!O!UO!O!O", names, &factory,
                                     &usage, &environment, &ask, &record, &PyFrozenSet_Type, &facade, &PyFrozenSet_Type,
                                     &roots, &PyTuple_Type, &shut, &Policy_Type, &runtime, &Policy_Type, &code, &codes,
                                     &failed, &PyCode_Type, &handle, &invalid, &decision, &PyDict_Type, &ports, &parse,
                                     &normalise, &watch, &PyDict_Type, &clients, &PyTuple_Type, &exchanged,
                                     &PyTuple_Type, &further, &shadow, &PyFrozenSet_Type, &natives, &PyFrozenSet_Type,
                                     &refused, &folder, &PyFrozenSet_Type, &packages, &PyTuple_Type, &fixed, &open)) {
        return NULL;
    }
    struct {
        PyObject **place, *value;
    } given[] = {{&denial_factory, factory},
                 {&usage_error, usage},
                 {&child_environment, environment},
                 {&decider, ask},
                 {&recorder, record},
                 {&facade_files, facade},
                 {&sensitive_roots, roots},
                 {&protected, shut},
                 {&libraries, further},
                 {&read_only, fixed},
                 {&check_failed, failed},
                 {&handle_code, handle},
                 {&invalid_target, invalid},
                 {&decision_type, decision},
                 {&parse_url, parse},
                 {&normalise_host, normalise},
                 {&observer, watch},
                 {&opener, open},
                 {&watcher, shadow},
                 {&native_allowed, natives},
                 {&native_refused, refused},
                 {&native_folder, folder},
                 {&native_packages, packages},
                 {(PyObject **)&runtime_policy, runtime},
                 {(PyObject **)&code_policy, code}};
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        if (given[i].value != NULL) {
            Py_XSETREF(*given[i].place, Py_NewRef(given[i].value));
        }
    }
    location_masks_forget();
    if (codes != NULL && register_runtime_code(codes) < 0) {
        return NULL;
    }
    if (ports != NULL && default_ports_set(ports) < 0) {
        return NULL;
    }
    if (exchanged != NULL && (diverted_set(exchanged) < 0 || diverted_await(exchanged) < 0)) {
        return NULL;
    }
    if (clients != NULL && adapters_set(clients) < 0) {
        return NULL;
    }
    if (handle != NULL) {
        look_at_all_modules = true; /* asyncio may have been loaded before its code was known */
    }
    if ((shut != NULL || fixed != NULL) && policies != NULL) {
        PyDict_Clear(policies); /* compiled without the new paths */
    }
    Py_RETURN_NONE;
}

static PyObject *protected_entries(PyObject *module, PyObject *unused)
{
    return protected ? Py_NewRef(protected) : PyTuple_New(0);
}

static PyObject *library_entries(PyObject *module, PyObject *unused)
{
    return libraries ? Py_NewRef(libraries) : PyTuple_New(0);
}

static PyObject *read_only_entries(PyObject *module, PyObject *unused)
{
    return read_only ? Py_NewRef(read_only) : PyTuple_New(0);
}

static PyObject *get_sensitive_roots(PyObject *module, PyObject *unused)
{
    return sensitive_roots ? Py_NewRef(sensitive_roots) : PyFrozenSet_New(NULL);
}

static PyObject *recall(PyObject *module, PyObject *key)
{
    PyObject *found = PyTuple_CheckExact(key) ? PyDict_GetItemWithError(policies, key) : NULL;
    return found ? Py_NewRef(found) : PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* Policies that guarded code compiles are not kept: it must not choose what the host finds under a key. */
static PyObject *remember(PyObject *module, PyObject *args)
{
    PyObject *key, *policy;
    if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &key, &Policy_Type, &policy)) {
        return NULL;
    }
    if (state_guarding() == NULL) {
        if (PyDict_GET_SIZE(policies) >= POLICIES_KEPT) {
            PyDict_Clear(policies);
        }
        if (PyDict_SetItem(policies, key, policy) < 0) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

static PyObject *current_view(PyObject *module, PyObject *unused)
{
    State *state = state_guarding();
    return state ? state_view(state) : Py_NewRef(Py_None);
}

static PyObject *recent_for_host(PyObject *module, PyObject *unused)
{
    return state_guarding() ? PyList_New(0) : recent_denials(module, unused);
}

static PyObject *count_states(PyObject *module, PyObject *unused)
{
    collection_release();
    return PyLong_FromSsize_t(live_states - residents); /* those of marked code are not entered */
}

static PyObject *count_residents(PyObject *module, PyObject *unused)
{
    return PyLong_FromSsize_t(residents);
}

/* serve(value) -> token, unserve(token): for code of the host. */
static PyObject *serve(PyObject *module, PyObject *value)
{
    State *state = state_guarding();
    return state ? deny_text(state, DENY_TAMPER, "serving") : variable_set(served_variable, value);
}

static PyObject *unserve(PyObject *module, PyObject *token)
{
    int paused = collection_pause();
    int result = paused < 0 ? -1 : PyContextVar_Reset(served_variable, token);
    collection_resume(paused);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *served(PyObject *module, PyObject *unused)
{
    PyObject *value = served_save();
    return value ? value : PyErr_NoMemory();
}

static PyObject *is_sealed(PyObject *module, PyObject *unused)
{
    return PyBool_FromLong(sealed);
}

/* (module, owner, name, patched) of every row: the coverage test and the status page read it. */
static PyObject *patched_entries(PyObject *module, PyObject *unused)
{
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < row_count; i++) {
        PyObject *row =
            Py_BuildValue("(sssO)", rows[i].module, rows[i].owner, rows[i].name, rows[i].original ? Py_True : Py_False);
        if (row == NULL || PyList_Append(list, row) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(row);
    }
    return list;
}

/* mask(policy, path): the native matcher alone, for the comparison with policy.paths. */
static PyObject *mask(PyObject *module, PyObject *args)
{
    PyObject *policy;
    const char *path;
    PathKey key;
    if (!PyArg_ParseTuple(args, "O!y", &Policy_Type, &policy, &path)) {
        return NULL;
    }
    if (path[0] != '/' || strlen(path) >= PATH_MAX) {
        PyErr_SetString(PyExc_ValueError, "not an absolute path");
        return NULL;
    }
    path_key(&key, path);
    return PyLong_FromUnsignedLong(policy_mask((Policy *)policy, &key) & OP_ALL);
}

/* try_guard(policy, function) -> number of denials: runs a function under a guard without sealing or recording, to test
 * the patches. Only before the first guard. */
static PyObject *try_guard(PyObject *module, PyObject *args)
{
    PyObject *policy, *function, *result = NULL;
    Entered entered;
    if (refuse_when_sealed() < 0 || !PyArg_ParseTuple(args, "O!O", &Policy_Type, &policy, &function)) {
        return NULL;
    }
    PyObject *nobody = PyTuple_Pack(3, Py_None, Py_None, Py_None);
    State *state = nobody ? state_new(NULL, (Policy *)policy, MODE_EXACT, false, nobody) : NULL;
    Py_XDECREF(nobody);
    size_t before = denials_made;
    recording = false;
    if (state != NULL && state_enter(state, &entered) == 0) {
        result = PyObject_CallNoArgs(function);
        state_leave(&entered);
    }
    recording = true;
    Py_XDECREF(state);
    Py_XDECREF(result);
    PyErr_Clear(); /* its exception is ignored: library code gets "not found" */
    return PyLong_FromSize_t(denials_made - before);
}

static PyMethodDef methods[] = {
    {"setup", (PyCFunction)(void (*)(void))setup, METH_VARARGS | METH_KEYWORDS, NULL},
    {"policy", (PyCFunction)(void (*)(void))policy_new, METH_VARARGS | METH_KEYWORDS, NULL},
    {"guard", (PyCFunction)(void (*)(void))guard_new, METH_VARARGS | METH_KEYWORDS, NULL},
    {"bypass", bypass_new, METH_NOARGS, NULL},
    {"bind_foreign", (PyCFunction)(void (*)(void))bind_foreign, METH_FASTCALL, NULL},
    {"recall", recall, METH_O, NULL},
    {"remember", remember, METH_VARARGS, NULL},
    {"protected_entries", protected_entries, METH_NOARGS, NULL},
    {"library_entries", library_entries, METH_NOARGS, NULL},
    {"read_only_entries", read_only_entries, METH_NOARGS, NULL},
    {"sensitive_roots", get_sensitive_roots, METH_NOARGS, NULL},
    {"recent", recent_for_host, METH_NOARGS, NULL},
    {"current_view", current_view, METH_NOARGS, NULL},
    {"live_states", count_states, METH_NOARGS, "Count the guard states that are alive in this process."},
    {"residents", count_residents, METH_NOARGS, "Count the policies that own code in this process."},
    {"is_sealed", is_sealed, METH_NOARGS, NULL},
    {"tell_probes", core_tell_probes, METH_NOARGS, NULL},
    {"is_probe", core_is_probe, METH_NOARGS, NULL},
    {"patched_entries", patched_entries, METH_NOARGS,
     "List every builtin of the patch table: module, type, name, and whether this interpreter has it patched."},
    {"try_guard", try_guard, METH_VARARGS, NULL},
    {"mask", mask, METH_VARARGS, NULL},
    {"access_changed", access_changed, METH_NOARGS,
     "Say that approvals have changed: running activations ask the decider again. Refused inside a guard."},
    {"candidate", core_candidate, METH_VARARGS, NULL},
    {"request", (PyCFunction)(void (*)(void))core_request, METH_FASTCALL, NULL},
    {"request_on", (PyCFunction)(void (*)(void))core_request_on, METH_FASTCALL, NULL},
    {"origin", core_origin, METH_VARARGS, NULL},
    {"websocket", core_websocket, METH_O, NULL},
    {"websocket_use", core_websocket_use, METH_VARARGS, NULL},
    {"subject_key", core_subject_key, METH_NOARGS, NULL},
    {"subject_field", (PyCFunction)(void (*)(void))core_subject_field, METH_FASTCALL, NULL},
    {"gate", core_gate, METH_VARARGS, NULL},
    {"ask", core_ask, METH_VARARGS, NULL},
    {"location", core_location, METH_O, NULL},
    {"plain", core_plain, METH_VARARGS, NULL},
    {"read_frame", core_read_frame, METH_VARARGS, "Read a frame of a worker into plain data, within limits."},
    {"small_frame", core_small_frame, METH_O, "Write a small message of plain data as a frame; None for another one."},
    {"write_values", core_write_values, METH_VARARGS, "Copy bytes values into memory that a worker shares."},
    {"door", core_door, METH_O, NULL},
    {"entrance", core_entrance, METH_VARARGS, NULL},
    {"own_code", core_own_code, METH_O, NULL},
    {"is_importable", core_is_importable, METH_VARARGS, NULL},
    {"own_process", core_own_process, METH_O, NULL},
    {"serve", serve, METH_O, NULL},
    {"unserve", unserve, METH_O, NULL},
    {"served", served, METH_NOARGS, NULL},
    {"may_use", core_may_use, METH_O, NULL},
    {"deny_foreign", core_deny_foreign, METH_NOARGS, NULL},
    {"read_url", core_read_url, METH_O, NULL},
    {"url_mask", core_url_mask, METH_VARARGS, NULL},
    {"socket_mask", core_socket_mask, METH_VARARGS, NULL},
    {"name_mask", core_name_mask, METH_VARARGS, NULL},
    {NULL},
};

static int check_system(void)
{
    int failed = openat2_missing();
    if (failed == 0) {
        return 0;
    }
    PyErr_Format(PyExc_ImportError,
                 "democrai-sandbox needs the openat2 system call (%s): Linux 5.6 or newer, and a container profile or "
                 "service manager that permits it (RestrictSUIDSGID= of systemd does not)",
                 strerror(failed));
    return -1;
}

static int import_first(void)
{
    static const char *const needed[] = {"posix",        "_io",  "_thread", "_signal",   "atexit", "_weakref",
                                         "_contextvars", "_imp", "sys",     "threading", "types"};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        PyObject *module = PyImport_ImportModule(needed[i]);
        if (module == NULL) {
            return -1;
        }
        Py_DECREF(module);
    }
    return 0;
}

static int all_required_patched(void)
{
    for (int i = 0; i < row_count; i++) {
        if (rows[i].original == NULL && !rows[i].optional) {
            PyErr_Format(PyExc_ImportError, "%s.%s was not found: the guard does not fit this interpreter",
                         rows[i].module, rows[i].name);
            return -1;
        }
    }
    return 0;
}

static int diverted_type_ready(void)
{
    return PyType_Ready(&Diverted_Type);
}

/* Run at import, in this order: a preparation may use the results of earlier ones. */
static int (*const preparations[])(void) = {
    check_system,         state_ready,
    collection_ready,     variables_ready,
    code_owner_ready,     frame_views_ready,
    tracing_ready,        module_views_ready,
    environment_ready,    home_ready,
    tickets_ready,        diverted_type_ready,
    resolver_ready,       guards_ready,
    late_modules_ready,   import_first,
    importlib_ready,      handover_ready,
    context_views_ready,  protected_names_ready,
    finalizers_ready,     callback_holders_ready,
    listings_ready,       stat_results_ready,
    file_objects_ready,   imports_ready,
    native_modules_ready, patch_loaded_modules,
    all_required_patched,
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "_core", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit__core(void)
{
    static PyObject *only = NULL;
    if (only != NULL) {
        return Py_NewRef(only); /* a second import after del sys.modules[...] finds the one that is installed */
    }
    table_ready();
    for (size_t i = 0; i < sizeof preparations / sizeof *preparations; i++) {
        if (preparations[i]() < 0) {
            return NULL;
        }
    }
    late_modules_settle();
    policies = PyDict_New();
    only = policies ? PyModule_Create(&definition) : NULL;
    if (only == NULL || PyModule_AddObjectRef(only, "Guard", (PyObject *)&Guard_Type) < 0 ||
        PyModule_AddObjectRef(only, "Door", (PyObject *)&Door_Type) < 0 ||
        PyModule_AddObjectRef(only, "Entrance", (PyObject *)&Entrance_Type) < 0 ||
        PyModule_AddObjectRef(only, "Policy", (PyObject *)&Policy_Type) < 0 || access_question_ready(only) < 0 ||
        PyModule_AddObjectRef(only, "Ticket", (PyObject *)&Ticket_Type) < 0 || endpoints_ready(only) < 0) {
        return NULL;
    }
    PyObject_GC_UnTrack(policies);
    return Py_NewRef(only);
}
