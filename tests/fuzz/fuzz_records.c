/* tls_records.c, reader.c, wire.c: records that TLS objects gave out, and what is written to a connection that carries TLS. */
#include "fuzz.h"

enum { PIPES = 3 };

static size_t take(Bytes *bytes, const uint8_t **data)
{
    size_t length = next_byte(bytes) & 31;
    length = length < bytes_left(bytes) ? length : bytes_left(bytes);
    *data = bytes->at;
    bytes->at += length;
    return length;
}

static void write_records(Wire *wire, const uint8_t *data, size_t length, unsigned sent)
{
    if (!was_refused(wire_begin(subject(), wire, (const char *)data, length))) {
        /* half of it, all of it, or an unknown part */
        wire_end(wire, (const char *)data, sent == 0 ? -1 : (Py_ssize_t)(sent == 1 ? length / 2 : length), length);
    }
    wire_answers(wire);
    PyErr_Clear();
}

/* Each step begins with a byte: which pipe or the connection, and what is done with it. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Bytes bytes = {data, data + size};
    Pipe *pipes[PIPES];
    Host host, other;
    REQUIRE(host_read("good.example", 12, false, &host) == 0 && host_read("evil.example", 12, false, &other) == 0);
    Wire *wire = wire_new("https", &host, 443);
    for (int i = 0; i < PIPES; i++) {
        pipes[i] = pipe_new();
        pipes[i]->policy = subject()->policy->id + (i == 2);
        pipes[i]->name = i == 1 ? other : host;
    }
    while (bytes_left(&bytes) > 0) {
        unsigned step = next_byte(&bytes);
        const uint8_t *text;
        size_t length = take(&bytes, &text);
        if (step & 1) {
            REQUIRE(pipe_add(pipes[step / 2 % PIPES], (const char *)text, length) == 0);
        }
        else {
            write_records(wire, text, length, step / 2 % 4);
        }
    }
    wire_drop(wire);
    for (int i = 0; i < PIPES; i++) {
        REQUIRE(pipes[i]->used <= pipes[i]->room);
        pipe_drop(pipes[i]);
    }
    return 0;
}
