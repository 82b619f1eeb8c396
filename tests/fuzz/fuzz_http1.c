/* reader.c, requests.c: HTTP/1.x as it is written to a connection, to an origin or through a proxy. */
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const schemes[] = {"http", "https"};
    unsigned how = size > 0 ? data[0] : 0;
    Reader start = {.mode = AT_START, .inner = how & 2, .began = how & 4};
    strcpy(start.origin.scheme, schemes[how & 1]);
    start.origin.port = how & 1 ? 443 : 80;
    const char *host = how & 8 ? "10.1.2.3" : "good.example";
    REQUIRE(host_read(host, strlen(host), false, &start.origin.host) == 0);
    if (how & 16) {
        REQUIRE(host_read("a.wild.example", 14, false, &start.origin.shown) == 0);
    }
    size_t from = size > 0;
    read_in_pieces(&start, data + from, size - from);
    return 0;
}
