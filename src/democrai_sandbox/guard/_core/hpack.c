/* HPACK: the compressed headers of HTTP/2, decoded. */
#include "core.h"
#include "hpack.h"
#include "hpack_tables.h"

#include <string.h>

enum { ENTRY_OVERHEAD = 32, MOST_HEADERS = 256 * 1024 };

/* ---- the dynamic table: oldest first, in one piece of memory --------------------------------------------------- */

static size_t entry_size(const HpackEntry *entry)
{
    return (size_t)entry->name + entry->value + ENTRY_OVERHEAD;
}

static void evict(Hpack *table, size_t room)
{
    size_t count = 0, bytes = 0;
    while (count < table->count && table->size + room > table->limit) {
        table->size -= entry_size(&table->entries[count]);
        bytes += (size_t)table->entries[count].name + table->entries[count].value;
        count++;
    }
    if (count == 0) {
        return;
    }
    memmove(table->entries, table->entries + count, (table->count - count) * sizeof *table->entries);
    memmove(table->bytes, table->bytes + bytes, table->used - bytes);
    table->count -= count;
    table->used -= bytes;
}

static int add_entry(Hpack *table, HpackText name, HpackText value)
{
    HpackEntry entry = {(uint32_t)name.length, (uint32_t)value.length};
    size_t size = entry_size(&entry);
    evict(table, size);
    if (size > table->limit) {
        return 0; /* larger than the whole table: it is emptied, and this one is not kept */
    }
    HpackEntry *entries = PyMem_Realloc(table->entries, (table->count + 1) * sizeof *entries);
    char *bytes = entries ? PyMem_Realloc(table->bytes, table->used + size) : NULL;
    table->entries = entries ? entries : table->entries;
    table->bytes = bytes ? bytes : table->bytes;
    if (bytes == NULL) {
        return -1;
    }
    memcpy(bytes + table->used, name.text, name.length);
    memcpy(bytes + table->used + name.length, value.text, value.length);
    table->used += name.length + value.length;
    table->entries[table->count++] = entry;
    table->size += size;
    return 0;
}

int hpack_copy(Hpack *to, const Hpack *from)
{
    *to = *from;
    to->entries = NULL;
    to->bytes = NULL;
    if (from->count > 0) {
        to->entries = PyMem_Malloc(from->count * sizeof *to->entries);
        to->bytes = PyMem_Malloc(from->used + 1);
        if (to->entries == NULL || to->bytes == NULL) {
            hpack_clear(to);
            return -1;
        }
        memcpy(to->entries, from->entries, from->count * sizeof *to->entries);
        memcpy(to->bytes, from->bytes, from->used);
    }
    return 0;
}

void hpack_clear(Hpack *table)
{
    PyMem_Free(table->entries);
    PyMem_Free(table->bytes);
    table->entries = NULL;
    table->bytes = NULL;
    table->count = table->used = table->size = 0;
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
    size_t wanted = table->count - 1 - (size_t)(index - 62), at = 0;
    for (size_t i = 0; i < wanted; i++) {
        at += (size_t)table->entries[i].name + table->entries[i].value;
    }
    *name = (HpackText){table->bytes + at, table->entries[wanted].name};
    *value = (HpackText){table->bytes + at + table->entries[wanted].name, table->entries[wanted].value};
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

/* What is left at the end must be the beginning of the longest code: fewer than eight ones. */
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

/* Decodes one block, calling back for each header. -1: not a block that we understand, or the callback said so. */
int hpack_decode(Hpack *table, const char *block, size_t length, int (*each)(HpackText, HpackText, void *),
                 void *context)
{
    char *room = PyMem_Malloc(MOST_HEADERS);
    Cursor cursor = {(const unsigned char *)block, (const unsigned char *)block + length, room,
                     room ? MOST_HEADERS : 0};
    int result = room ? 0 : -1;
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
    PyMem_Free(room);
    return result;
}
