/* From a resolved path to a verdict: the chain's masks, then the decider, then a denial that says how to fix it. */
#include "core.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

PyObject *denial_factory = NULL; /* builds the exception; Python, because it only words what was decided here */
PyObject *decider = NULL;
PyObject *check_failed = NULL; /* the class of "no decision could be had" */
PyObject *facade_files = NULL; /* files of os, os.path, pathlib, shutil ...: they ask on behalf of their caller */

PyObject *recorder = NULL; /* the host's: told of every denial, outside the guard */

static const char *const operation_names[] = {"read", "create", "modify", "delete", "execute"};

/* "read", or "create,modify" when one of them would have done. */
static void operation_text(unsigned bits, char *out)
{
    out[0] = '\0';
    for (int i = 0; i < 5; i++) {
        if (bits & (1u << i)) {
            strcat(out, out[0] ? "," : "");
            strcat(out, operation_names[i]);
        }
    }
}

/* ---- who asks ------------------------------------------------------------------------------ */

static bool is_library_file(PyObject *filename)
{
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(filename, &length);
    if (text == NULL) {
        PyErr_Clear();
        return false;
    }
    if (strncmp(text, "<frozen ", 8) == 0) {
        return true;
    }
    if (text[0] != '/' || length >= PATH_MAX || code_policy == NULL) {
        return false;
    }
    char normal[PATH_MAX];
    PathKey key;
    if (path_normalise(text, normal) < 0) {
        return false;
    }
    path_key(&key, normal);
    return policy_mask(code_policy, &key) & FLAG_CODE;
}

/* The first frame outside the file facade decides: the subject's own code, or a library that looks around. File names can
 * be forged with compile(); what that buys is "not found" in place of "denied", or an import whose use is refused. */
bool asker_is_library(void)
{
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    bool library = false;
    while (frame != NULL) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        int facade = facade_files ? PySet_Contains(facade_files, code->co_filename) : 0;
        bool done = facade <= 0;
        if (done) {
            library = is_library_file(code->co_filename);
        }
        Py_DECREF(code);
        PyFrameObject *back = done ? NULL : PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    return library;
}

/* The very frame that made the call, facade or not. */
bool caller_is_library(void)
{
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    if (frame == NULL) {
        return false;
    }
    PyCodeObject *code = PyFrame_GetCode(frame);
    bool is = is_library_file(code->co_filename);
    Py_DECREF(code);
    Py_DECREF(frame);
    return is;
}

static bool frame_is_file(const char *filename)
{
    PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
    if (frame == NULL) {
        return false;
    }
    PyCodeObject *code = PyFrame_GetCode(frame);
    bool is = PyUnicode_CompareWithASCIIString(code->co_filename, filename) == 0;
    Py_DECREF(code);
    Py_DECREF(frame);
    return is;
}

bool frame_is_import_machinery(void)
{
    return frame_is_file("<frozen importlib._bootstrap_external>");
}

bool caller_is_importlib(void)
{
    return frame_is_file("<frozen importlib._bootstrap>");
}

/* ---- denying ------------------------------------------------------------------------------- */

static const char *const kind_names[] = {"filesystem", "descriptor", "module", "subprocess", "environment", "tamper"};

/* The latest denials, for the host. Facts, not exceptions: those would keep frames alive. */
enum { RECENT = 512 };
static PyObject *recent[RECENT];
static size_t recent_next = 0;
bool recording = true;
size_t denials_made = 0;

static void remember_denial(PyObject *facts, bool silent)
{
    PyObject *record = NULL, *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    record = Py_BuildValue("(dOO)", (double)now.tv_sec + (double)now.tv_nsec / 1e9, silent ? Py_True : Py_False, facts);
    if (record != NULL) {
        Py_XSETREF(recent[recent_next % RECENT], record);
        recent_next++;
    }
    PyErr_Restore(type, value, trace);
}

PyObject *recent_denials(PyObject *module, PyObject *unused)
{
    PyObject *list = PyList_New(0);
    size_t first = recent_next > RECENT ? recent_next - RECENT : 0;
    for (size_t i = first; list != NULL && i < recent_next; i++) {
        if (PyList_Append(list, recent[i % RECENT]) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

/* Runs a callable of the host's outside the guard; NULL with an exception when it fails. */
static PyObject *call_outside(State *state, PyObject *function, PyObject *args)
{
    State *outside = state_new(state, NULL, MODE_BYPASS, true, NULL);
    PyObject *result = NULL;
    Entered entered;
    if (outside != NULL && state_enter(outside, &entered) == 0) {
        result = PyObject_Call(function, args, NULL);
        state_leave(&entered);
    }
    Py_XDECREF(outside);
    return result;
}

static void tell_recorder(State *state, PyObject *error)
{
    if (recorder == NULL || recorder == Py_None) {
        return;
    }
    PyObject *args = PyTuple_Pack(1, error);
    PyObject *result = args ? call_outside(state, recorder, args) : NULL;
    Py_XDECREF(args);
    Py_XDECREF(result);
    PyErr_Clear(); /* a recorder that fails changes nothing about the denial */
}

static void *deny_quietly(State *state, DenialKind kind, const char *operation, PyObject *target, bool silent)
{
    denials_made++;
    PyObject *view = state_view(state);
    PyObject *facts = view ? Py_BuildValue("(sOsO)", kind_names[kind], view, operation, target) : NULL;
    PyObject *error = facts && denial_factory ? PyObject_Call(denial_factory, facts, NULL) : NULL;
    if (facts != NULL && recording) {
        remember_denial(facts, silent);
    }
    if (error == NULL || !PyExceptionInstance_Check(error)) {
        PyErr_Clear();
        PyErr_Format(PyExc_PermissionError, "sandbox_%s_denied", kind_names[kind]);
    }
    else {
        tell_recorder(state, error);
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    }
    Py_XDECREF(view);
    Py_XDECREF(facts);
    Py_XDECREF(error);
    return NULL;
}

/* Sets the exception and returns NULL. Whatever goes wrong in wording it, nothing is allowed. */
void *deny(State *state, DenialKind kind, const char *operation, PyObject *target)
{
    return deny_quietly(state, kind, operation, target, false);
}

void *deny_text(State *state, DenialKind kind, const char *text)
{
    PyObject *target = PyUnicode_DecodeFSDefault(text);
    if (target != NULL) {
        deny(state, kind, kind == DENY_SUBPROCESS ? "execute" : "use", target);
        Py_DECREF(target);
    }
    return NULL;
}

/* A probe by library code is answered as on a machine where nothing is there; the denial is recorded all the same. */
void *deny_path(State *state, const char *path, unsigned missing, bool probe)
{
    PyObject *target = PyUnicode_DecodeFSDefault(path);
    if (target == NULL) {
        return NULL;
    }
    char operation[64];
    operation_text(missing, operation);
    bool silent = probe && asker_is_library();
    deny_quietly(state, DENY_FILESYSTEM, operation, target, silent);
    if (silent) {
        PyErr_Clear();
        errno = ENOENT;
        PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, target);
    }
    Py_DECREF(target);
    return NULL;
}

/* Whether the present exception is a denial of ours, as against an error of the system's. */
bool error_is_denial(void)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    bool is = type != NULL && PyObject_HasAttrString(type, "layer");
    PyErr_Restore(type, value, trace);
    return is;
}

PyObject *errno_error(PyObject *filename)
{
    return PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, filename);
}

/* The call went through a handle: its error should still name the path the caller gave. */
void errno_filename(PyObject *filename, PyObject *second)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (value != NULL && PyObject_TypeCheck(value, (PyTypeObject *)PyExc_OSError)) {
        if (PyObject_SetAttrString(value, "filename", filename) < 0 ||
            (second != NULL && PyObject_SetAttrString(value, "filename2", second) < 0)) {
            PyErr_Clear();
        }
    }
    PyErr_Restore(type, value, trace);
}

/* Raises a new exception of this class with the present one as its cause. */
static void raise_from_current(PyObject *class)
{
    PyObject *type, *cause, *trace;
    PyErr_Fetch(&type, &cause, &trace);
    PyErr_NormalizeException(&type, &cause, &trace);
    if (cause != NULL && trace != NULL) {
        PyException_SetTraceback(cause, trace);
    }
    PyObject *error = class && PyObject_IsSubclass(cause ? (PyObject *)Py_TYPE(cause) : class, PyExc_Exception) == 1
                          ? PyObject_CallNoArgs(class)
                          : NULL;
    if (error == NULL) {
        PyErr_Restore(type, cause, trace); /* KeyboardInterrupt and the like are nobody's answer */
        return;
    }
    PyException_SetCause(error, cause);
    PyErr_SetObject(class, error);
    Py_DECREF(error);
    Py_XDECREF(type);
    Py_XDECREF(trace);
}

/* ---- asking the decider -------------------------------------------------------------------- */

/* Only the decider itself runs outside the guard, so that the service can reach its own store. Only an exact True allows;
 * its failure is neither a yes nor a denial. */
static int ask_decider(State *state, unsigned operation, PyObject *target)
{
    char name[64];
    operation_text(operation, name);
    PyObject *question = question_new(state, "filesystem", name, target, false);
    PyObject *args = question ? PyTuple_Pack(1, question) : NULL;
    PyObject *answer = args ? call_outside(state, decider, args) : NULL;
    int result = answer == NULL ? -1 : answer == Py_True;
    if (answer == NULL && args != NULL) {
        raise_from_current(check_failed);
    }
    Py_XDECREF(question);
    Py_XDECREF(args);
    Py_XDECREF(answer);
    return result;
}

static State *answering(State *state)
{
    while (state->mode == MODE_NARROW) {
        state = state->parent;
    }
    return state;
}

/* 1 approved, 0 not, -1 the check itself failed. Cached in the activation per (operation, resolved path). */
static int approved(State *state, const char *path, unsigned operation)
{
    if (decider == NULL || decider == Py_None) {
        return 0;
    }
    state = answering(state);
    PyObject *target = PyUnicode_DecodeFSDefault(path);
    PyObject *key = target ? PyBytes_FromFormat("%u:%s", operation, path) : NULL;
    int result = -1;
    if (key != NULL) {
        PyObject *known = PyDict_GetItemWithError(state->decisions, key);
        if (known != NULL) {
            result = known == Py_True;
        }
        else if (!PyErr_Occurred()) {
            result = ask_decider(state, operation, target);
            if (result >= 0 && PyDict_SetItem(state->decisions, key, result ? Py_True : Py_False) < 0) {
                result = -1;
            }
        }
    }
    Py_XDECREF(key);
    Py_XDECREF(target);
    return result;
}

/* A context that guarded code opened must itself contain the path: an approval cannot widen what it narrowed. */
static bool narrowed_away(const State *state, const PathKey *key, unsigned operation)
{
    for (; state->mode == MODE_NARROW; state = state->parent) {
        const Policy *shared = state->policy->include_runtime ? runtime_policy : code_policy;
        unsigned mask = policy_mask(state->policy, key) | (shared ? policy_mask(shared, key) : 0);
        if (!(mask & operation)) {
            return true;
        }
    }
    return false;
}

static bool is_memory(const char *path)
{
    size_t length = strlen(path);
    return strncmp(path, "/proc/", 6) == 0 && length > 10 && strcmp(path + length - 4, "/mem") == 0;
}

static int add_approvals(State *state, const PathKey *key, unsigned wanted, unsigned *granted)
{
    for (unsigned bit = OP_READ; bit <= OP_EXECUTE; bit <<= 1) {
        if (!(wanted & bit) || (*granted & bit) || narrowed_away(state, key, bit)) {
            continue;
        }
        int answer = approved(state, key->path, bit);
        if (answer < 0) {
            return -1;
        }
        *granted |= answer ? bit : 0;
    }
    return 0;
}

/* *granted = which of the wanted operations the chain or an approval allows at this exact location. */
int grant(State *state, const char *path, unsigned wanted, unsigned *granted)
{
    PathKey key;
    path_key(&key, path);
    unsigned mask = state_mask(state, &key);
    *granted = mask & wanted;
    if (UNLIKELY(is_memory(path))) {
        *granted = 0; /* the process's own memory is no file, whatever root it lies under */
        return 0;
    }
    if (*granted == wanted) {
        return 0;
    }
    if ((mask & FLAG_IMPORT) && (wanted & OP_READ) && frame_is_import_machinery()) {
        *granted |= OP_READ;
    }
    return add_approvals(state, &key, wanted, granted);
}

int require(State *state, const char *path, unsigned wanted)
{
    unsigned granted;
    if (grant(state, path, wanted, &granted) < 0) {
        return -1;
    }
    if (granted != wanted) {
        deny_path(state, path, wanted & ~granted, false);
        return -1;
    }
    return 0;
}

/* ---- resolving ----------------------------------------------------------------------------- */

unsigned location_mask(State *state, const char *path)
{
    PathKey key;
    path_key(&key, path);
    return state_mask(state, &key);
}

static int open_handle(const char *path, int how, bool directory)
{
    if (!(how & PARENT)) {
        return open_beneath(path, O_PATH | (how & FOLLOW ? 0 : O_NOFOLLOW) | (directory ? O_DIRECTORY : 0), 0);
    }
    char folder[PATH_MAX];
    const char *cut = strrchr(path, '/');
    size_t length = cut == path ? 1 : (size_t)(cut - path);
    memcpy(folder, path, length);
    folder[length] = '\0';
    return open_beneath(folder, O_PATH | O_DIRECTORY, 0);
}

static bool sufficient(unsigned granted, unsigned wanted, int how)
{
    return how & ANY ? granted != 0 : granted == wanted;
}

/* Looks the path up where the kernel would end; the GIL is free meanwhile (a dead network mount must not stop the host).
 * When the kernel meets no link on the way, whether or not something is there, the lexical form is the location. Returns the
 * error the kernel would give for a path that cannot be walked at all. */
int find_location(const PathText *text, int follow, char *path)
{
    int broken = 0;
    Py_BEGIN_ALLOW_THREADS
    int fd = text->dotted ? -1 : open_beneath(text->text, O_PATH | (follow ? 0 : O_NOFOLLOW), 0);
    bool plain = fd >= 0 || (!text->dotted && (errno == ENOENT || errno == ENOTDIR));
    if (fd >= 0) {
        close(fd);
    }
    if (plain) {
        strcpy(path, text->text);
    }
    else if (path_canonical(text->raw, follow, path) < 0) {
        broken = errno;
        strcpy(path, text->text);
    }
    Py_END_ALLOW_THREADS
    return broken;
}

/* ".." after a name says that the name is there. What the subject may not read it must not test that way. */
int check_dots(State *state, const PathText *text)
{
    char prefix[PATH_MAX], normal[PATH_MAX];
    bool descended = false;
    for (const char *p = text->raw + text->written; text->dotted && *p != '\0';) {
        size_t length = strcspn(p, "/");
        bool up = length == 2 && p[0] == '.' && p[1] == '.';
        if (up && descended) {
            memcpy(prefix, text->raw, (size_t)(p - text->raw));
            prefix[p - text->raw] = '\0';
            unsigned granted;
            if (path_normalise(prefix, normal) < 0 || grant(state, normal, OP_READ, &granted) < 0) {
                return -1;
            }
            if (!granted) {
                deny_path(state, normal, OP_READ, false);
                return -1;
            }
        }
        if (length > 0 && !(length == 1 && p[0] == '.')) {
            descended = !up;
        }
        p += length + (p[length] == '/');
    }
    return 0;
}

/* Finds where `text` leads, decides, and opens an O_PATH handle there: of the object itself or, with PARENT, of the folder
 * it is in. The location that was decided on is the location of the handle. -1 with an exception otherwise. */
int resolve(State *state, PathText *text, unsigned wanted, int how, Resolved *out)
{
    bool directory = text->directory && !(how & PARENT);
    how |= directory ? FOLLOW : 0;
    out->granted = location_mask(state, text->text) & wanted;
    bool inside = sufficient(out->granted, wanted, how), decided = inside && !text->dotted && !is_memory(text->text);
    if (text->dotted && check_dots(state, text) < 0) {
        return -1;
    }
    strcpy(out->path, text->text);
    int failed = decided ? 0 : find_location(text, how & FOLLOW, out->path);
    for (int attempt = 0; attempt < 8; attempt++) {
        if (!decided && grant(state, out->path, wanted, &out->granted) < 0) {
            return -1;
        }
        if (!sufficient(out->granted, wanted, how)) {
            /* outside the roots the answer shows the path as it was asked for, not where a link there leads */
            deny_path(state, inside ? out->path : text->text, wanted & ~out->granted, how & PROBE);
            return -1;
        }
        if (!failed) {
            Py_BEGIN_ALLOW_THREADS
            out->fd = open_handle(out->path, how, directory);
            failed = out->fd < 0 ? errno : 0;
            Py_END_ALLOW_THREADS
            if (!failed) {
                return 0;
            }
        }
        if (failed != ELOOP) {
            errno = failed;
            errno_error(text->object);
            return -1;
        }
        failed = find_location(text, how & FOLLOW, out->path);
        decided = false;
    }
    errno = ELOOP;
    errno_error(text->object);
    return -1;
}
