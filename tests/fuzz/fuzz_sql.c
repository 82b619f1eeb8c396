/* databases.c: names of databases as sqlite reads them, and statements that name a file by a parameter. The file itself
 * is included, since its functions are its own. */
#include "io/databases.c"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static Database database;
    char token[8], *text = malloc(size + 1);
    memcpy(text, data, size);
    text[size] = '\0';
    if (strlen(text) < PATH_MAX) {
        read_name(text, true, &database);
        REQUIRE(strlen(database.path) < PATH_MAX && strlen(database.path) <= strlen(text));
        read_name(text, false, &database);
        REQUIRE(strcmp(database.path, text) == 0);
    }
    const char *at = text;
    do {
        at = next_token(at, token, sizeof token);
        REQUIRE(at <= text + size && strlen(token) < sizeof token);
    } while (token[0] != '\0');
    names_file_by_parameter(text);
    free(text);
    return 0;
}

/* ---- what else databases.c calls -------------------------------------------------------------------------------- */

PyObject *call_original(const Call *call)
{
    abort();
}
PyObject *call_with(const Call *call, Py_ssize_t at, PyObject *value)
{
    abort();
}
Py_ssize_t call_find(const Call *call, Py_ssize_t index, const char *name)
{
    abort();
}
void *deny_path(State *state, const char *path, unsigned missing, bool probe)
{
    abort();
}
void *deny_text(State *state, DenialKind kind, const char *text)
{
    abort();
}
int location_of(const PathText *text, int follow, char *path)
{
    abort();
}
int grant(State *state, const char *path, unsigned wanted, unsigned *granted)
{
    abort();
}
unsigned location_mask(State *state, const char *path)
{
    abort();
}
int patch_type(PyObject *module, const char *name, const char *descriptor, size_t offset, void *replacement,
               void *original)
{
    abort();
}
PyObject *bind_to(State *state, PyObject *function)
{
    abort();
}
int require(State *state, const char *path, unsigned wanted)
{
    abort();
}
int state_enter(State *state, Entered *entered)
{
    abort();
}
State *state_guarding(void)
{
    abort();
}
void state_leave(Entered *entered)
{
    abort();
}
State *state_new(State *parent, Policy *policy, Mode mode, bool allow_subprocess, PyObject *identity)
{
    abort();
}
