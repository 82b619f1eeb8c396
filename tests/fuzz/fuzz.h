/* Fuzzers of the parsers of the native core: each file of this folder feeds one parser, and ends the process when a
 * property of it does not hold. surroundings.c stands for the rest of the core. */
#ifndef DEMOCRAI_FUZZ_H
#define DEMOCRAI_FUZZ_H

#include "edge/edge.h"
#include "network/network.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the process, so that the fuzzer keeps the input. */
#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition);                             \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A state with rules for http(s)://good.example/v1, *.wild.example, 10.0.0.0/8 and a few more. */
State *subject(void);
/* Clears the exception, which must be there exactly when the result is negative. Returns whether it was refused. */
bool was_refused(int result);
/* A Python object of the policies' form: a tuple of (key, mask). */
PyObject *rules_of(const char *const *keys, size_t count);

/* Bytes of the input, one after the other; zero behind its end. */
typedef struct {
    const uint8_t *at, *end;
} Bytes;
static inline unsigned next_byte(Bytes *bytes)
{
    return bytes->at < bytes->end ? *bytes->at++ : 0;
}
static inline size_t bytes_left(const Bytes *bytes)
{
    return (size_t)(bytes->end - bytes->at);
}

/* readers.c: reads the data as it would be written to a connection, in one piece, byte by byte and in pieces whose
 * lengths the input chooses; all of them must come to the same end. */
void read_in_pieces(const Reader *start, const uint8_t *data, size_t size);

#endif
