/* Hosts: reads a name or an address into its one canonical spelling, like democrai_sandbox.policy.hosts. A spelling
 * that two parsers could read differently is refused. */
#include "rules/rules.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <string.h>
#include <strings.h>
#include <sys/utsname.h>

PyObject *invalid_target = NULL; /* makes the exception for a target that cannot be read; "" for a missing one */

/* Raises invalid_target with a reason. Always -1. */
int refuse_target(const char *why)
{
    PyObject *error = invalid_target ? PyObject_CallFunction(invalid_target, "s", why) : NULL;
    if (error != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
    else if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, why);
    }
    return -1;
}

/* ---- addresses --------------------------------------------------------------------------------- */

static const unsigned char mapped_prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

/* An IPv4-mapped address is that IPv4 address: the kernel dials the same host. */
static void unmap(Address *address)
{
    if (address->version == 6 && memcmp(address->bytes, mapped_prefix, 12) == 0) {
        memmove(address->bytes, address->bytes + 12, 4);
        memset(address->bytes + 4, 0, 12);
        address->version = 4;
    }
}

int address_read(const char *text, Address *out)
{
    memset(out, 0, sizeof *out);
    if (strchr(text, ':') == NULL) {
        out->version = 4;
        return inet_pton(AF_INET, text, out->bytes) == 1 ? 0 : -1;
    }
    out->version = 6;
    if (inet_pton(AF_INET6, text, out->bytes) != 1) {
        return -1;
    }
    unmap(out);
    return 0;
}

/* The first longest run of at least two zero groups, as (start, length). */
static void longest_zeros(const unsigned *groups, int *start, int *length)
{
    *start = -1;
    *length = 1;
    for (int i = 0; i < 8; i++) {
        int run = 0;
        while (i + run < 8 && groups[i + run] == 0) {
            run++;
        }
        if (run > *length) {
            *start = i;
            *length = run;
        }
        i += run;
    }
}

/* These build the keys that are needed for every connection; printf is slower. */
char *put_text(char *out, const char *text)
{
    size_t length = strlen(text);
    memcpy(out, text, length + 1);
    return out + length;
}

char *put_number(char *out, unsigned number)
{
    char digits[12];
    char *p = digits + sizeof digits - 1;
    *p = '\0';
    do {
        *--p = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    return put_text(out, p);
}

/* Not inet_ntop(), which writes some IPv6 addresses with a dotted end: the text is a key here. */
void address_text(const Address *address, char *out)
{
    const unsigned char *b = address->bytes;
    if (address->version == 4) {
        for (int i = 0; i < 4; i++) {
            out = put_number(i > 0 ? put_text(out, ".") : out, b[i]);
        }
        return;
    }
    unsigned groups[8];
    for (int i = 0; i < 8; i++) {
        groups[i] = (unsigned)b[2 * i] << 8 | b[2 * i + 1];
    }
    int start, length;
    longest_zeros(groups, &start, &length);
    char *p = out;
    for (int i = 0; i < 8; i++) {
        if (i == start) {
            p += sprintf(p, "::");
            i += length - 1;
            continue;
        }
        p += sprintf(p, "%s%x", i > 0 && i != start + length ? ":" : "", groups[i]);
    }
    *p = '\0';
}

static bool in_range(const Address *address, int version, const char *network, int bits)
{
    Address base = {.version = version};
    inet_pton(version == 4 ? AF_INET : AF_INET6, network, base.bytes);
    if (address->version != version || memcmp(address->bytes, base.bytes, (size_t)(bits / 8)) != 0) {
        return false;
    }
    int rest = bits % 8;
    unsigned mask = rest ? 0xffu << (8 - rest) & 0xffu : 0;
    return ((address->bytes[bits / 8 % 16] ^ base.bytes[bits / 8 % 16]) & mask) == 0;
}

static bool any_range(const Address *address, const char *const (*ranges)[2], size_t count)
{
    for (size_t i = 0; i < count; i++) {
        int version = strchr(ranges[i][0], ':') ? 6 : 4;
        if (in_range(address, version, ranges[i][0], atoi(ranges[i][1]))) {
            return true;
        }
    }
    return false;
}

/* An IPv4 address inside an IPv6 address (compatible, NAT64, 6to4, Teredo), which the network extracts. */
static bool embedded(const Address *address, Address *inner)
{
    static const struct {
        const char *network;
        int bits, at;
        bool inverted;
    } forms[] = {{"::", 96, 12, false},
                 {"64:ff9b::", 96, 12, false},
                 {"64:ff9b:1::", 48, 12, false},
                 {"2002::", 16, 2, false},
                 {"2001::", 32, 12, true}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (in_range(address, 6, forms[i].network, forms[i].bits)) {
            memset(inner, 0, sizeof *inner);
            inner->version = 4;
            for (int k = 0; k < 4; k++) {
                unsigned char byte = address->bytes[forms[i].at + k];
                inner->bytes[k] = forms[i].inverted ? (unsigned char)~byte : byte;
            }
            return true;
        }
    }
    return false;
}

/* Addresses that a public name must never lead to: this machine, its link, broadcast, and services that return the
 * credentials of the machine. */
bool address_is_forbidden(const Address *address)
{
    static const char *const ranges[][2] = {
        {"0.0.0.0", "8"},         {"127.0.0.0", "8"},        {"169.254.0.0", "16"},
        {"224.0.0.0", "4"},       {"255.255.255.255", "32"}, {"100.100.100.200", "32"},
        {"192.0.0.192", "32"},    {"168.63.129.16", "32"},   {"::", "128"},
        {"::1", "128"},           {"fe80::", "10"},          {"ff00::", "8"},
        {"fd00:ec2::254", "128"}, {"fd20:ce::254", "128"}};
    Address inner;
    if (any_range(address, ranges, sizeof ranges / sizeof *ranges)) {
        return true;
    }
    return embedded(address, &inner) && any_range(&inner, ranges, sizeof ranges / sizeof *ranges);
}

bool address_is_loopback(const Address *address)
{
    return address->version == 4 ? address->bytes[0] == 127 : in_range(address, 6, "::1", 128);
}

/* ---- hosts --------------------------------------------------------------------------------------- */

static void set_key(Host *host)
{
    bool loopback =
        strcmp(host->text, "localhost") == 0 || strcmp(host->text, "127.0.0.1") == 0 || strcmp(host->text, "::1") == 0;
    strcpy(host->key, loopback ? "localhost" : host->text);
}

void host_of_address(const Address *address, Host *out)
{
    out->is_address = true;
    out->address = *address;
    address_text(address, out->text);
    set_key(out);
}

/* Whether the C library or a browser reads this as the last part of an IPv4 address, in any old spelling. */
static bool looks_numeric(const char *label)
{
    bool hexadecimal = label[0] == '0' && label[1] == 'x';
    const char *digits = hexadecimal ? "0123456789abcdef" : "0123456789";
    const char *p = hexadecimal ? label + 2 : label;
    return *label != '\0' && p[strspn(p, digits)] == '\0';
}

static bool is_label(const char *label, size_t length)
{
    if (length == 0 || length > 63 || label[0] == '-' || label[length - 1] == '-') {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        char c = label[i];
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-')) {
            return false;
        }
    }
    return true;
}

static int read_name(Host *out)
{
    size_t length = strlen(out->text);
    if (length > 0 && out->text[length - 1] == '.') {
        out->text[--length] = '\0';
    }
    if (length > MAX_HOST) {
        return refuse_target("the host is longer than 253 characters");
    }
    for (const char *p = out->text;;) {
        size_t label = strcspn(p, ".");
        if (!is_label(p, label)) {
            return refuse_target("not a host name");
        }
        if (p[label] == '\0') {
            return 0;
        }
        p += label + 1;
    }
}

/* The last label without the dot after it says whether it is meant as an address. */
static bool is_meant_as_ipv4(const char *name)
{
    char last[MAX_HOST + 4];
    strcpy(last, name);
    size_t length = strlen(last);
    if (length > 0 && last[length - 1] == '.') {
        last[length - 1] = '\0';
    }
    const char *dot = strrchr(last, '.');
    return looks_numeric(dot ? dot + 1 : last);
}

/* These two skip the unused part of the buffers: clearing and copying all of it was slow. */
void host_clear(Host *host)
{
    host->text[0] = host->key[0] = '\0';
    host->is_address = false;
    memset(&host->address, 0, sizeof host->address);
}

void host_copy(Host *to, const Host *from)
{
    strcpy(to->text, from->text);
    strcpy(to->key, from->key);
    to->is_address = from->is_address;
    to->address = from->address;
}

/* A name or IPv4 address, or with `colons` an IPv6 one without brackets. The text is ASCII. */
int host_read(const char *text, size_t length, bool colons, Host *out)
{
    host_clear(out);
    if (length == 0) {
        return refuse_target("");
    }
    if (length > MAX_HOST + 1) {
        return refuse_target("the host is longer than 253 characters");
    }
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c <= ' ' || c >= 0x7f) {
            return refuse_target("the host holds white space or a control character");
        }
        if (c == '%' || c == '\\' || c == '@') {
            return refuse_target("the host holds a '%', a backslash or an '@'");
        }
        out->text[i] = (char)tolower(c);
    }
    out->text[length] = '\0';
    bool six = colons && strchr(out->text, ':') != NULL;
    if (six || is_meant_as_ipv4(out->text)) {
        if (address_read(out->text, &out->address) < 0) {
            return refuse_target(
                six ? "not an IPv6 address"
                    : "the host is a number that is not a canonical IPv4 address (four decimal parts)");
        }
        Address address = out->address;
        host_of_address(&address, out);
        return 0;
    }
    if (read_name(out) < 0) {
        return -1;
    }
    set_key(out);
    return 0;
}

/* Names of this machine: every subject may resolve them, and they may lead to it. */
bool host_is_own(const Host *host)
{
    static struct utsname system; /* as it was at first: a subject that runs as root could rename the machine */
    static bool known = false;
    if (!known) {
        known = uname(&system) == 0;
    }
    return strcmp(host->key, "localhost") == 0 ||
           (known && system.nodename[0] != '\0' && strcasecmp(system.nodename, host->text) == 0);
}

/* "host", "host:port", "[v6]:port": the canonical text of a host form. */
PyObject *host_target(const char *host, int port)
{
    if (port == 0) {
        return PyUnicode_FromString(host);
    }
    return PyUnicode_FromFormat(strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, port);
}
