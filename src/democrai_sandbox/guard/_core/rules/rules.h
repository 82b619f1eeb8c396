/* Canonical paths, hosts and URLs, and the compiled rules of a policy. Nothing here knows who asks. */
#ifndef DEMOCRAI_RULES_H
#define DEMOCRAI_RULES_H

#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030E0000
#error "the guard's core supports CPython 3.11 to 3.13"
#endif
#ifdef Py_GIL_DISABLED
#error "the guard's core does not support free-threaded builds: its tables rely on the GIL"
#endif

/* Thread-local variables that are read on every file operation, without a function call. */
#define FAST_THREAD_LOCAL _Thread_local __attribute__((tls_model("initial-exec")))

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)

/* Whether a str has this text of ASCII characters. */
static inline bool text_equals(PyObject *object, const char *text, size_t length)
{
    if (LIKELY(PyUnicode_IS_COMPACT_ASCII(object))) {
        return (size_t)PyUnicode_GET_LENGTH(object) == length &&
               memcmp(PyUnicode_1BYTE_DATA(object), text, length) == 0;
    }
    return PyUnicode_CompareWithASCIIString(object, text) == 0;
}

#define TEXT_EQUALS(object, literal) text_equals(object, "" literal, sizeof literal - 1)

/* The value of a hexadecimal digit; -1 for any other character. */
static inline int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* ---- operations: the bits of democrai_sandbox.policy.FileAccess ---------------------------------------------- */
enum {
    OP_READ = 1,
    OP_CREATE = 2,
    OP_MODIFY = 4,
    OP_DELETE = 8,
    OP_EXECUTE = 16,
    OP_ALL = 31,
    FLAG_CODE = 32,         /* a read-only code root: interpreter, standard library, site-packages */
    FLAG_IMPORT = 64,       /* a directory only the import machinery may look into */
    FLAG_OWNED = 128,       /* counts below a protected path too: the runtime gave it to this subject */
    FLAG_STREAM = 2048,     /* may only be opened for writing: /dev/null */
    FLAG_IMPORTABLE = 8192, /* a folder of the application: only files that the import system loads are readable */
    FLAG_PROTECTED = 256,   /* nothing here or below, over all other entries */
    FLAG_ABOVE = 4096,      /* an ancestor of a protected path: cannot be moved or replaced, even with an approval */
    FLAG_READ_ONLY = 16384, /* code of the host: only a narrower grant below it makes it writable */
    FLAG_PINNED = 32768     /* a link on the way to code of the host: cannot be changed */
};

#define OP_WRITING ((unsigned)(OP_CREATE | OP_MODIFY | OP_DELETE))

/* ---- paths.c ------------------------------------------------------------------------------------------------- */
typedef struct {
    PyObject *object; /* exact str or bytes, owned */
    PyObject *shown;  /* in errors: the object that the caller gave, borrowed */
    char text[PATH_MAX];
    char raw[PATH_MAX]; /* absolute, as the kernel would walk it */
    bool directory;     /* ended in a slash: only a directory will do */
    size_t written;     /* where in `raw` the caller's own words begin, behind the working directory */
    bool dotted;        /* has "..": after a link that means the link's target, which only the kernel knows */
} PathText;

int path_is_descriptor(PyObject *object);
PyObject *path_exact(PyObject *object);
int path_text(PyObject *object, PathText *out);
/* Place of a path in a table. Mixes the last letters, in which the files of a folder differ. */
static inline size_t path_place(const char *path, size_t length, int bits)
{
    uint64_t letters = 0;
    if (LIKELY(length >= sizeof letters)) {
        memcpy(&letters, path + length - sizeof letters, sizeof letters);
    }
    else {
        memcpy(&letters, path, length);
    }
    return (size_t)((letters + length) * 0x9E3779B97F4A7C15ULL >> (64 - bits));
}
int path_text_at(PyObject *object, const char *base, PathText *out);
int path_canonical(const char *raw, int follow, char *out);
int path_normalise(const char *raw, char *out);
int path_of_descriptor(int fd, char *out);
int open_beneath(const char *path, int flags, int mode);
PyObject *path_object(const char *text, PyObject *like);
PyObject *path_handle_object(int fd, const char *base, PyObject *like);
int openat2_missing(void);

/* Whether this is the memory of a process, which is not a file wherever a rule puts it. */
static inline bool path_is_memory(const char *path)
{
    size_t length = strlen(path);
    return strncmp(path, "/proc/", 6) == 0 && length > 10 && strcmp(path + length - 4, "/mem") == 0;
}

/* ---- hosts.c ------------------------------------------------------------------------------------------------- */
enum { MAX_HOST = 253, MAX_TARGET = 64 * 1024 - 1, MAX_PORT = 65535 };
typedef struct {
    int version; /* 4 or 6; a mapped address is a 4 */
    unsigned char bytes[16];
} Address;

typedef struct {
    char text[MAX_HOST + 3]; /* canonical */
    char key[MAX_HOST + 3];  /* the same, but one for all spellings of the loopback host */
    bool is_address;
    Address address;
} Host;

extern PyObject *invalid_target;
int refuse_target(const char *why);
char *put_text(char *out, const char *text);
char *put_number(char *out, unsigned number);
int address_read(const char *text, Address *out);
void address_text(const Address *address, char *out);
bool address_is_forbidden(const Address *address);
bool address_is_loopback(const Address *address);
void host_of_address(const Address *address, Host *out);
int host_read(const char *text, size_t length, bool colons, Host *out);
void host_clear(Host *host);
void host_copy(Host *to, const Host *from);
bool host_is_own(const Host *host);
PyObject *host_target(const char *host, int port);

/* ---- urls.c -------------------------------------------------------------------------------------------------- */
typedef struct {
    char *key;           /* "U<scheme>|<host key>|<port>|<path>", owned */
    size_t base, length; /* without the path; with it */
    const char *scheme;  /* points into `memory` */
    char *memory;
    int port;
    bool ambiguous;
    Host host;
} Url;

extern PyObject *parse_url, *normalise_host;
int host_of_object(PyObject *object, Host *out);
int default_ports_set(PyObject *ports);
int url_read(const char *text, size_t length, Url *out);
int url_of_object(PyObject *object, Url *out);
int url_with_scheme(Url *url, const char *scheme);
PyObject *url_text(const Url *url);
const char *url_path(const Url *url);
void url_clear(Url *url);
int default_port(const char *scheme);
bool is_secure(const char *scheme);
int port_of_object(PyObject *object, bool zero);

/* ---- network_rules.c ----------------------------------------------------------------------------------------- */
/* Network rules: the bits of democrai_sandbox.policy.NetworkAccess, by key. */
enum { NET_CONNECT = 1, NET_RECEIVE = 2, NET_SEND = 4, NET_ALL = 7 };

typedef struct {
    uint64_t hash;
    uint32_t offset, length;
    unsigned mask;
} NetEntry;

typedef struct {
    NetEntry *table;
    size_t slots;
    char *arena;
    int depth;                        /* segments of the deepest path */
    bool lengths4[33], lengths6[129]; /* which prefix lengths there are */
    bool has4, has6;
    unsigned kinds; /* a bit for each letter that a key begins with */
} NetIndex;

typedef struct {
    const Host *host;
    int port; /* 0: none in particular */
} SocketTarget;

typedef unsigned (*Matcher)(const NetIndex *index, const void *what);

int net_index_build(NetIndex *index, PyObject *entries);
void net_index_clear(NetIndex *index);
unsigned match_url(const NetIndex *index, const void *url);
unsigned match_origin(const NetIndex *index, const void *url);
unsigned match_socket(const NetIndex *index, const void *socket);
unsigned match_any_port(const NetIndex *index, const void *host);
unsigned match_name(const NetIndex *index, const void *host);
unsigned match_unix(const NetIndex *index, const void *text);
unsigned match_literal(const NetIndex *index, const void *host);
const char *net_operation(unsigned operation);

/* ---- policy.c ------------------------------------------------------------------------------------------------ */
#define MAX_PREFIXES (PATH_MAX / 2 + 2)
typedef struct {
    const char *path;
    int count;
    uint64_t hash[MAX_PREFIXES];
    uint16_t length[MAX_PREFIXES];
} PathKey;

typedef struct {
    uint64_t hash;
    uint32_t offset;
    uint16_t length;
    uint16_t declared;
    uint16_t owned;
    uint8_t is_protected;
    uint8_t above_protected;
    uint8_t read_only;
} Entry;

typedef struct Policy {
    PyObject_HEAD Entry *table;
    size_t slots;     /* a power of two; 0 without entries */
    uint64_t *listed; /* a bit for each hash: most of the folders on the way to a path are not in the table */
    char *arena;
    uint32_t *order; /* the places in the table of all entries that give something, in the order of their paths */
    size_t given;
    uint64_t id;
    PyObject *subject, *kind; /* exact str */
    PyObject *imports;        /* frozenset of sensitive roots this subject may use */
    PyObject *declared;       /* what the Python face wants back for views: immutable values */
    PyObject *ancestors;      /* tuple of "kind:name": the chain of the process that started this one */
    NetIndex network;
    bool allow_subprocess;
    bool named_programs; /* names the programs that may be started, by entries to execute */
    bool include_runtime;
    bool network_only;   /* says nothing about files, imports and processes */
    PyObject *opened_by; /* exact str: the public function that the host called for it; empty for the runtime's own */
    const struct Policy *candidate; /* what its subject is held against; not owned, valid for its generation alone */
    uint64_t candidate_generation;
    struct State *resident; /* as which code runs that is marked as this subject's; not owned, NULL without any */
} Policy;

extern PyTypeObject Policy_Type;
PyObject *policy_new(PyObject *module, PyObject *args, PyObject *kwargs);
void path_key(PathKey *key, const char *path);
unsigned policy_mask(const Policy *policy, const PathKey *key);
unsigned policy_mask_beside(const Policy *policy, const PathKey *key, unsigned given_by_other);
extern size_t importable_lookups; /* lookups of masks that depended on files */
bool policy_gives_below(const Policy *policy, const char *path, bool owned);
int file_may_be_subjects(const char *path);
extern bool code_is_writable; /* a policy of this process has allowed writing below code of the host */
PyObject *core_is_importable(PyObject *module, PyObject *args);

#endif
