/* paths.c, policy.c: a path as bytes, made absolute, normalised, taken apart, split into prefixes and looked up. The
 * first file itself is included, since some of its functions are its own. */
#include "fuzz.h"
#include "rules/paths.c"

static void require_normal(const char *path)
{
    REQUIRE(path[0] == '/' && strlen(path) < PATH_MAX);
    REQUIRE(strstr(path, "//") == NULL && strstr(path, "/./") == NULL && strstr(path, "/../") == NULL);
    const char *last = strrchr(path, '/');
    REQUIRE(strcmp(last, "/.") != 0 && strcmp(last, "/..") != 0 && (last[1] != '\0' || last == path));
}

static void require_prefixes(const char *path)
{
    static PathKey key;
    path_key(&key, path);
    size_t slashes = 0;
    for (const char *p = path; *p != '\0'; p++) {
        slashes += *p == '/';
    }
    REQUIRE(key.count == (path[1] == '\0' ? 1 : (int)slashes + 1) && key.count <= MAX_PREFIXES);
    REQUIRE(key.length[key.count - 1] == strlen(path));
    policy_mask(subject()->policy, &key);
}

enum { FEW = 8 };

/* Parts that move from the end of one text to the front of another make the same path at every step. */
static void require_parts(const char *path)
{
    static char work[PATH_MAX], rest[PATH_MAX], joined[2 * PATH_MAX];
    strcpy(work, path);
    rest[0] = '\0';
    for (int i = 0; shift_last(work, rest); i++) {
        if (i < FEW) {
            snprintf(joined, sizeof joined, "%s%s%s", work, work[1] == '\0' ? "" : "/", rest);
            REQUIRE(strcmp(joined, path) == 0);
        }
    }
    REQUIRE(strcmp(work, "/") == 0 || strlen(path) + 2 >= PATH_MAX);
    REQUIRE(!has_dots(rest));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static PathText text;
    static char again[PATH_MAX];
    bool as_text = size > 0 && data[0] & 1;
    size_t from = size > 0;
    PyObject *object = as_text ? PyUnicode_DecodeFSDefaultAndSize((const char *)data + from, (Py_ssize_t)(size - from))
                               : PyBytes_FromStringAndSize((const char *)data + from, (Py_ssize_t)(size - from));
    if (object == NULL) {
        PyErr_Clear();
        return 0;
    }
    if (!was_refused(path_text_at(object, "/base/folder", &text))) {
        require_normal(text.text);
        require_prefixes(text.text);
        require_parts(text.text);
        REQUIRE(path_normalise(text.text, again) == 0 && strcmp(again, text.text) == 0);
        Py_DECREF(text.object);
    }
    Py_DECREF(object);
    return 0;
}
