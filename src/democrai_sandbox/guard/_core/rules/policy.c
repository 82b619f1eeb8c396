/* Compiled policies: a hash of whole path prefixes, each with a mask of operations.
 *
 * A lookup hashes a path once and looks up each of its prefixes. The cost does not depend on the number of roots or
 * on shared prefixes, and "/srv/a" never matches "/srv/ab". */
#include "rules/rules.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static uint64_t next_policy_id = 1;

/* Parts of keys for the latest folders: most paths follow others of the same folders. Protected by the GIL, with which
 * every key is computed. */
enum { FOLDER_BITS = 4, DEEPEST = 32, LONGEST_FOLDER = 256 };
static struct {
    size_t length; /* 0: none */
    int count;
    char path[LONGEST_FOLDER];
    uint64_t hash[DEEPEST];
    uint16_t lengths[DEEPEST];
} folders[1 << FOLDER_BITS];

/* Begins the key with a folder of which the parts are known. */
static bool start_key(PathKey *key, const char *path, size_t length)
{
    size_t at = path_place(path, length, FOLDER_BITS), count = (size_t)folders[at].count;
    if (length == 0 || folders[at].length != length || memcmp(path, folders[at].path, length) != 0) {
        return false;
    }
    memcpy(key->hash, folders[at].hash, count * sizeof *key->hash);
    memcpy(key->length, folders[at].lengths, count * sizeof *key->length);
    key->count = (int)count;
    return true;
}

static void note_folder(const PathKey *key)
{
    size_t count = (size_t)key->count - 1, length = key->length[count - 1];
    if (count > 1 && count <= DEEPEST && length <= LONGEST_FOLDER) {
        size_t at = path_place(key->path, length, FOLDER_BITS);
        memcpy(folders[at].path, key->path, length);
        memcpy(folders[at].hash, key->hash, count * sizeof *key->hash);
        memcpy(folders[at].lengths, key->length, count * sizeof *key->length);
        folders[at].count = (int)count;
        folders[at].length = length;
    }
}

/* FNV-1a, taken at every component boundary. Collisions are harmless: an entry's text is compared before it counts. */
static uint64_t with_letter(uint64_t hash, char letter)
{
    return (hash ^ (unsigned char)letter) * 1099511628211ULL;
}

void path_key(PathKey *key, const char *path)
{
    size_t folder = (size_t)(strrchr(path, '/') - path);
    bool known = start_key(key, path, folder);
    const char *p = path + (known ? folder : 0) + 1;
    key->path = path;
    if (!known) {
        key->hash[0] = with_letter(14695981039346656037ULL, '/');
        key->length[0] = 1;
        key->count = 1;
    }
    if (*p == '\0') {
        return; /* the root */
    }
    uint64_t hash = known ? with_letter(key->hash[key->count - 1], '/') : key->hash[0];
    for (;; p++) {
        if (*p == '/' || *p == '\0') {
            key->hash[key->count] = hash;
            key->length[key->count++] = (uint16_t)(p - path);
        }
        if (*p == '\0') {
            break;
        }
        hash = with_letter(hash, *p);
    }
    if (!known) {
        note_folder(key);
    }
}

enum { BITS_PER_SLOT = 8, BITS_PER_WORD = 64 };

static inline uint64_t *listed_word(const Policy *policy, uint64_t hash)
{
    return &policy->listed[(hash >> 32 & (policy->slots * BITS_PER_SLOT - 1)) / BITS_PER_WORD];
}

static inline uint64_t listed_bit(uint64_t hash)
{
    return (uint64_t)1 << (hash >> 32) % BITS_PER_WORD;
}

static Entry *find_slot(const Policy *policy, uint64_t hash, const char *path, uint16_t length)
{
    size_t at = (hash ^ (hash >> 29)) & (policy->slots - 1);
    for (;; at = (at + 1) & (policy->slots - 1)) {
        Entry *entry = &policy->table[at];
        if (entry->length == 0) {
            return entry;
        }
        if (entry->hash == hash && entry->length == length &&
            memcmp(policy->arena + entry->offset, path, length) == 0) {
            return entry;
        }
    }
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), size = strlen(end);
    return length > size && strcmp(text + length - size, end) == 0;
}

/* A folder that has an __init__.py. `path` has room for it. */
static bool is_package(char *path, size_t length)
{
    strcpy(path + length, "/__init__.py");
    bool is = access(path, F_OK) == 0;
    path[length] = '\0';
    return is;
}

/* Whether the import system loads this path: source, bytecode, native modules, folders, and data files in a package;
 * never hidden files. `base` is the length of the folder on sys.path. */
static bool is_importable(const char *path, size_t base)
{
    char work[PATH_MAX + 16];
    struct stat info;
    const char *rest = path + base;
    if (strstr(rest, "/.") != NULL) {
        return false;
    }
    if (*rest == '\0' || ends_with(rest, ".py") || ends_with(rest, ".pyc") || ends_with(rest, ".pyi") ||
        ends_with(rest, ".so")) {
        return true;
    }
    int number = errno;
    strcpy(work, path);
    char *last = strrchr(work, '/');
    *last = '\0';
    bool is = (size_t)(last - work) > base && is_package(work, (size_t)(last - work));
    *last = '/';
    is = is || (lstat(path, &info) == 0 ? S_ISDIR(info.st_mode) : true); /* what is not there has nothing to hide */
    errno = number;
    return is;
}

/* is_importable(root, path): whether the import system loads a path at or below a folder on sys.path. */
PyObject *core_is_importable(PyObject *module, PyObject *args)
{
    const char *root, *path;
    if (!PyArg_ParseTuple(args, "yy", &root, &path)) {
        return NULL;
    }
    size_t length = strcmp(root, "/") == 0 ? 0 : strlen(root);
    bool below = strlen(path) < PATH_MAX && strncmp(path, root, length) == 0 && strchr("/", path[length]) != NULL;
    return PyBool_FromLong(below && is_importable(path, length));
}

enum { MOST_NESTED = 8 };

size_t importable_lookups = 0;

static bool is_importable_from(const PathKey *key, const uint16_t *bases, int count)
{
    bool is = false;
    importable_lookups++;
    for (int i = 0; i < count && !is; i++) {
        is = is_importable(key->path, bases[i]);
    }
    return is;
}

/* Result of the entries for the first folders of a path. */
typedef struct {
    unsigned mask, owned;
    bool guarded, fixed;
    int count;
    uint16_t bases[MOST_NESTED]; /* folders of the application; looked into last, where no entry gives reading */
} Walk;

/* Adds the entry for one prefix of the path. Returns whether a protected path lies below it. */
static bool add_entry(Walk *walk, const Policy *policy, const PathKey *key, int at)
{
    if (LIKELY(!(*listed_word(policy, key->hash[at]) & listed_bit(key->hash[at])))) {
        return false;
    }
    const Entry *entry = find_slot(policy, key->hash[at], key->path, key->length[at]);
    if (LIKELY(entry->length == 0)) {
        return false;
    }
    if (entry->is_protected) {
        walk->mask = 0;
        walk->count = 0;
        walk->guarded = true;
        return false;
    }
    walk->guarded = walk->guarded && entry->owned == 0; /* what the runtime gave to this subject opens again below */
    unsigned given = entry->declared | entry->owned;
    if (UNLIKELY(given & FLAG_IMPORTABLE)) {
        given &= ~(unsigned)FLAG_IMPORTABLE;
        walk->count = walk->count < MOST_NESTED ? walk->count : MOST_NESTED - 1;
        walk->bases[walk->count] = key->length[at];
        walk->count += walk->guarded ? 0 : 1;
    }
    walk->mask |= walk->guarded ? 0 : given;
    walk->owned |= entry->owned;
    walk->fixed = entry->read_only || (walk->fixed && !(given & OP_WRITING));
    if (entry->read_only) { /* the installer writes the environment it was given */
        walk->mask = (walk->mask & ~OP_WRITING) | (walk->owned & OP_WRITING);
    }
    return entry->above_protected;
}

/* The latest walks to folders, with the policies, which never change. */
enum { WALK_BITS = 5 };
static struct {
    uint64_t id; /* of the policy */
    size_t length;
    Walk walk;
    char path[LONGEST_FOLDER];
} walks[1 << WALK_BITS];

static Walk walk_to_folder(const Policy *policy, const PathKey *key)
{
    Walk walk = {.mask = 0};
    size_t length = key->count > 1 ? key->length[key->count - 2] : 0;
    size_t at = (path_place(key->path, length, WALK_BITS) + policy->id) % (1 << WALK_BITS);
    if (walks[at].id == policy->id && walks[at].length == length && memcmp(walks[at].path, key->path, length) == 0) {
        return walks[at].walk;
    }
    for (int i = 0; i < key->count - 1; i++) {
        add_entry(&walk, policy, key, i);
    }
    if (length <= LONGEST_FOLDER) {
        walks[at].id = policy->id;
        walks[at].length = length;
        walks[at].walk = walk;
        memcpy(walks[at].path, key->path, length);
    }
    return walk;
}

/* The mask of a policy in addition to another mask; skips the lookup for reading if it is allowed already. */
unsigned policy_mask_beside(const Policy *policy, const PathKey *key, unsigned given_by_other)
{
    if (policy->slots == 0) {
        return 0;
    }
    Walk walk = walk_to_folder(policy, key);
    unsigned above = 0;
    if (add_entry(&walk, policy, key, key->count - 1)) {
        /* moving the folder away would carry the protected file out of its place, and planting a link where the
         * folder is still missing would decide where the host puts the file */
        walk.mask &= ~(unsigned)(OP_DELETE | OP_CREATE);
        above = FLAG_ABOVE;
    }
    if (UNLIKELY(walk.count > 0) && !walk.guarded && !((walk.mask | given_by_other) & OP_READ) &&
        is_importable_from(key, walk.bases, walk.count)) {
        walk.mask |= OP_READ;
    }
    return walk.mask | above | (walk.guarded ? FLAG_PROTECTED : 0u) | (walk.fixed ? FLAG_READ_ONLY : 0u);
}

unsigned policy_mask(const Policy *policy, const PathKey *key)
{
    return policy_mask_beside(policy, key, 0);
}

static int compare_paths(const void *one, const void *two, void *given)
{
    const Policy *policy = given;
    const Entry *a = &policy->table[*(const uint32_t *)one], *b = &policy->table[*(const uint32_t *)two];
    size_t common = a->length < b->length ? a->length : b->length;
    int order = memcmp(policy->arena + a->offset, policy->arena + b->offset, common);
    return order ? order : (int)a->length - (int)b->length;
}

/* Sorts the entries that allow something by path, so that entries below a folder are adjacent. */
static int put_in_order(Policy *policy)
{
    for (size_t i = 0; i < policy->slots; i++) {
        policy->given += (policy->table[i].declared | policy->table[i].owned) != 0;
    }
    policy->order = PyMem_Malloc((policy->given + 1) * sizeof *policy->order);
    if (policy->order == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    size_t count = 0;
    for (size_t i = 0; i < policy->slots; i++) {
        if (policy->table[i].declared | policy->table[i].owned) {
            policy->order[count++] = (uint32_t)i;
        }
    }
    qsort_r(policy->order, count, sizeof *policy->order, compare_paths, policy);
    return 0;
}

/* Whether an entry lies below a folder; with `owned`, only an entry that counts below a protected folder too. */
bool policy_gives_below(const Policy *policy, const char *path, bool owned)
{
    size_t length = strlen(path), low = 0, high = policy->given;
    char prefix[PATH_MAX + 1];
    memcpy(prefix, path, length);
    prefix[length] = '/';
    length += length == 1 ? 0 : 1; /* "/" ends in it already */
    while (low < high) {
        size_t middle = (low + high) / 2;
        const Entry *entry = &policy->table[policy->order[middle]];
        size_t common = entry->length < length ? entry->length : length;
        int order = memcmp(policy->arena + entry->offset, prefix, common);
        if (order < 0 || (order == 0 && entry->length < length)) {
            low = middle + 1;
        }
        else {
            high = middle;
        }
    }
    for (; low < policy->given; low++) {
        const Entry *entry = &policy->table[policy->order[low]];
        if (entry->length < length || memcmp(policy->arena + entry->offset, prefix, length) != 0) {
            return false;
        }
        if (entry->length > length && (!owned || entry->owned)) {
            return true;
        }
    }
    return false;
}

static Entry *insert(Policy *policy, const char *path, size_t length, uint32_t *used)
{
    PathKey key;
    char text[PATH_MAX];
    memcpy(text, path, length);
    text[length] = '\0';
    path_key(&key, text);
    Entry *entry = find_slot(policy, key.hash[key.count - 1], text, (uint16_t)length);
    if (entry->length == 0) {
        entry->hash = key.hash[key.count - 1];
        *listed_word(policy, entry->hash) |= listed_bit(entry->hash);
        entry->offset = *used;
        entry->length = (uint16_t)length;
        memcpy(policy->arena + *used, text, length);
        *used += (uint32_t)length;
    }
    return entry;
}

static void mark_ancestors(Policy *policy, const char *path, uint32_t *used)
{
    PathKey key;
    path_key(&key, path);
    for (int i = 0; i < key.count - 1; i++) {
        insert(policy, path, key.length[i], used)->above_protected = 1;
    }
}

/* Resolves a root, so that a root that is a link works. Not in Python, where guarded code could replace realpath. */
static void locate(const char *path, bool resolve, char *out)
{
    if (!resolve || path_canonical(path, 1, out) < 0) {
        strcpy(out, path);
    }
}

/* Entries whose ancestors must not be moved away. */
#define STAYING (FLAG_PROTECTED | FLAG_READ_ONLY | FLAG_PINNED)

static size_t components(const char *path)
{
    size_t count = 0;
    for (; *path; path++) {
        count += *path == '/';
    }
    return count;
}

/* Allocates room for every entry and for the ancestors of pinned entries. `places` gets the resolved roots: each is
 * resolved once, because a link may change. */
static int measure(PyObject *entries, bool resolve, PyObject *places, size_t *count, size_t *bytes)
{
    *count = 0;
    *bytes = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries); i++) {
        const char *path;
        Py_ssize_t length;
        int mask;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(entries, i), "y#i", &path, &length, &mask)) {
            return -1;
        }
        if (length < 1 || length >= PATH_MAX || path[0] != '/' || memchr(path, 0, (size_t)length) != NULL ||
            (length > 1 && path[length - 1] == '/')) {
            PyErr_Format(PyExc_ValueError, "not a normalised absolute path: %R", PyTuple_GET_ITEM(entries, i));
            return -1;
        }
        char where[PATH_MAX];
        /* the code of the host is given by its own path and by where that leads, and both stay */
        locate(path, resolve && !(mask & (FLAG_READ_ONLY | FLAG_PINNED)), where);
        PyObject *place = PyBytes_FromString(where);
        int failed = place ? PyList_Append(places, place) : -1;
        Py_XDECREF(place);
        if (failed < 0) {
            return -1;
        }
        size_t parts = 1, size = strlen(where);
        if (mask & STAYING) {
            parts += components(where) + components(path);
            size = size > (size_t)length ? size : (size_t)length;
        }
        *count += parts + 1;
        *bytes += parts * size + (size_t)length;
    }
    return 0;
}

/* ---- where subjects write -------------------------------------------------------------------- */

static PyObject *written = NULL; /* path -> when a subject could write there first, in nanoseconds */

static long long nanoseconds(const struct timespec *time)
{
    return time->tv_sec * 1000000000LL + time->tv_nsec;
}

static int note_written(const char *path)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now); /* by which files are dated */
    written = written ? written : PyDict_New();
    PyObject *key = written ? PyBytes_FromString(path) : NULL;
    PyObject *time = key ? PyLong_FromLongLong(nanoseconds(&now)) : NULL;
    int result = time && PyDict_SetDefault(written, key, time) ? 0 : -1;
    Py_XDECREF(key);
    Py_XDECREF(time);
    return result;
}

/* The time since which subjects could write this file; LLONG_MAX if never, -1 with an exception. */
static long long written_since(const char *path)
{
    char prefix[PATH_MAX];
    long long since = LLONG_MAX;
    for (size_t length = strlen(path); written != NULL && length > 0; length--) {
        if (path[length] != '/' && path[length] != '\0') {
            continue;
        }
        memcpy(prefix, path, length);
        prefix[length] = '\0';
        PyObject *key = PyBytes_FromString(prefix);
        PyObject *time = key ? PyDict_GetItemWithError(written, key) : NULL;
        Py_XDECREF(key);
        if (PyErr_Occurred()) {
            return -1;
        }
        long long first = time ? PyLong_AsLongLong(time) : LLONG_MAX;
        since = first < since ? first : since;
    }
    return since;
}

/* 1 if a subject could have made or changed the file; -1 with an exception. Uses ctime, which programs cannot set. */
int file_may_be_subjects(const char *path)
{
    struct stat info;
    long long since = written_since(path);
    if (since < 0 || since == LLONG_MAX) {
        return since < 0 ? -1 : 0;
    }
    return stat(path, &info) == 0 && nanoseconds(&info.st_ctim) >= since;
}

/* Pins the code at `where`, which the host finds by `path`: both must stay unchanged. */
static void keep_in_place(Policy *policy, const char *path, const char *where, unsigned mask, uint32_t *used)
{
    mark_ancestors(policy, path, used);
    if (mask & FLAG_PINNED) {
        insert(policy, path, strlen(path), used)->above_protected = 1;
        return;
    }
    mark_ancestors(policy, where, used);
    insert(policy, where, strlen(where), used)->read_only = 1;
    insert(policy, path, strlen(path), used)->read_only = 1;
}

bool code_is_writable = false;

/* Whether the policy has an entry that allows writing below code of the host. */
static bool writes_below_code(const Policy *policy)
{
    PathKey key;
    char path[PATH_MAX];
    for (size_t i = 0; i < policy->slots; i++) {
        const Entry *entry = &policy->table[i];
        bool owned = entry->owned & OP_WRITING;
        if (!owned && (entry->read_only || !(entry->declared & OP_WRITING))) {
            continue;
        }
        memcpy(path, policy->arena + entry->offset, entry->length);
        path[entry->length] = '\0';
        path_key(&key, path);
        for (int part = 0; part < key.count - !owned; part++) {
            if (find_slot(policy, key.hash[part], path, key.length[part])->read_only) {
                return true;
            }
        }
    }
    return false;
}

static int fill(Policy *policy, PyObject *entries, PyObject *places)
{
    uint32_t used = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries); i++) {
        const char *path;
        Py_ssize_t length;
        int mask;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(entries, i), "y#i", &path, &length, &mask)) {
            return -1;
        }
        const char *where = PyBytes_AS_STRING(PyList_GET_ITEM(places, i));
        if (mask & (FLAG_READ_ONLY | FLAG_PINNED)) {
            keep_in_place(policy, path, where, (unsigned)mask, &used);
        }
        if (mask & FLAG_PINNED) {
            continue;
        }
        Entry *entry = insert(policy, where, strlen(where), &used);
        unsigned bits = (unsigned)mask & (OP_ALL | FLAG_CODE | FLAG_IMPORT | FLAG_IMPORTABLE | FLAG_STREAM);
        bits &= bits & FLAG_IMPORTABLE ? ~(unsigned)OP_READ : ~0u; /* kept apart from what others give there */
        if (bits & (OP_CREATE | OP_MODIFY) && note_written(where) < 0) {
            return -1;
        }
        if (strcmp(where, path) != 0 && !(mask & FLAG_PROTECTED)) {
            /* the link itself, so that it can be looked at and read */
            insert(policy, path, (size_t)length, &used)->declared |= (uint16_t)(bits & OP_READ);
        }
        if (mask & FLAG_PROTECTED) {
            entry->is_protected = 1;
            mark_ancestors(policy, where, &used);
        }
        else if (mask & FLAG_OWNED) {
            entry->owned |= (uint16_t)bits;
        }
        else {
            entry->declared |= (uint16_t)bits;
        }
    }
    return 0;
}

static int build(Policy *policy, PyObject *entries, bool resolve)
{
    size_t count, bytes;
    PyObject *places = PyList_New(0);
    if (places != NULL) {
        PyObject_GC_UnTrack(places); /* not to be found through gc */
    }
    if (places == NULL || measure(entries, resolve, places, &count, &bytes) < 0 || count == 0) {
        Py_XDECREF(places);
        return PyErr_Occurred() ? -1 : 0;
    }
    for (policy->slots = 8; policy->slots < count * 2; policy->slots *= 2) {
    }
    policy->table = PyMem_Calloc(policy->slots, sizeof(Entry));
    policy->listed = PyMem_Calloc(policy->slots * BITS_PER_SLOT / BITS_PER_WORD, sizeof *policy->listed);
    policy->arena = PyMem_Malloc(bytes);
    int result =
        policy->table && policy->listed && policy->arena ? fill(policy, entries, places) : (PyErr_NoMemory(), -1);
    result = result < 0 ? -1 : put_in_order(policy);
    code_is_writable = code_is_writable || (result == 0 && writes_below_code(policy));
    Py_DECREF(places);
    return result;
}

PyObject *policy_new(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"subject",         "kind",      "entries",        "imports", "allow_subprocess",
                            "include_runtime", "declared",  "ancestors",      "resolve", "network",
                            "network_only",    "opened_by", "named_programs", NULL};
    PyObject *subject, *kind, *entries, *imports, *declared, *ancestors, *network, *opened_by;
    int allow_subprocess, include_runtime, resolve, network_only, named_programs;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UUO!O!ppUO!pO!pUp", names, &subject, &kind, &PyTuple_Type, &entries,
                                     &PyFrozenSet_Type, &imports, &allow_subprocess, &include_runtime, &declared,
                                     &PyTuple_Type, &ancestors, &resolve, &PyTuple_Type, &network, &network_only,
                                     &opened_by, &named_programs)) {
        return NULL;
    }
    Policy *policy = PyObject_New(Policy, &Policy_Type);
    if (policy == NULL) {
        return NULL;
    }
    policy->table = NULL;
    policy->listed = NULL;
    policy->arena = NULL;
    policy->order = NULL;
    policy->given = 0;
    policy->slots = 0;
    policy->resident = NULL;
    policy->candidate = NULL;
    policy->candidate_generation = 0;
    policy->id = next_policy_id++;
    policy->subject = Py_NewRef(subject);
    policy->kind = Py_NewRef(kind);
    policy->imports = Py_NewRef(imports);
    policy->declared = Py_NewRef(declared);
    policy->ancestors = Py_NewRef(ancestors);
    policy->allow_subprocess = allow_subprocess;
    policy->named_programs = named_programs;
    policy->include_runtime = include_runtime;
    policy->network_only = network_only;
    policy->opened_by = Py_NewRef(opened_by);
    memset(&policy->network, 0, sizeof policy->network);
    if (build(policy, entries, resolve) < 0 || net_index_build(&policy->network, network) < 0) {
        Py_DECREF(policy);
        return NULL;
    }
    return (PyObject *)policy;
}

static void policy_dealloc(PyObject *self)
{
    Policy *policy = (Policy *)self;
    PyMem_Free(policy->table);
    PyMem_Free(policy->listed);
    PyMem_Free(policy->arena);
    PyMem_Free(policy->order);
    net_index_clear(&policy->network);
    Py_XDECREF(policy->subject);
    Py_XDECREF(policy->kind);
    Py_XDECREF(policy->opened_by);
    Py_XDECREF(policy->imports);
    Py_XDECREF(policy->declared);
    Py_XDECREF(policy->ancestors);
    PyObject_Free(self);
}

PyTypeObject Policy_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "democrai_sandbox.guard._core.Policy",
    .tp_basicsize = sizeof(Policy),
    .tp_dealloc = policy_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
};
