/* hpack.c: blocks of compressed headers, one after the other with one table. */
#include "fuzz.h"

static int count(HpackText name, HpackText value, void *context)
{
    size_t *sum = context;
    for (size_t i = 0; i < name.length; i++) {
        *sum += (unsigned char)name.text[i];
    }
    for (size_t i = 0; i < value.length; i++) {
        *sum += (unsigned char)value.text[i];
    }
    return 0;
}

/* Each block begins with its length. A copy of the table must read it in the same way. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Hpack table = {.limit = 4096};
    Bytes bytes = {data, data + size};
    int result = 0;
    while (result == 0 && bytes_left(&bytes) > 0) {
        size_t length = next_byte(&bytes) * 4u, sum = 0, other = 0;
        length = length < bytes_left(&bytes) ? length : bytes_left(&bytes);
        Hpack copy;
        REQUIRE(hpack_copy(&copy, &table) == 0);
        result = hpack_decode(&table, (const char *)bytes.at, length, count, &sum);
        REQUIRE(hpack_decode(&copy, (const char *)bytes.at, length, count, &other) == result && sum == other);
        REQUIRE(table.size <= table.limit && copy.size == table.size);
        hpack_clear(&copy);
        bytes.at += length;
    }
    hpack_clear(&table);
    return 0;
}
