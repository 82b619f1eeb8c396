/* http2.c, hpack.c, requests.c: HTTP/2 as it is written to a connection, after the first half of its preface. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Reader start = {.mode = IN_STREAMS, .began = true, .frames = http2_new(), .origin = {.scheme = "http", .port = 80}};
    REQUIRE(host_read("good.example", 12, false, &start.origin.host) == 0);
    REQUIRE(reader_feed(&start, subject(), "SM\r\n\r\n", 6) == 0);
    read_in_pieces(&start, data, size);
    reader_clear(&start);
    return 0;
}
