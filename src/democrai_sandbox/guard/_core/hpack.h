/* HPACK and the frames of HTTP/2: see hpack.c and http2.c. */
#ifndef DEMOCRAI_HPACK_H
#define DEMOCRAI_HPACK_H

#include "network.h"

typedef struct {
    const char *text;
    size_t length;
} HpackText;

typedef struct {
    uint32_t at, name, value; /* where its texts lie, and their lengths */
} HpackEntry;

typedef struct {
    HpackEntry *entries; /* the first of them are gone already */
    char *bytes;
    size_t first, count, used, size, limit;
    size_t room_for_entries, room_for_bytes;
} Hpack;

int hpack_copy(Hpack *to, const Hpack *from);
void hpack_clear(Hpack *table);
int hpack_decode(Hpack *table, const char *block, size_t length, int (*each)(HpackText, HpackText, void *),
                 void *context);

#endif
