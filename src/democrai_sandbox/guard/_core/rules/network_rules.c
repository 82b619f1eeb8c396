/* Matches targets against the network rules of a policy. The rules are a hash of whole keys (see
 * democrai_sandbox.policy.network_rules), so the cost does not grow with their number. */
#include "rules/rules.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#define FNV_START 14695981039346656037ULL
#define FNV(hash, c) (((hash) ^ (unsigned char)(c)) * 1099511628211ULL)

/* ---- building ------------------------------------------------------------------------------------ */

static NetEntry *find_slot(const NetIndex *index, uint64_t hash, const char *key, size_t length)
{
    size_t at = (hash ^ (hash >> 29)) & (index->slots - 1);
    for (;; at = (at + 1) & (index->slots - 1)) {
        NetEntry *entry = &index->table[at];
        if (entry->length == 0) {
            return entry;
        }
        if (entry->hash == hash && entry->length == length && memcmp(index->arena + entry->offset, key, length) == 0) {
            return entry;
        }
    }
}

static uint64_t hash_of(const char *key, size_t length)
{
    uint64_t hash = FNV_START;
    for (size_t i = 0; i < length; i++) {
        hash = FNV(hash, key[i]);
    }
    return hash;
}

static unsigned find(const NetIndex *index, const char *key, size_t length)
{
    return index->slots ? find_slot(index, hash_of(key, length), key, length)->mask : 0;
}

static unsigned kind_bit(const char *key)
{
    return key[0] >= 'A' && key[0] <= 'Z' ? 1u << (key[0] - 'A') : 0;
}

/* Collects the facts about all keys that lookups need: kinds, depth of paths, prefix lengths. */
static void note_key(NetIndex *index, const char *key, size_t length)
{
    int version, bits;
    index->kinds |= kind_bit(key);
    switch (key[0]) {
    case 'U': {
        int depth = 0;
        const char *path = memrchr(key, '|', length);
        for (const char *p = path; p != NULL && p < key + length; p++) {
            depth += *p == '/';
        }
        index->depth = depth > index->depth ? depth : index->depth;
        break;
    }
    case 'N':
        if (sscanf(key, "N%d|%d|", &version, &bits) == 2 && bits >= 0 && bits <= (version == 4 ? 32 : 128)) {
            (version == 4 ? index->lengths4 : index->lengths6)[bits] = true;
            *(version == 4 ? &index->has4 : &index->has6) = true;
        }
        break;
    default:
        break;
    }
}

static void insert(NetIndex *index, const char *key, size_t length, unsigned mask, size_t *used)
{
    uint64_t hash = hash_of(key, length);
    NetEntry *entry = find_slot(index, hash, key, length);
    if (length == 0) {
        return;
    }
    if (entry->length == 0) {
        memcpy(index->arena + *used, key, length);
        index->arena[*used + length] = '\0';
        *entry = (NetEntry){hash, (uint32_t)*used, (uint32_t)length, 0};
        *used += length + 1;
    }
    entry->mask |= mask & NET_ALL;
    note_key(index, index->arena + entry->offset, entry->length);
}

int net_index_build(NetIndex *index, PyObject *entries)
{
    size_t bytes = 0, used = 0, count = (size_t)PyTuple_GET_SIZE(entries);
    memset(index, 0, sizeof *index);
    for (size_t i = 0; i < count; i++) {
        const char *key;
        Py_ssize_t length;
        unsigned mask;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(entries, (Py_ssize_t)i), "y#I", &key, &length, &mask)) {
            return -1;
        }
        bytes += (size_t)length + 1 + (key[0] == 'S' ? PATH_MAX + 2 : 0);
    }
    if (count == 0) {
        return 0;
    }
    for (index->slots = 8; index->slots < count * 3; index->slots *= 2) {
    }
    index->table = PyMem_Calloc(index->slots, sizeof(NetEntry));
    index->arena = PyMem_Malloc(bytes);
    if (index->table == NULL || index->arena == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        const char *key;
        Py_ssize_t length;
        unsigned mask;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(entries, (Py_ssize_t)i), "y#I", &key, &length, &mask)) {
            return -1;
        }
        insert(index, key, (size_t)length, mask, &used);
        char where[PATH_MAX + 1] = "S";
        /* a socket counts where it really is, so that a rule with a link in it works */
        if (key[0] == 'S' && key[1] == '/' && path_canonical(key + 1, 1, where + 1) == 0) {
            insert(index, where, strlen(where), mask, &used);
        }
    }
    return 0;
}

void net_index_clear(NetIndex *index)
{
    PyMem_Free(index->table);
    PyMem_Free(index->arena);
}

/* ---- matching ------------------------------------------------------------------------------------ */

/* "<kind><text>" for port -1, "<kind><text>|*" for 0, "<kind><text>|<port>" otherwise. */
static unsigned find_text(const NetIndex *index, const char *kind, const char *text, int port)
{
    if (!(index->kinds & kind_bit(kind))) {
        return 0;
    }
    char key[MAX_HOST + 32], *end = put_text(put_text(key, kind), text);
    if (port >= 0) {
        *end++ = '|';
    }
    if (port == 0) {
        *end++ = '*';
    }
    else if (port > 0) {
        end = put_number(end, (unsigned)port);
    }
    return find(index, key, (size_t)(end - key));
}

static unsigned match_networks(const NetIndex *index, const Address *address, int least)
{
    unsigned mask = 0;
    int most = address->version == 4 ? 32 : 128, bytes = most / 8;
    const bool *lengths = address->version == 4 ? index->lengths4 : index->lengths6;
    if (!(address->version == 4 ? index->has4 : index->has6)) {
        return 0;
    }
    for (int bits = least; bits <= most; bits++) {
        if (!lengths[bits]) {
            continue;
        }
        char key[64], *end = put_text(key, address->version == 4 ? "N4|" : "N6|");
        end = put_number(end, (unsigned)bits);
        *end++ = '|';
        for (int i = 0; i < bytes; i++) {
            int kept = bits - 8 * i;
            unsigned byte = kept >= 8 ? address->bytes[i] : kept <= 0 ? 0 : address->bytes[i] & (0xffu << (8 - kept));
            *end++ = "0123456789abcdef"[byte >> 4 & 0xf];
            *end++ = "0123456789abcdef"[byte & 0xf];
        }
        mask |= find(index, key, (size_t)(end - key));
    }
    return mask;
}

static unsigned match_loopback_networks(const NetIndex *index)
{
    Address four = {.version = 4, .bytes = {127, 0, 0, 1}}, six = {.version = 6};
    six.bytes[15] = 1;
    return match_networks(index, &four, 0) | match_networks(index, &six, 0);
}

static unsigned match_host(const NetIndex *index, const Host *host, int port)
{
    if (index->slots == 0) {
        return 0;
    }
    unsigned mask = find_text(index, "H", host->key, 0) | (port ? find_text(index, "H", host->key, port) : 0);
    if (strcmp(host->key, "localhost") == 0) {
        return mask | match_loopback_networks(index);
    }
    if (host->is_address) {
        return mask | match_networks(index, &host->address, 0);
    }
    for (const char *dot = strchr(host->key, '.'); dot != NULL; dot = strchr(dot + 1, '.')) {
        mask |= find_text(index, "W", dot + 1, 0) | (port ? find_text(index, "W", dot + 1, port) : 0);
    }
    return mask;
}

unsigned match_socket(const NetIndex *index, const void *what)
{
    const SocketTarget *target = what;
    return match_host(index, target->host, target->port);
}

/* Rules for the URL and for its parent paths, by whole segments. The final path of an ambiguous URL is unknown, so only
 * a rule for all paths covers it. */
unsigned match_url(const NetIndex *index, const void *what)
{
    const Url *url = what;
    if (index->slots == 0) {
        return 0;
    }
    unsigned mask = match_host(index, &url->host, url->port);
    uint64_t hash = hash_of(url->key, url->base);
    mask |= find_slot(index, hash, url->key, url->base)->mask;
    int depth = 0;
    for (size_t i = url->base; i < url->length && !url->ambiguous; i++) {
        if (url->key[i] == '/' && i > url->base) {
            mask |= find_slot(index, hash, url->key, i)->mask;
        }
        depth += url->key[i] == '/';
        if (depth > index->depth) {
            return mask;
        }
        hash = FNV(hash, url->key[i]);
    }
    return url->ambiguous || url->length == url->base ? mask
                                                      : mask | find_slot(index, hash, url->key, url->length)->mask;
}

/* Whether any request to the URL's scheme, host and port is permitted, for any path. */
unsigned match_origin(const NetIndex *index, const void *what)
{
    const Url *url = what;
    char key[MAX_HOST + 64], *end;
    if (index->slots == 0 || strlen(url->scheme) > 32) {
        return index->slots ? match_host(index, &url->host, url->port) : 0;
    }
    end = put_text(put_text(put_text(put_text(key, "O"), url->scheme), "|"), url->host.key);
    *end++ = '|';
    end = put_number(end, (unsigned)url->port);
    return match_host(index, &url->host, url->port) | find(index, key, (size_t)(end - key));
}

static unsigned match_labels(const NetIndex *index, const char *kind, const char *pattern, const Host *host)
{
    unsigned mask = find_text(index, kind, host->key, -1);
    for (const char *dot = host->is_address ? NULL : strchr(host->key, '.'); dot != NULL; dot = strchr(dot + 1, '.')) {
        mask |= find_text(index, pattern, dot + 1, -1);
    }
    return mask;
}

unsigned match_any_port(const NetIndex *index, const void *host)
{
    return match_labels(index, "P", "P*.", host);
}

/* Rules that allow to look up a name: of any form and operation. */
unsigned match_name(const NetIndex *index, const void *host)
{
    return match_labels(index, "R", "R*.", host);
}

unsigned match_unix(const NetIndex *index, const void *text)
{
    char key[PATH_MAX + 2];
    int length = snprintf(key, sizeof key, "S%s", (const char *)text);
    return length > 0 && (size_t)length < sizeof key ? find(index, key, (size_t)length) : 0;
}

/* Rules for this address, or for a range around it. */
unsigned match_literal(const NetIndex *index, const void *what)
{
    const Host *host = what;
    enum { NARROW_ENOUGH = 8 }; /* "everything" names nothing */
    return find_text(index, "R", host->key, -1) | match_networks(index, &host->address, NARROW_ENOUGH);
}

/* The name of an operation in questions and denials. */
const char *net_operation(unsigned operation)
{
    return operation == NET_CONNECT ? "connect" : operation == NET_RECEIVE ? "receive" : "send";
}
