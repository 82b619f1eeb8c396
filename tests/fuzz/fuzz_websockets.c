/* reader.c: a client's frames on an open websocket. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bool may_send = size > 0 && data[0] & 1;
    Reader start = {.mode = IN_FRAMES, .began = true, .origin = {.scheme = "http", .port = 80}};
    REQUIRE(host_read("good.example", 12, false, &start.origin.host) == 0);
    start.socket_url = PyUnicode_FromString(may_send ? "ws://good.example/v1" : "ws://other.example/v1");
    size_t from = size > 0;
    read_in_pieces(&start, data + from, size - from);
    reader_clear(&start);
    return 0;
}
