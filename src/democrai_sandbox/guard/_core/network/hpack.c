/* HPACK: decodes the compressed headers of HTTP/2. */
#include "network/network.h"

#include <string.h>

/* ---- the fixed tables ---------------------------------------------------------------------------------------------
 */

/* RFC 7541, appendices A and B: the static table, and the length of each symbol's Huffman code. The codes follow from
 * the lengths: shorter before longer, and by symbol among equals. */
static const struct {
    const char *name, *value;
} static_table[61] = {
    {":authority", ""},
    {":method", "GET"},
    {":method", "POST"},
    {":path", "/"},
    {":path", "/index.html"},
    {":scheme", "http"},
    {":scheme", "https"},
    {":status", "200"},
    {":status", "204"},
    {":status", "206"},
    {":status", "304"},
    {":status", "400"},
    {":status", "404"},
    {":status", "500"},
    {"accept-charset", ""},
    {"accept-encoding", "gzip, deflate"},
    {"accept-language", ""},
    {"accept-ranges", ""},
    {"accept", ""},
    {"access-control-allow-origin", ""},
    {"age", ""},
    {"allow", ""},
    {"authorization", ""},
    {"cache-control", ""},
    {"content-disposition", ""},
    {"content-encoding", ""},
    {"content-language", ""},
    {"content-length", ""},
    {"content-location", ""},
    {"content-range", ""},
    {"content-type", ""},
    {"cookie", ""},
    {"date", ""},
    {"etag", ""},
    {"expect", ""},
    {"expires", ""},
    {"from", ""},
    {"host", ""},
    {"if-match", ""},
    {"if-modified-since", ""},
    {"if-none-match", ""},
    {"if-range", ""},
    {"if-unmodified-since", ""},
    {"last-modified", ""},
    {"link", ""},
    {"location", ""},
    {"max-forwards", ""},
    {"proxy-authenticate", ""},
    {"proxy-authorization", ""},
    {"range", ""},
    {"referer", ""},
    {"refresh", ""},
    {"retry-after", ""},
    {"server", ""},
    {"set-cookie", ""},
    {"strict-transport-security", ""},
    {"transfer-encoding", ""},
    {"user-agent", ""},
    {"vary", ""},
    {"via", ""},
    {"www-authenticate", ""},
};

enum { SYMBOLS = 257, END_OF_STRING = 256, LONGEST_CODE = 30 };

static const unsigned char code_lengths[SYMBOLS] = {
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28,
    28, 28, 28, 6,  10, 10, 12, 13, 6,  8,  11, 10, 10, 8,  11, 8,  6,  6,  6,  5,  5,  5,  6,  6,  6,  6,  6,  6,  6,
    7,  8,  15, 6,  12, 10, 13, 6,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,  7,
    7,  8,  7,  8,  13, 19, 13, 14, 6,  15, 5,  6,  5,  6,  5,  6,  6,  6,  5,  7,  7,  6,  6,  6,  5,  6,  7,  6,  5,
    5,  6,  7,  7,  7,  7,  7,  15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24,
    24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22,
    23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26,
    27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23,
    22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
};

enum { ENTRY_OVERHEAD = 32, MOST_HEADERS = 256 * 1024 };

/* ---- the dynamic table: oldest first, in one piece of memory --------------------------------------------------- */

static size_t entry_size(const HpackEntry *entry)
{
    return (size_t)entry->name + entry->value + ENTRY_OVERHEAD;
}

/* Evicted entries are not moved at once: moving the rest each time would make a block of small entries cost thousands
 * of times its length. */
static void evict(Hpack *table, size_t room)
{
    while (table->count > 0 && table->size + room > table->limit) {
        table->size -= entry_size(&table->entries[table->first++]);
        table->count--;
    }
}

static size_t evicted_bytes(const Hpack *table)
{
    return table->count > 0 ? table->entries[table->first].at : table->used;
}

/* Moves the rest to the front, once as much was removed. */
static void compact(Hpack *table)
{
    size_t gone = evicted_bytes(table);
    if (table->first == 0 || (table->first <= table->count && gone <= table->used - gone)) {
        return;
    }
    for (size_t i = 0; i < table->count; i++) {
        table->entries[i] = table->entries[table->first + i];
        table->entries[i].at -= (uint32_t)gone;
    }
    if (gone > 0) {
        memmove(table->bytes, table->bytes + gone, table->used - gone);
    }
    table->first = 0;
    table->used -= gone;
}

/* Makes room for one more entry with this many bytes; doubles the size. */
static int make_room(Hpack *table, size_t length)
{
    size_t entries = table->first + table->count + 1, bytes = table->used + length + 1;
    if (entries > table->room_for_entries) {
        HpackEntry *grown = PyMem_Realloc(table->entries, entries * 2 * sizeof *grown);
        if (grown == NULL) {
            return -1;
        }
        table->entries = grown;
        table->room_for_entries = entries * 2;
    }
    if (bytes > table->room_for_bytes) {
        char *grown = PyMem_Realloc(table->bytes, bytes * 2);
        if (grown == NULL) {
            return -1;
        }
        table->bytes = grown;
        table->room_for_bytes = bytes * 2;
    }
    return 0;
}

static int add_entry(Hpack *table, HpackText name, HpackText value)
{
    HpackEntry entry = {0, (uint32_t)name.length, (uint32_t)value.length};
    size_t size = entry_size(&entry);
    evict(table, size);
    compact(table);
    if (size > table->limit) {
        return 0; /* larger than the whole table: it is emptied, and this one is not kept */
    }
    if (make_room(table, name.length + value.length) < 0) {
        return -1;
    }
    entry.at = (uint32_t)table->used;
    memcpy(table->bytes + table->used, name.text, name.length);
    memcpy(table->bytes + table->used + name.length, value.text, value.length);
    table->used += name.length + value.length;
    table->entries[table->first + table->count++] = entry;
    table->size += size;
    return 0;
}

int hpack_copy(Hpack *to, const Hpack *from)
{
    *to = (Hpack){.limit = from->limit};
    if (from->count == 0) {
        return 0;
    }
    size_t entries = from->first + from->count;
    to->entries = PyMem_Malloc(entries * sizeof *to->entries);
    to->bytes = PyMem_Malloc(from->used + 1);
    if (to->entries == NULL || to->bytes == NULL) {
        hpack_clear(to);
        return -1;
    }
    memcpy(to->entries, from->entries, entries * sizeof *to->entries);
    memcpy(to->bytes, from->bytes, from->used);
    to->first = from->first;
    to->count = from->count;
    to->used = from->used;
    to->size = from->size;
    to->room_for_entries = entries;
    to->room_for_bytes = from->used + 1;
    return 0;
}

void hpack_clear(Hpack *table)
{
    PyMem_Free(table->entries);
    PyMem_Free(table->bytes);
    *table = (Hpack){.limit = table->limit};
}

static int find_entry(const Hpack *table, uint64_t index, HpackText *name, HpackText *value)
{
    if (index >= 1 && index <= 61) {
        *name = (HpackText){static_table[index - 1].name, strlen(static_table[index - 1].name)};
        *value = (HpackText){static_table[index - 1].value, strlen(static_table[index - 1].value)};
        return 0;
    }
    if (index < 62 || index - 62 >= table->count) {
        return -1;
    }
    const HpackEntry *entry = &table->entries[table->first + table->count - 1 - (size_t)(index - 62)];
    *name = (HpackText){table->bytes + entry->at, entry->name};
    *value = (HpackText){table->bytes + entry->at + entry->name, entry->value};
    return 0;
}

/* ---- Huffman -------------------------------------------------------------------------------------------------------
 */

static uint32_t first_code[LONGEST_CODE + 1];
static uint16_t first_symbol[LONGEST_CODE + 1], codes_of[LONGEST_CODE + 1], symbols[SYMBOLS];

static void make_codes(void)
{
    uint32_t code = 0;
    uint16_t at = 0;
    for (int length = 1; length <= LONGEST_CODE; length++) {
        code <<= 1;
        first_code[length] = code;
        first_symbol[length] = at;
        for (int symbol = 0; symbol < SYMBOLS; symbol++) {
            if (code_lengths[symbol] == length) {
                symbols[at++] = (uint16_t)symbol;
                codes_of[length]++;
                code++;
            }
        }
    }
}

/* The rest at the end must be the beginning of the longest code: fewer than eight ones. */
static bool is_padding(uint32_t code, int length)
{
    return length < 8 && code == (1u << length) - 1;
}

static int decode_huffman(const unsigned char *data, size_t length, char *out, size_t *written)
{
    uint32_t code = 0;
    int bits = 0;
    if (symbols[0] == 0) {
        make_codes();
    }
    *written = 0;
    for (size_t i = 0; i < length * 8; i++) {
        code = code << 1 | (data[i / 8] >> (7 - i % 8) & 1);
        bits++;
        if (bits > LONGEST_CODE) {
            return -1;
        }
        if (code - first_code[bits] < codes_of[bits] && code >= first_code[bits]) {
            uint16_t symbol = symbols[first_symbol[bits] + code - first_code[bits]];
            if (symbol == END_OF_STRING) {
                return -1;
            }
            out[(*written)++] = (char)symbol;
            code = 0;
            bits = 0;
        }
    }
    return is_padding(code, bits) ? 0 : -1;
}

/* ---- blocks --------------------------------------------------------------------------------------------------------
 */

typedef struct {
    const unsigned char *at, *end;
    char *out; /* room for decoded texts */
    size_t left;
} Cursor;

static int read_number(Cursor *cursor, int prefix, uint64_t *out)
{
    uint64_t most = (1u << prefix) - 1;
    if (cursor->at >= cursor->end) {
        return -1;
    }
    *out = *cursor->at++ & most;
    if (*out < most) {
        return 0;
    }
    for (int shift = 0; shift <= 28 && cursor->at < cursor->end; shift += 7) {
        unsigned char byte = *cursor->at++;
        *out += (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) {
            return 0;
        }
    }
    return -1;
}

static int read_string(Cursor *cursor, HpackText *out)
{
    uint64_t length;
    bool huffman = cursor->at < cursor->end && *cursor->at & 0x80;
    if (read_number(cursor, 7, &length) < 0 || length > (uint64_t)(cursor->end - cursor->at)) {
        return -1;
    }
    size_t written = (size_t)length;
    if (cursor->left < (size_t)length * 2) {
        return -1; /* five bits are the shortest code */
    }
    if (huffman && decode_huffman(cursor->at, (size_t)length, cursor->out, &written) < 0) {
        return -1;
    }
    if (!huffman) {
        memcpy(cursor->out, cursor->at, (size_t)length);
    }
    *out = (HpackText){cursor->out, written};
    cursor->out += written;
    cursor->left -= written;
    cursor->at += length;
    return 0;
}

static int keep_copy(Cursor *cursor, HpackText *text)
{
    if (text->length > cursor->left) {
        return -1;
    }
    memcpy(cursor->out, text->text, text->length); /* adding an entry may move where it was */
    text->text = cursor->out;
    cursor->out += text->length;
    cursor->left -= text->length;
    return 0;
}

static int read_literal(Hpack *table, Cursor *cursor, int prefix, HpackText *name, HpackText *value)
{
    uint64_t index;
    if (read_number(cursor, prefix, &index) < 0) {
        return -1;
    }
    if (index == 0 ? read_string(cursor, name) < 0
                   : find_entry(table, index, name, value) < 0 || keep_copy(cursor, name) < 0) {
        return -1;
    }
    if (read_string(cursor, value) < 0) {
        return -1;
    }
    return prefix == 6 ? add_entry(table, *name, *value) : 0;
}

static int resize(Hpack *table, Cursor *cursor)
{
    enum { LARGEST = 64 * 1024 };
    uint64_t limit;
    if (read_number(cursor, 5, &limit) < 0 || limit > LARGEST) {
        return -1;
    }
    table->limit = (size_t)limit;
    evict(table, 0);
    return 0;
}

/* Decodes one block and calls `each` for each header. -1 for a malformed block, or when `each` fails. */
int hpack_decode(Hpack *table, const char *block, size_t length, int (*each)(HpackText, HpackText, void *),
                 void *context)
{
    static char room[MOST_HEADERS]; /* one caller at a time: the callback runs no Python */
    Cursor cursor = {(const unsigned char *)block, (const unsigned char *)block + length, room, MOST_HEADERS};
    int result = 0;
    while (result == 0 && cursor.at < cursor.end) {
        HpackText name = {"", 0}, value = {"", 0};
        unsigned char first = *cursor.at;
        if ((first & 0xe0) == 0x20) {
            result = resize(table, &cursor);
            continue;
        }
        if (first & 0x80) {
            uint64_t index;
            result = read_number(&cursor, 7, &index) < 0 || find_entry(table, index, &name, &value) < 0 ||
                             keep_copy(&cursor, &name) < 0 || keep_copy(&cursor, &value) < 0
                         ? -1
                         : 0;
        }
        else {
            result = read_literal(table, &cursor, (first & 0xc0) == 0x40 ? 6 : 4, &name, &value);
        }
        result = result < 0 ? -1 : each(name, value, context);
    }
    return result;
}
