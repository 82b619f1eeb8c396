/* hosts.c: a name or an address, its one spelling, and the rules that cover it. */
#include "fuzz.h"

static void require_address(const Address *address)
{
    char text[64];
    Address again;
    address_text(address, text);
    REQUIRE(strlen(text) < sizeof text && address_read(text, &again) == 0);
    REQUIRE(again.version == address->version && memcmp(again.bytes, address->bytes, sizeof again.bytes) == 0);
    address_is_forbidden(address);
    address_is_loopback(address);
    declared_literally(subject(), address);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Host host, again;
    bool colons = size > 0 && data[0] & 1;
    size_t from = size > 0;
    if (was_refused(host_read((const char *)data + from, size - from, colons, &host))) {
        return 0;
    }
    REQUIRE(!was_refused(host_read(host.text, strlen(host.text), true, &again)));
    REQUIRE(strcmp(host.text, again.text) == 0 && strcmp(host.key, again.key) == 0);
    REQUIRE(host.is_address == again.is_address);
    if (host.is_address) {
        require_address(&host.address);
    }
    SocketTarget what = {&host, 8080};
    state_net(subject(), match_socket, &what);
    state_net(subject(), match_any_port, &host);
    state_net(subject(), match_name, &host);
    host_is_own(&host);
    return 0;
}
