/* Handlers of functions that take a path: resolve it to a handle, decide, and make the call through the handle. */
#include "io/io.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

Row *stat_row = NULL; /* os.stat, set by table_ready */

/* dir_fd, src_dir_fd and dst_dir_fd are refused to the subject's own code. The standard library's rmtree and an
 * installer may use them: then the name is taken as below the folder that the descriptor really is. */
int directory_argument(State *state, const Call *call, const char *name, char *base, bool *given)
{
    Py_ssize_t at = call_find(call, -1, name);
    *given = at >= 0 && call->args[at] != Py_None;
    if (!*given) {
        return 0;
    }
    if (!state->allow_subprocess && !caller_is_library()) {
        deny_text(state, DENY_DESCRIPTOR, name);
        return -1;
    }
    if (descriptor_check(state, call->args[at], OP_READ) < 0) {
        return -1;
    }
    long fd = PyLong_AsLong(call->args[at]);
    if (fd == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (path_of_descriptor((int)fd, base) < 0 || base[0] != '/') {
        errno = ENOTDIR;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    return 0;
}

static bool follows(const Call *call)
{
    Py_ssize_t at = call_find(call, -1, "follow_symlinks");
    return at < 0 || PyObject_IsTrue(call->args[at]) == 1;
}

static const char *last_part(const char *path)
{
    return strrchr(path, '/') + 1;
}

/* Makes the call with a path through the handle. */
static PyObject *call_through(Call *call, Py_ssize_t at, int how, const PathText *text, const Resolved *where)
{
    char base[PATH_MAX];
    base[0] = '\0';
    if (how & PARENT) {
        strcpy(base, last_part(where->path));
        if (text->directory && strlen(base) + 2 < PATH_MAX) {
            strcat(base, "/");
        }
    }
    Place place = {at, "dir_fd", base, text->object, where->fd};
    if (call_takes_folders(call, &place, 1)) {
        PyObject *result = call_in_folders(call, &place, 1);
        if (result == NULL) {
            errno_filename(text->shown, NULL);
        }
        return result;
    }
    PyObject *handle = path_handle_object(where->fd, base, text->object);
    if (handle == NULL) {
        return NULL;
    }
    PyObject *result = call_with(call, at, handle);
    Py_DECREF(handle);
    if (result == NULL) {
        errno_filename(text->shown, NULL);
    }
    return result;
}

/* stat and lstat use the handle, so nothing can be replaced between the check and the result. */
static PyObject *stat_handle(const Resolved *where, const PathText *text)
{
    PyObject *made = where->told ? stat_object(&where->info) : NULL;
    if (LIKELY(made != NULL) || PyErr_Occurred()) {
        return made;
    }
    PyObject *number = PyLong_FromLong(where->fd);
    if (number == NULL) {
        return NULL;
    }
    PyObject *args[1] = {number};
    Call call = {.row = stat_row, .self = stat_row->module_object, .args = args, .nargs = 1};
    PyObject *result = call_original(&call);
    Py_DECREF(number);
    if (result == NULL) {
        errno_filename(text->shown, NULL);
    }
    return result;
}

/* Whether a call of stat, lstat or unlink has arguments that it takes; others are left to it to refuse. */
static bool has_usual_arguments(const Call *call)
{
    Py_ssize_t total = call_count(call), usual = 1;
    if (LIKELY(total == 1)) {
        return true;
    }
    usual += call_find(call, -1, "dir_fd") >= 0;
    usual += (call->row->how & FOLLOW) && call_find(call, -1, "follow_symlinks") >= 0;
    return total == usual;
}

static PyObject *finish(Call *call, Py_ssize_t at, int how, PathText *text, Resolved *where)
{
    bool answers = (how & STAT) && has_usual_arguments(call);
    PyObject *result = answers ? stat_handle(where, text) : call_through(call, at, how, text, where);
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (where->fd >= 0) {
        close(where->fd);
    }
    PyErr_Restore(type, value, trace);
    return result;
}

static int adjust(const Call *call)
{
    int how = call->row->how;
    if ((how & FOLLOW) && !follows(call)) {
        how &= ~FOLLOW;
        how |= how & STAT ? 0 : PARENT; /* the object itself must not be followed: name it in its folder */
    }
    Py_ssize_t mode = how & ANSWERS ? call_find(call, 1, "mode") : -1;
    if (mode >= 0 && !(PyLong_Check(call->args[mode]) && PyLong_AsLong(call->args[mode]) == F_OK)) {
        how &= ~LOOK; /* whether it can be read or written is more than whether it is there */
        PyErr_Clear();
    }
    return how;
}

/* Raises the event of a removal for other hooks; ours ignores it. */
static int announce_removal(const Call *call, const PathText *text)
{
    if (LIKELY(audit_hook_list_is_ours())) {
        return 0;
    }
    Py_ssize_t at = call_find(call, -1, "dir_fd");
    int folder = at >= 0 && call->args[at] != Py_None ? (int)PyLong_AsLong(call->args[at]) : -1;
    return PySys_Audit(call->row->how & REMOVES_FOLDER ? "os.rmdir" : "os.remove", "Oi", text->object, folder);
}

/* unlink, remove, rmdir: the name is removed where it was resolved, so no Python call is needed for it. */
static PyObject *remove_path(State *state, Call *call, PathText *text, int how)
{
    Resolved where;
    if (announce_removal(call, text) < 0 || resolve(state, text, OP_DELETE, how, &where) < 0) {
        return NULL;
    }
    if (where.unremoved) {
        errno = where.unremoved;
        return errno_error(text->shown);
    }
    Py_RETURN_NONE;
}

static PyObject *here(void)
{
    return PyUnicode_FromString(".");
}

static PyObject *on_path_object(State *state, Call *call, Py_ssize_t at, PyObject *given, int how)
{
    char base[PATH_MAX];
    bool relative;
    PathText text;
    Resolved where;
    if (directory_argument(state, call, "dir_fd", base, &relative) < 0 ||
        path_text_at(given, relative ? base : NULL, &text) < 0) {
        return NULL;
    }
    PyObject *result = NULL;
    if ((how & REMOVES) && has_usual_arguments(call)) {
        result = remove_path(state, call, &text, how);
    }
    else if (resolve(state, &text, call->row->operations, how & ~REMOVES, &where) == 0) {
        result = finish(call, at, how, &text, &where);
    }
    else if ((how & ANSWERS) && PyErr_ExceptionMatches(PyExc_OSError) && !error_is_denial()) {
        PyErr_Clear(); /* access() never raises for what is not there */
        result = Py_NewRef(Py_False);
    }
    Py_DECREF(text.object);
    return result;
}

/* A function with one path, at row->index or by name. A descriptor in its place is checked by its file. */
PyObject *on_path(State *state, Call *call)
{
    Py_ssize_t at = call_find(call, call->row->index, call->row->argument);
    bool missing = at < 0 || call->args[at] == Py_None;
    if (missing && (call->row->how & DEFAULTS)) {
        PyObject *dot = here();
        PyObject *only[1] = {dot};
        Call plain = *call;
        if (at < 0 && call->nargs == 0 && call->kwnames == NULL) {
            plain.args = only;
            plain.nargs = 1;
            at = 0;
        }
        PyObject *result = dot && at >= 0 ? on_path_object(state, &plain, at, dot, adjust(&plain)) : NULL;
        if (result == NULL && !PyErr_Occurred()) {
            deny_path(state, "/", OP_READ, false);
        }
        Py_XDECREF(dot);
        return result;
    }
    if (missing) {
        return call_original(call); /* the call raises TypeError */
    }
    if (path_is_descriptor(call->args[at])) {
        PyObject *number = descriptor_number(call->args[at]);
        PyObject *result = NULL;
        unsigned wanted = call->row->operations | (call->row->operations & OP_MODIFY ? WANT_PATH : 0);
        if (number != NULL && descriptor_check(state, number, wanted) == 0) {
            result = call_with(call, at, number);
        }
        Py_XDECREF(number);
        return result;
    }
    return on_path_object(state, call, at, call->args[at], adjust(call));
}

/* Device nodes give access that no root describes, so they are refused. */
PyObject *on_device(State *state, Call *call)
{
    Py_ssize_t at = call_find(call, 1, "mode");
    if (at >= 0 && PyLong_Check(call->args[at])) {
        long mode = PyLong_AsLong(call->args[at]);
        if (mode == -1 && PyErr_Occurred()) {
            return NULL;
        }
        if (S_ISCHR((mode_t)mode) || S_ISBLK((mode_t)mode)) {
            return deny_text(state, DENY_SUBPROCESS, "os.mknod");
        }
    }
    return on_path(state, call);
}

static bool is_link(PyObject *entry)
{
    static PyObject *name = NULL;
    if (name == NULL) {
        name = PyUnicode_InternFromString("is_symlink");
    }
    PyObject *answer = name ? PyObject_CallMethodNoArgs(entry, name) : NULL;
    bool is = answer != Py_False;
    Py_XDECREF(answer);
    PyErr_Clear();
    return is;
}

/* DirEntry.stat, is_dir, is_file: an entry that is a link tells about its target, which may lie outside; and stat()
 * may be called on an entry of another subject. The answer comes from the checked handle; if that fails, the entry must
 * not look for itself, because the name may lead elsewhere by then. */
PyObject *on_entry(State *state, Call *call)
{
    bool follow = follows(call), asks_kind = !(call->row->how & STAT);
    if (asks_kind ? !follow || !is_link(call->self) : entry_has_answer(call->self, follow)) {
        return call_original(call);
    }
    PyObject *path = entry_path(call->self);
    PathText text;
    Resolved where;
    int failed = path ? path_text(path, &text) : -1;
    Py_XDECREF(path);
    if (failed < 0) {
        return NULL;
    }
    PyObject *result = NULL;
    if (resolve(state, &text, OP_READ, (follow ? FOLLOW : 0) | PROBE | STAT, &where) < 0) {
        if (asks_kind && PyErr_ExceptionMatches(PyExc_FileNotFoundError)) {
            PyErr_Clear(); /* dangling or removed */
            result = Py_NewRef(Py_False);
        }
    }
    else {
        if (!asks_kind) {
            result = stat_handle(&where, &text);
            entry_keep_answer(call->self, follow, result);
        }
        else if (!where.told && fstat(where.fd, &where.info) < 0) {
            PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, text.shown);
        }
        else {
            bool file = strcmp(call->row->name, "is_file") == 0;
            result = PyBool_FromLong(file ? S_ISREG(where.info.st_mode) : S_ISDIR(where.info.st_mode));
        }
        if (where.fd >= 0) {
            close(where.fd);
        }
    }
    Py_DECREF(text.object);
    return result;
}

/* ---- two paths ----------------------------------------------------------------------------- */

typedef struct {
    PathText text;
    Resolved where;
    Py_ssize_t at;
} End;

static void empty_end(End *end)
{
    end->text.object = NULL;
    end->where.fd = -1;
}

static int open_end(State *state, Call *call, End *end, int index, const char *name, const char *directory,
                    unsigned wanted, int how)
{
    char base[PATH_MAX];
    bool relative;
    end->at = call_find(call, index, name);
    if (end->at < 0) {
        PyErr_Format(PyExc_TypeError, "%s() missing required argument '%s'", call->row->name, name);
        return -1;
    }
    if (directory_argument(state, call, directory, base, &relative) < 0) {
        return -1;
    }
    if (path_text_at(call->args[end->at], relative ? base : NULL, &end->text) < 0) {
        return -1;
    }
    return resolve(state, &end->text, wanted, how, &end->where);
}

static void close_end(End *end)
{
    Py_XDECREF(end->text.object);
    if (end->where.fd >= 0) {
        close(end->where.fd);
    }
}

/* Finds out in the folder of the handle whether the target is new or replaces a file. */
static int target_allows(State *state, const End *end)
{
    bool exists = faccessat(end->where.fd, last_part(end->where.path), F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    unsigned needed = exists ? OP_MODIFY : OP_CREATE;
    if (end->where.granted & needed) {
        return 0;
    }
    return deny_given(state, &end->text, end->where.path, needed, false);
}

/* A second name must not give rights that the first one did not: a read-only file linked into a writable folder. */
static int gains_nothing(State *state, const End *source, const End *target, unsigned rights)
{
    unsigned gained = location_mask(state, target->where.path) & ~location_mask(state, source->where.path) & rights;
    if (gained == 0) {
        return 0;
    }
    unsigned granted;
    if (grant(state, source->where.path, gained, &granted) < 0) {
        return -1;
    }
    if (granted == gained) {
        return 0;
    }
    return deny_given(state, &source->text, source->where.path, gained & ~granted, false);
}

static PyObject *call_pair(Call *call, End *source, End *target)
{
    Place places[2] = {
        {source->at, "src_dir_fd", last_part(source->where.path), source->text.object, source->where.fd},
        {target->at, "dst_dir_fd", last_part(target->where.path), target->text.object, target->where.fd},
    };
    if (call_takes_folders(call, places, 2)) {
        PyObject *result = call_in_folders(call, places, 2);
        if (result == NULL) {
            errno_filename(source->text.shown, target->text.shown);
        }
        return result;
    }
    PyObject *argv[MAX_ARGS];
    Call copy;
    if (call_copy(call, argv, &copy) < 0) {
        return NULL;
    }
    PyObject *from = path_handle_object(source->where.fd, last_part(source->where.path), source->text.object);
    PyObject *to = path_handle_object(target->where.fd, last_part(target->where.path), target->text.object);
    PyObject *result = NULL;
    if (from != NULL && to != NULL) {
        argv[source->at] = from;
        argv[target->at] = to;
        result = call_original(&copy);
        if (result == NULL) {
            errno_filename(source->text.shown, target->text.shown);
        }
    }
    Py_XDECREF(from);
    Py_XDECREF(to);
    return result;
}

static unsigned declared_at(const State *state, const char *path)
{
    PathKey key;
    path_key(&key, path);
    return state_declared_mask(state, &key);
}

static int nodes_seen;

static int is_socket_node(const char *path, const struct stat *info, int kind, struct FTW *place)
{
    enum { MOST_NODES = 10000 };
    return S_ISSOCK(info->st_mode) || ++nodes_seen > MOST_NODES;
}

/* A subject may connect to any socket below its own roots. A socket of another owner must not get there by a move or a
 * hard link out of the temporary folder, neither alone nor inside a moved folder. */
static int brings_no_socket(State *state, const End *source, const End *target)
{
    enum { OWN = OP_CREATE | OP_MODIFY, DESCRIPTORS = 8 };
    if ((declared_at(state, source->where.path) & OWN) == OWN ||
        (declared_at(state, target->where.path) & OWN) != OWN) {
        return 0;
    }
    char path[PATH_MAX + 64];
    nodes_seen = 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d/%s", source->where.fd, last_part(source->where.path));
    if (nftw(path, is_socket_node, DESCRIPTORS, FTW_PHYS) > 0) {
        deny_path(state, source->where.path, OP_MODIFY, false);
        return -1;
    }
    return 0;
}

/* rename, replace: delete there, create or modify here. link: read there, create here. */
PyObject *on_path_pair(State *state, Call *call)
{
    bool moving = call->row->operations == OP_DELETE;
    End source, target; /* not zeroed: most of it is room for paths */
    empty_end(&source);
    empty_end(&target);
    PyObject *result = NULL;
    unsigned wanted = moving ? OP_CREATE | OP_MODIFY : OP_CREATE;
    if (open_end(state, call, &source, 0, "src", "src_dir_fd", call->row->operations, PARENT) == 0 &&
        open_end(state, call, &target, 1, "dst", "dst_dir_fd", wanted, PARENT | ANY) == 0 &&
        (!moving || target_allows(state, &target) == 0) && brings_no_socket(state, &source, &target) == 0 &&
        gains_nothing(state, &source, &target, moving ? OP_READ | OP_MODIFY : OP_MODIFY) == 0) {
        result = call_pair(call, &source, &target);
    }
    close_end(&source);
    close_end(&target);
    return result;
}

/* symlink: read of what the link will lead to, seen from the link's own folder, and create of the link. */
static int link_target_allows(State *state, PyObject *object, const End *link)
{
    char folder[PATH_MAX], location[PATH_MAX];
    PathText text;
    strcpy(folder, link->where.path);
    *strrchr(folder, '/') = '\0';
    if (path_text_at(object, folder[0] ? folder : "/", &text) < 0) {
        return -1;
    }
    int result = -1;
    unsigned granted;
    if (location_of(&text, FOLLOW, location) == 0 && grant(state, location, OP_READ, &granted) == 0) {
        result = granted ? 0 : -1;
        if (!granted) {
            deny_path(state, text.text, OP_READ, false);
        }
    }
    Py_DECREF(text.object);
    return result;
}

PyObject *on_symlink(State *state, Call *call)
{
    End link;
    empty_end(&link);
    PyObject *result = NULL;
    Py_ssize_t at = call_find(call, 0, "src");
    PyObject *source = at < 0 ? NULL : path_exact(call->args[at]);
    if (source != NULL && open_end(state, call, &link, 1, "dst", "dir_fd", OP_CREATE, PARENT) == 0 &&
        link_target_allows(state, source, &link) == 0) {
        PyObject *argv[MAX_ARGS];
        Call copy;
        if (call_copy(call, argv, &copy) == 0) {
            argv[at] = source;
            result = call_through(&copy, link.at, PARENT, &link.text, &link.where);
        }
    }
    if (source == NULL && !PyErr_Occurred()) {
        result = call_original(call); /* its own TypeError */
    }
    Py_XDECREF(source);
    close_end(&link);
    return result;
}

/* ---- files that native libraries open by themselves ----------------------------------------- */

/* Files that OpenSSL or readline open: checked, then passed as the resolved location. */
static int replace_path(State *state, PyObject **slot, unsigned wanted)
{
    PathText text;
    char location[PATH_MAX];
    struct stat info;
    if (*slot == Py_None) {
        Py_INCREF(*slot);
        return 0;
    }
    if (path_text(*slot, &text) < 0) {
        *slot = NULL; /* the caller's is not ours to release */
        return -1;
    }
    int result = location_of(&text, FOLLOW, location) == 0 && require(state, location, wanted) == 0 ? 0 : -1;
    if (result == 0 && stat(location, &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) {
        errno = EINVAL; /* a library that waits for the other end of a pipe holds the GIL */
        errno_error(text.shown);
        result = -1;
    }
    *slot = result == 0 ? path_object(location, text.object) : NULL;
    Py_DECREF(text.object);
    return *slot ? 0 : -1;
}

PyObject *on_certificates(State *state, Call *call)
{
    static const struct {
        const char *name;
        int index;
    } paths[] = {{"certfile", 0}, {"keyfile", 1}, {"cafile", 0}, {"capath", 1}};
    bool chain = strcmp(call->row->name, "load_cert_chain") == 0;
    PyObject *argv[MAX_ARGS], *held[2] = {NULL, NULL}, *result = NULL;
    Call copy;
    if (call_copy(call, argv, &copy) < 0) {
        return NULL;
    }
    for (int i = 0; i < 2; i++) {
        Py_ssize_t at = call_find(&copy, paths[i + (chain ? 0 : 2)].index, paths[i + (chain ? 0 : 2)].name);
        if (at < 0) {
            continue;
        }
        int failed = replace_path(state, &argv[at], OP_READ);
        held[i] = argv[at];
        if (failed < 0) {
            goto done;
        }
    }
    result = call_original(&copy);
done:
    Py_XDECREF(held[0]);
    Py_XDECREF(held[1]);
    return result;
}

/* A file that is the argument at `index`; for append_history_file behind a number of lines. */
PyObject *on_file_argument(State *state, Call *call)
{
    Py_ssize_t at = call_find(call, call->row->index, "");
    if (call->row->index == 1 && call->nargs > 0 &&
        (!PyLong_CheckExact(call->args[0]) || PyLong_AsLong(call->args[0]) < 0)) {
        PyErr_SetString(PyExc_ValueError, "the number of lines must be an int from 0 on");
        return NULL;
    }
    if (at < 0 || call->args[at] == Py_None) {
        bool has_default = strcmp(call->row->module, "readline") == 0; /* it lies in the user's home */
        return has_default ? deny_text(state, DENY_FILESYSTEM, "~/.history") : call_original(call);
    }
    PyObject *path = call->args[at];
    if (replace_path(state, &path, call->row->operations) < 0) {
        return NULL;
    }
    PyObject *result = call_with(call, at, path);
    Py_DECREF(path);
    return result;
}

/* POSIX shared memory is a file below /dev/shm. */
PyObject *on_shared_memory(State *state, Call *call)
{
    char text[PATH_MAX];
    Py_ssize_t at = call_find(call, 0, "path");
    const char *name = at >= 0 && PyUnicode_CheckExact(call->args[at]) ? PyUnicode_AsUTF8(call->args[at]) : NULL;
    if (name == NULL || snprintf(text, PATH_MAX, "/dev/shm/%s", name) >= PATH_MAX) {
        PyErr_Clear();
        return deny_text(state, DENY_FILESYSTEM, "/dev/shm");
    }
    char normal[PATH_MAX];
    if (path_normalise(text, normal) < 0 || require(state, normal, call->row->operations) < 0) {
        return NULL;
    }
    return call_original(call);
}

/* Files that a C library reads because a variable names them. A relative value is looked up in the library's own
 * places. */
static char *first_home = NULL; /* as the process was started with: what lies there is the host's own */

int home_ready(void)
{
    const char *home = getenv("HOME");
    first_home = home ? strdup(home) : NULL;
    return home && !first_home ? (PyErr_NoMemory(), -1) : 0;
}

static int check_variable(State *state, const char *name)
{
    const char *value = getenv(name);
    bool home = strcmp(name, "HOME") == 0;
    if (value == NULL || (home && first_home != NULL && strcmp(value, first_home) == 0)) {
        return 0;
    }
    value += value[0] == ':';
    if (value[0] != '/' && strstr(value, "..") == NULL) {
        return 0;
    }
    PyObject *object = PyUnicode_DecodeFSDefault(value);
    PathText text;
    char location[PATH_MAX];
    if (object == NULL || path_text(object, &text) < 0) {
        Py_XDECREF(object);
        return -1;
    }
    Py_DECREF(object);
    int found = location_of(&text, FOLLOW, location);
    Py_DECREF(text.object);
    return found < 0 ? -1 : require(state, location, OP_READ);
}

PyObject *on_named_by_environment(State *state, Call *call)
{
    char names[128];
    snprintf(names, sizeof names, "%s", call->row->variables);
    for (char *rest, *name = strtok_r(names, " ", &rest); name != NULL; name = strtok_r(NULL, " ", &rest)) {
        if (check_variable(state, name) < 0) {
            return NULL;
        }
    }
    return call_original(call);
}

/* Message catalogs are files below folders that the host chose. A domain or language must not lead out of them. */
PyObject *on_catalogue(State *state, Call *call)
{
    const char *languages = getenv("LANGUAGE"), *domain = "";
    if (call->row->index == 0 && call->nargs > 0 && PyUnicode_Check(call->args[0])) {
        domain = PyUnicode_AsUTF8(call->args[0]);
    }
    if (domain == NULL) {
        return NULL;
    }
    bool leads_out = strchr(domain, '/') != NULL || (languages != NULL && strchr(languages, '/') != NULL);
    bool sets = strcmp(call->row->name, "textdomain") == 0 && call->nargs > 0 && call->args[0] != Py_None;
    return leads_out || sets ? deny_text(state, DENY_TAMPER, call->row->denied) : call_original(call);
}

/* readline's "$include FILE" */
PyObject *on_bind_line(State *state, Call *call)
{
    const char *line = call->nargs == 1 && PyUnicode_Check(call->args[0]) ? PyUnicode_AsUTF8(call->args[0]) : NULL;
    if (line != NULL && strchr(line, '$') != NULL) {
        return deny_text(state, DENY_FILESYSTEM, "$include");
    }
    PyErr_Clear();
    return call_original(call);
}
