/* urls.c, network_rules.c: a URL, its one spelling, and the rules that cover it. */
#include "fuzz.h"

static void require_same(const Url *one, const Url *other)
{
    REQUIRE(strcmp(one->scheme, other->scheme) == 0 && one->port == other->port);
    REQUIRE(strcmp(one->host.key, other->host.key) == 0 && strcmp(one->host.text, other->host.text) == 0);
    REQUIRE(one->length == other->length && memcmp(one->key, other->key, one->length + 1) == 0);
    REQUIRE(one->ambiguous == other->ambiguous);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Url url, again;
    if (was_refused(url_read((const char *)data, size, &url))) {
        return 0;
    }
    REQUIRE(url.length == strlen(url.key) && url.base <= url.length && url.port >= 1 && url.port <= MAX_PORT);
    match_url(&subject()->policy->network, &url);
    match_origin(&subject()->policy->network, &url);
    /* the second time it comes from what is kept */
    REQUIRE(!was_refused(url_read((const char *)data, size, &again)));
    require_same(&url, &again);
    url_clear(&again);
    /* the canonical text means the same, and is its own canonical text */
    PyObject *text = url_text(&url);
    REQUIRE(text != NULL && !was_refused(url_of_object(text, &again)));
    require_same(&url, &again);
    url_clear(&again);
    Py_DECREF(text);
    was_refused(url_with_scheme(&url, "wss"));
    url_clear(&url);
    return 0;
}
