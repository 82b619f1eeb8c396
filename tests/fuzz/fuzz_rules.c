/* network_rules.c, policy.c: the keys of a policy, as texts between NULs; the first byte says which are paths. */
#include "fuzz.h"

enum { MOST = 24 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    NetIndex index;
    PyObject *entries = PyList_New(0);
    for (size_t at = 0; at < size && PyList_GET_SIZE(entries) < MOST;) {
        const uint8_t *end = memchr(data + at, 0, size - at);
        size_t length = end ? (size_t)(end - data) - at : size - at;
        PyObject *entry = Py_BuildValue("(y#i)", (const char *)data + at, (Py_ssize_t)length, NET_CONNECT);
        PyList_Append(entries, entry);
        Py_DECREF(entry);
        at += length + 1;
    }
    PyObject *tuple = PyList_AsTuple(entries);
    if (!was_refused(net_index_build(&index, tuple))) {
        Host host;
        Url url;
        Address address = {.version = 4, .bytes = {10, 1, 2, 3}};
        host_of_address(&address, &host);
        SocketTarget what = {&host, 80};
        match_socket(&index, &what);
        REQUIRE(index.has6 || memchr(index.lengths6, true, sizeof index.lengths6) == NULL);
        REQUIRE(url_read("http://a.wild.example/v1/x", 26, &url) == 0);
        match_url(&index, &url);
        match_origin(&index, &url);
        match_name(&index, &url.host);
        match_unix(&index, "/run/good.sock");
        url_clear(&url);
    }
    net_index_clear(&index);
    Py_DECREF(tuple);
    Py_DECREF(entries);
    return 0;
}
