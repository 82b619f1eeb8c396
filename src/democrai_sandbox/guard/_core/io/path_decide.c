/* Decides about a resolved path: the rules of the chain first, then the decider, then a denial with a hint. */
#include "io/io.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Whether a context that guarded code opened excludes the path: an approval cannot widen such a context. */
static bool narrowed_away(const State *state, const PathKey *key, unsigned operation)
{
    for (; state->mode == MODE_NARROW; state = state->parent) {
        if (state->policy->network_only) {
            continue;
        }
        const Policy *shared = state->policy->include_runtime ? runtime_policy : code_policy;
        unsigned mask = policy_mask(state->policy, key);
        mask |= shared ? policy_mask_beside(shared, key, mask) : 0;
        if (!(mask & operation)) {
            return true;
        }
    }
    return false;
}

static int add_approvals(State *state, const PathKey *key, unsigned wanted, unsigned *granted)
{
    for (unsigned bit = OP_READ; bit <= OP_EXECUTE; bit <<= 1) {
        if (!(wanted & bit) || (*granted & bit) || narrowed_away(state, key, bit)) {
            continue;
        }
        char operation[64];
        operation_text(bit, operation);
        PyObject *target = PyUnicode_DecodeFSDefault(key->path);
        int answer = target ? approved(state, "filesystem", operation, target, false, NULL) : -1;
        Py_XDECREF(target);
        if (answer < 0) {
            return -1;
        }
        *granted |= answer ? bit : 0;
    }
    return 0;
}

bool path_narrowed_away(const State *state, const char *path, unsigned bit)
{
    PathKey key;
    path_key(&key, path);
    return narrowed_away(state, &key, bit);
}

/* The operations on a location that cannot be approved, by its mask. */
unsigned never_approved(unsigned mask)
{
    unsigned writing = mask & FLAG_READ_ONLY ? OP_WRITING : 0;
    return mask & FLAG_PROTECTED ? OP_ALL : mask & FLAG_ABOVE ? writing | OP_DELETE | OP_CREATE : writing;
}

/* *granted = which of the wanted operations the chain or an approval allows at this exact location. */
int grant_quietly(State *state, const char *path, unsigned wanted, unsigned *granted)
{
    PathKey key;
    path_key(&key, path);
    unsigned mask = state_mask(state, &key);
    *granted = mask & wanted;
    if (UNLIKELY(path_is_memory(path))) {
        *granted = 0; /* memory of a process is not a file, under any root */
        return 0;
    }
    if (*granted == wanted) {
        return 0;
    }
    if ((mask & FLAG_IMPORT) && (wanted & OP_READ) && frame_is_import_machinery()) {
        *granted |= OP_READ;
    }
    if (mask & FLAG_PROTECTED) {
        return 0; /* paths that the host protects cannot be approved */
    }
    return add_approvals(state, &key, wanted & ~never_approved(mask), granted);
}

int grant(State *state, const char *path, unsigned wanted, unsigned *granted)
{
    if (UNLIKELY(candidates_held)) {
        shadow_path(state, path, wanted);
    }
    return grant_quietly(state, path, wanted, granted);
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

/* Masks of the latest paths: the same file is often written, read and looked at in turn. Rules do not change during an
 * activation. */
enum { PLACE_BITS = 7, PLACES = 1 << PLACE_BITS, LONGEST_KEPT = 192 };
static struct {
    uint64_t serial; /* of the activation */
    size_t length;
    unsigned mask;
    char path[LONGEST_KEPT];
} latest[PLACES];

/* The rules that all subjects share have changed. */
void location_masks_forget(void)
{
    memset(latest, 0, sizeof latest);
}

unsigned location_mask(State *state, const char *path)
{
    size_t length = strlen(path), at = path_place(path, length, PLACE_BITS);
    if (latest[at].serial == state->serial && latest[at].length == length && LIKELY(!candidates_held) &&
        memcmp(latest[at].path, path, length) == 0) {
        return latest[at].mask;
    }
    PathKey key;
    path_key(&key, path);
    size_t lookups = importable_lookups;
    unsigned mask = state_mask(state, &key);
    if (lookups == importable_lookups && length <= LONGEST_KEPT && !candidates_held) {
        latest[at].serial = state->serial;
        latest[at].length = length;
        latest[at].mask = mask;
        memcpy(latest[at].path, path, length);
    }
    return mask;
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

/* Folders and files of code that are known to be reached without a link, with the end of that knowledge. */
enum { SECONDS_KNOWN = 1 };
static struct {
    size_t length;
    time_t until;
    char path[LONGEST_KEPT];
} known_places[PLACES];

/* Whether no subject can put a link anywhere on the path: it is code of the host, or a folder above it. */
static bool stays_in_place(unsigned mask)
{
    bool code = (mask & FLAG_CODE) && (mask & FLAG_READ_ONLY) && !(mask & OP_WRITING);
    return (code || (mask & FLAG_ABOVE)) && LIKELY(!code_is_writable);
}

/* Whether the first `length` characters of the path are a place that is reached without a link. */
static bool has_no_link(const char *path, size_t length)
{
    struct timespec now;
    bool found;
    if (length >= LONGEST_KEPT || clock_gettime(CLOCK_MONOTONIC_COARSE, &now) < 0) {
        return false;
    }
    if (length == 0) {
        return true; /* the root */
    }
    size_t at = path_place(path, length, PLACE_BITS);
    if (known_places[at].length == length && now.tv_sec < known_places[at].until &&
        memcmp(known_places[at].path, path, length) == 0) {
        return true;
    }
    char place[LONGEST_KEPT];
    memcpy(place, path, length);
    place[length] = '\0';
    Py_BEGIN_ALLOW_THREADS
    int fd = open_beneath(place, O_PATH, 0);
    found = fd >= 0 && close(fd) == 0;
    Py_END_ALLOW_THREADS
    if (!found) {
        return false;
    }
    memcpy(known_places[at].path, path, length);
    known_places[at].length = length;
    known_places[at].until = now.tv_sec + SECONDS_KNOWN;
    return true;
}

/* Whether this is the location of a file of the host's code, without a link on the way that a subject could change. */
bool is_location_of_code(State *state, const PathText *text)
{
    return !text->dotted && stays_in_place(location_mask(state, text->text)) &&
           has_no_link(text->text, strlen(text->text));
}

/* Asks for the metadata of a path that stays in place in one system call. False if that is not possible because a link
 * leads there, or may lead there; otherwise *failed is 0 or the error. */
static bool stat_in_place(const char *path, int how, Resolved *out, int *failed)
{
    if (!has_no_link(path, (size_t)(strrchr(path, '/') - path))) {
        return false;
    }
    Py_BEGIN_ALLOW_THREADS
    *failed = lstat(path, &out->info) < 0 ? errno : 0;
    Py_END_ALLOW_THREADS
    out->told = *failed == 0;
    out->fd = -1;
    return !(out->told && (how & FOLLOW) && S_ISLNK(out->info.st_mode));
}

/* Removes the name from the folder of the handle, and closes it. Returns 0 or the error. */
static int remove_name(Resolved *out, const PathText *text, int how)
{
    char name[PATH_MAX];
    size_t length = strlen(strcpy(name, strrchr(out->path, '/') + 1));
    int failed = how & REMOVES_FOLDER ? EBUSY : EISDIR; /* for the root, which has no name */
    if (length > 0) {
        strcpy(name + length, text->directory ? "/" : "");
        failed = unlinkat(out->fd, name, how & REMOVES_FOLDER ? AT_REMOVEDIR : 0) < 0 ? errno : 0;
    }
    close(out->fd);
    out->fd = -1;
    return failed;
}

static bool sufficient(unsigned granted, unsigned wanted, int how)
{
    return how & ANY ? granted != 0 : granted == wanted;
}

/* Finds the location where the kernel would end, without the GIL (a dead network mount must not stop the host). If the
 * kernel meets no link, the lexical form is the location, even if the file does not exist. Returns the error of the
 * kernel for a path that cannot be walked. */
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
    errno = broken;
    return broken;
}

/* Like find_location(), but -1 with an exception when the location is unknown, such as without a free descriptor. A
 * path that the kernel cannot walk keeps its lexical form. */
int location_of(const PathText *text, int follow, char *path)
{
    switch (find_location(text, follow, path)) {
    case 0:
    case ENOENT:
    case ENOTDIR:
    case ELOOP:
    case EACCES:
    case EPERM:
    case ENXIO:
    case ENAMETOOLONG:
        return 0;
    default:
        PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, text->shown);
        return -1;
    }
}

/* Whether a path may be looked at: it is readable, or an ancestor of a declared path, which is known to exist. */
static bool may_be_looked_at(State *state, const char *path)
{
    unsigned mask = location_mask(state, path);
    return !path_is_memory(path) && ((mask & OP_READ) || state_gives_below(state, path, mask & FLAG_PROTECTED));
}

/* ".." after a name reveals that the name exists. The subject must not use it on paths that it may not read. */
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
                return deny_given(state, text, normal, OP_READ, false);
            }
        }
        if (length > 0 && !(length == 1 && p[0] == '.')) {
            descended = !up;
        }
        p += length + (p[length] == '/');
    }
    return 0;
}

/* Like grant_quietly(); the decider can find out that this is a probe. */
static int grant_probe(State *state, const char *path, unsigned wanted, int how, unsigned *granted)
{
    bool outer = probing;
    probing = how & PROBE;
    int result = grant_quietly(state, path, wanted, granted);
    probing = outer;
    return result;
}

/* Finds where `text` leads, decides, and opens an O_PATH handle there: of the object itself or, with PARENT, of the
 * folder it is in. The location that was decided on is the location of the handle. -1 with an exception otherwise.
 * STAT and REMOVES act through the handle at once, without taking the GIL in between. */
int resolve(State *state, PathText *text, unsigned wanted, int how, Resolved *out)
{
    bool directory = text->directory && !(how & PARENT);
    how |= directory ? FOLLOW : 0;
    unsigned mask = location_mask(state, text->text);
    out->granted = mask & wanted;
    bool inside = sufficient(out->granted, wanted, how),
         decided = inside && !text->dotted && !path_is_memory(text->text);
    if (text->dotted && check_dots(state, text) < 0) {
        return -1;
    }
    if (UNLIKELY(shadow_concerns(state))) {
        find_location(text, how & FOLLOW, out->path);
        shadow_open(state, out->path, how & ANY ? 0 : wanted, how & ANY ? wanted : 0);
    }
    strcpy(out->path, text->text);
    int failed = 0;
    bool looks = (how & LOOK) && !decided && may_be_looked_at(state, text->text);
    if ((decided || looks) && (how & STAT) && !text->dotted && !directory && stays_in_place(mask) &&
        stat_in_place(out->path, how, out, &failed)) {
        out->granted = wanted;
        errno = failed;
        return failed ? (errno_error(text->shown), -1) : 0;
    }
    failed = decided ? 0 : find_location(text, how & FOLLOW, out->path);
    for (int attempt = 0; attempt < 8; attempt++) {
        if (!decided && looks && may_be_looked_at(state, out->path)) {
            out->granted = wanted;
        }
        else if (!decided && grant_probe(state, out->path, wanted, how, &out->granted) < 0) {
            return -1;
        }
        if (!sufficient(out->granted, wanted, how)) {
            /* outside the roots the answer shows the path as it was asked for, not where a link there leads */
            const char *shown = inside ? out->path : text->text;
            return deny_given(state, text, shown, wanted & ~out->granted, how & PROBE);
        }
        if (!failed) {
            Py_BEGIN_ALLOW_THREADS
            out->fd = open_handle(out->path, how, directory);
            failed = out->fd < 0 ? errno : 0;
            out->told = !failed && (how & STAT) && fstat(out->fd, &out->info) == 0;
            out->unremoved = !failed && (how & REMOVES) ? remove_name(out, text, how) : 0;
            Py_END_ALLOW_THREADS
            if (!failed) {
                return 0;
            }
        }
        if (failed != ELOOP) {
            errno = failed;
            errno_error(text->shown);
            return -1;
        }
        failed = find_location(text, how & FOLLOW, out->path);
        decided = false;
    }
    errno = ELOOP;
    errno_error(text->shown);
    return -1;
}
