/* One text, written to a connection in different pieces. */
#include "fuzz.h"

enum { FEW = 64 };

/* False when something was refused. With `copies`, each write begins with a copy, as those of a wire do. */
static bool feed(const Reader *start, const uint8_t *data, size_t size, size_t step, bool copies, Reader *out)
{
    REQUIRE(reader_copy(out, start) == 0);
    for (size_t at = 0, length; at < size; at += length) {
        length = step < size - at ? step : size - at;
        if (was_refused(reader_feed(out, subject(), (const char *)data + at, length))) {
            return false;
        }
        if (copies) {
            Reader copy;
            REQUIRE(reader_copy(&copy, out) == 0);
            reader_clear(out);
            *out = copy;
        }
    }
    return true;
}

/* A line is checked as soon as it is there, and so refused earlier than with the rest of its head; no piece may be
 * permitted that the whole is not. */
void read_in_pieces(const Reader *start, const uint8_t *data, size_t size)
{
    size_t steps[] = {size <= FEW ? 1 : 13, size > 0 ? data[size - 1] % 64u + 16 : 16};
    Reader whole, pieces;
    bool permitted = feed(start, data, size, size, false, &whole);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        bool same = feed(start, data, size, steps[i], i == 1, &pieces);
        REQUIRE(permitted || !same);
        if (permitted && same) {
            REQUIRE(whole.mode == pieces.mode && whole.left == pieces.left && whole.used == pieces.used);
            REQUIRE(whole.in_line == pieces.in_line && whole.origin.port == pieces.origin.port);
            REQUIRE(strcmp(whole.origin.host.key, pieces.origin.host.key) == 0);
        }
        reader_clear(&pieces);
    }
    reader_clear(&whole);
}
