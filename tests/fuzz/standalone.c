/* usage: FUZZER FILE ...
 * Feeds each file to a fuzzer once, where there is no engine that makes inputs: the corpus is read again by the tests. */
#include "fuzz.h"

static void feed(const char *path)
{
    FILE *file = fopen(path, "rb");
    REQUIRE(file != NULL && fseek(file, 0, SEEK_END) == 0);
    long size = ftell(file);
    rewind(file);
    /* exactly as large as the input: reading behind it is found */
    uint8_t *data = malloc((size_t)size);
    REQUIRE(size >= 0 && (data != NULL || size == 0) && fread(data, 1, (size_t)size, file) == (size_t)size);
    fclose(file);
    LLVMFuzzerTestOneInput(data, (size_t)size);
    free(data);
}

int main(int argc, char **argv)
{
    LLVMFuzzerInitialize(&argc, &argv);
    for (int i = 1; i < argc; i++) {
        fprintf(stderr, "%s\n", argv[i]); /* the last one is the one that failed */
        feed(argv[i]);
    }
    return 0;
}
