/* Opens files. The openat2 call that checks the path is the open itself, so nothing can be replaced in between. */
#include "io/io.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

FAST_THREAD_LOCAL bool checked_open = false;
PyObject *opener = NULL; /* of the host: opens allowed files that the kernel refuses to this process */

/* ---- which operations an open asks for ------------------------------------------------------ */

typedef struct {
    unsigned must;   /* all of these */
    unsigned either; /* and one of these: which one depends on whether the file is there */
} Wanted;

static Wanted wanted_by(int flags)
{
    int access = flags & O_ACCMODE;
    bool writes = access != O_RDONLY || (flags & O_TRUNC);
    Wanted wanted = {0, 0};
    if (access != O_WRONLY || (flags & O_PATH)) {
        wanted.must |= OP_READ;
    }
    if ((flags & O_TMPFILE) == O_TMPFILE) {
        wanted.must = OP_CREATE;
    }
    else if (flags & O_CREAT) {
        wanted.must |= flags & O_EXCL ? OP_CREATE : 0;
        wanted.either = flags & O_EXCL ? 0 : (writes ? OP_CREATE | OP_MODIFY : OP_CREATE | OP_READ);
    }
    else if (writes && !(flags & O_PATH)) {
        wanted.must |= OP_MODIFY;
    }
    return wanted;
}

static bool enough(Wanted wanted, unsigned granted)
{
    return (granted & wanted.must) == wanted.must && (wanted.either == 0 || (granted & wanted.either));
}

/* With the right to modify only, the open must not create, and vice versa: the flags for the kernel say so. */
static int limited_flags(int flags, Wanted wanted, unsigned granted)
{
    if (wanted.either == 0) {
        return flags;
    }
    if (!(granted & OP_CREATE)) {
        return flags & ~O_CREAT;
    }
    return (wanted.either & OP_MODIFY) && !(granted & OP_MODIFY) ? flags | O_EXCL : flags;
}

/* ---- the open ------------------------------------------------------------------------------- */

typedef struct {
    State *state;
    PathText *text;
    int flags, mode;
    Wanted wanted;
    bool inside, declared; /* `declared`: the rules give all of it where `path` says, so nothing else is asked */
    int broken;            /* the error of a path that cannot be walked */
    struct stat *info;     /* filled from the opened file, unless NULL */
    const char *path;      /* the text, or `found` */
    char found[PATH_MAX];
} Opening;

static int locate(Opening *opening)
{
    int follow = !(opening->flags & O_NOFOLLOW) && (opening->flags & (O_CREAT | O_EXCL)) != (O_CREAT | O_EXCL);
    opening->path = opening->found;
    return find_location(opening->text, follow, opening->found);
}

static int refuse(Opening *opening, unsigned missing)
{
    const char *shown = opening->inside ? opening->path : opening->text->text;
    return deny_given(opening->state, opening->text, shown, missing, false);
}

static void describe(const Opening *opening, int fd)
{
    if (opening->info != NULL && fstat(fd, opening->info) < 0) {
        opening->info->st_mode = 0;
    }
}

/* The operation to name in the question: one that only a decision allows, if there is one. */
static unsigned asked_operation(const Opening *opening, unsigned granted)
{
    unsigned approved = granted & ~location_mask(opening->state, opening->path);
    unsigned operations = approved ? approved : granted;
    return operations & -operations;
}

/* The kernel rules of a process cannot grow, so its host opens files that exist, or were approved, only since then.
 * Returns the descriptor, a negative errno, or INT_MIN with an exception. */
static int open_outside(const Opening *opening, int flags, unsigned granted)
{
    char operation[64];
    if (opener == NULL || opener == Py_None) {
        return -EACCES;
    }
    operation_text(asked_operation(opening, granted & OP_ALL), operation);
    State *state = answering(opening->state);
    PyObject *target = PyUnicode_DecodeFSDefault(opening->path);
    PyObject *question =
        target ? question_new(state, &(Asked){"filesystem", operation, target, false, NULL, NULL}) : NULL;
    PyObject *args = question ? Py_BuildValue("(Oii)", question, flags, opening->mode) : NULL;
    PyObject *answer = args ? call_outside(state, opener, args) : NULL;
    if (answer == NULL && args != NULL) {
        raise_check_failed();
    }
    long fd = answer ? PyLong_AsLong(answer) : -1;
    Py_XDECREF(target);
    Py_XDECREF(question);
    Py_XDECREF(args);
    Py_XDECREF(answer);
    return PyErr_Occurred() ? INT_MIN : (int)fd;
}

/* 1 and *fd, 0 to try again at a new location, -1 with an exception. */
static int open_once(Opening *opening, int *fd)
{
    Wanted wanted = opening->wanted;
    unsigned all = wanted.must | wanted.either, granted = all;
    if (!opening->declared && grant_quietly(opening->state, opening->path, all, &granted) < 0) {
        return -1;
    }
    if (!enough(wanted, granted) && (location_mask(opening->state, opening->path) & FLAG_STREAM)) {
        granted |= OP_MODIFY;
    }
    if (!enough(wanted, granted)) {
        unsigned missing = wanted.must & ~granted;
        return refuse(opening, missing ? missing : wanted.either & ~OP_READ);
    }
    int flags = limited_flags(opening->flags, wanted, granted), failed = opening->broken;
    while (!failed || failed == EINTR) {
        if (failed == EINTR && PyErr_CheckSignals() < 0) {
            return -1;
        }
        Py_BEGIN_ALLOW_THREADS
        *fd = open_beneath(opening->path, flags, opening->mode);
        failed = *fd < 0 ? errno : 0;
        if (!failed) {
            describe(opening, *fd);
        }
        Py_END_ALLOW_THREADS
        if (!failed) {
            return 1;
        }
    }
    if (failed == EACCES) {
        *fd = open_outside(opening, flags, granted);
        if (*fd == INT_MIN) {
            return -1;
        }
        if (*fd >= 0) {
            describe(opening, *fd);
            return 1;
        }
        failed = -*fd;
    }
    if (failed == ENOENT && flags != opening->flags && !(flags & O_CREAT)) {
        return refuse(opening, OP_CREATE);
    }
    if (failed == EEXIST && flags != opening->flags && (flags & O_EXCL)) {
        return refuse(opening, OP_MODIFY);
    }
    if (failed == ELOOP) {
        char before[PATH_MAX];
        strcpy(before, opening->path);
        opening->broken = locate(opening);
        opening->declared = false;
        if (strcmp(before, opening->path) != 0 || !(opening->flags & O_NOFOLLOW)) {
            return 0;
        }
    }
    errno = failed;
    errno_error(opening->text->shown);
    return -1;
}

int guarded_open(State *state, PathText *text, int flags, int mode, struct stat *info)
{
    Opening opening; /* not zeroed: most of it is room for a path */
    int fd = -1;
    unsigned mask = location_mask(state, text->text);
    opening.state = state;
    opening.text = text;
    opening.wanted = wanted_by(flags);
    if (text->directory && (flags & O_CREAT)) {
        errno = EISDIR; /* as the kernel says of a name that ends in a slash */
        errno_error(text->shown);
        return -1;
    }
    opening.flags = flags | (text->directory ? O_DIRECTORY : 0);
    opening.mode = mode;
    opening.info = info;
    opening.inside = enough(opening.wanted, mask & FLAG_STREAM ? mask | OP_MODIFY : mask);
    opening.broken = 0;
    opening.declared = false;
    if (check_dots(state, text) < 0) {
        return -1;
    }
    if (UNLIKELY(shadow_concerns(state))) {
        locate(&opening); /* once, and before the open has made a file of it */
        shadow_open(state, opening.path, opening.wanted.must, opening.wanted.either);
    }
    if (opening.inside && !text->dotted) {
        unsigned all = opening.wanted.must | opening.wanted.either;
        opening.path = text->text;
        opening.declared = (mask & all) == all && !path_is_memory(text->text);
    }
    else {
        opening.broken = locate(&opening);
    }
    for (int attempt = 0; attempt < 8; attempt++) {
        int result = open_once(&opening, &fd);
        if (result != 0) {
            return result < 0 ? -1 : fd;
        }
    }
    errno = ELOOP;
    errno_error(text->shown);
    return -1;
}

/* Other hooks still get the event of the open; ours skips it. */
int announce_open(PyObject *path, const char *mode, int flags)
{
    if (LIKELY(audit_hook_list_is_ours())) {
        return 0;
    }
    checked_open = true;
    int result =
        mode ? PySys_Audit("open", "Osi", path, mode, flags) : PySys_Audit("open", "OOi", path, Py_None, flags);
    checked_open = false;
    return result;
}

/* ---- os.open -------------------------------------------------------------------------------- */

static int integer_argument(const Call *call, int index, const char *name, int fallback)
{
    Py_ssize_t at = call_find(call, index, name);
    if (at < 0) {
        return fallback;
    }
    long value = PyLong_AsLong(call->args[at]);
    if (value > INT_MAX || value < INT_MIN) {
        PyErr_SetString(PyExc_OverflowError, "signed integer does not fit into int");
        return -1;
    }
    return (int)value;
}

PyObject *on_open(State *state, Call *call)
{
    char base[PATH_MAX];
    bool relative;
    PathText text;
    Py_ssize_t at = call_find(call, 0, "path"), flags_at = call_find(call, 1, "flags");
    if (at < 0 || flags_at < 0) {
        return call_original(call); /* its own TypeError */
    }
    int flags = integer_argument(call, 1, "flags", 0), mode = integer_argument(call, 2, "mode", 0777);
    if (PyErr_Occurred() || directory_argument(state, call, "dir_fd", base, &relative) < 0 ||
        path_text_at(call->args[at], relative ? base : NULL, &text) < 0) {
        return NULL;
    }
    int fd = -1;
    if (announce_open(text.object, NULL, flags) == 0) {
        fd = guarded_open(state, &text, flags, mode, NULL);
    }
    Py_DECREF(text.object);
    if (fd < 0) {
        return NULL;
    }
    descriptor_adopt(state, fd);
    return PyLong_FromLong(fd);
}
