/* What the parsers call in the rest of the core, as simple as it can be. Nothing here asks a decider or denies. */
#include "fuzz.h"

#include <unistd.h>

Py_ssize_t candidates_held = 0;
bool by_candidate = false;
Policy *runtime_policy = NULL, *code_policy = NULL;

static Policy policy;
static State state = {.mode = MODE_MERGE, .policy = &policy};

static const char *const rules[] = {
    "Uhttp|good.example|80|/v1", "Ohttp|good.example|80", "Rgood.example",     "Uhttps|good.example|443|",
    "Ohttps|good.example|443",   "Wwild.example|*",       "P*.wild.example",   "R*.wild.example",
    "Hlocalhost|8080",           "Plocalhost",            "Rlocalhost",        "N4|8|0a000000",
    "S/run/good.sock",           "Uws|good.example|80|",  "Ows|good.example|80",
};

PyObject *rules_of(const char *const *keys, size_t count)
{
    PyObject *entries = PyTuple_New((Py_ssize_t)count);
    for (size_t i = 0; i < count; i++) {
        PyTuple_SET_ITEM(entries, (Py_ssize_t)i, Py_BuildValue("(yi)", keys[i], NET_ALL));
    }
    return entries;
}

static void start_interpreter(void)
{
    PyPreConfig before;
    PyConfig config;
    PyPreConfig_InitIsolatedConfig(&before);
    before.allocator = PYMEM_ALLOCATOR_MALLOC; /* so that the sanitizer sees every allocation */
    before.utf8_mode = 1;
    REQUIRE(!PyStatus_Exception(Py_PreInitialize(&before)));
    PyConfig_InitIsolatedConfig(&config);
    config.install_signal_handlers = 0;
    config.site_import = 0;
    REQUIRE(!PyStatus_Exception(Py_InitializeFromConfig(&config)));
    PyConfig_Clear(&config);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    start_interpreter();
    PyObject *ports = Py_BuildValue("{sisisisi}", "http", 80, "https", 443, "ws", 80, "wss", 443);
    REQUIRE(ports != NULL && default_ports_set(ports) == 0);
    PyObject *entries = rules_of(rules, sizeof rules / sizeof *rules);
    REQUIRE(net_index_build(&policy.network, entries) == 0);
    Py_DECREF(entries);
    Py_DECREF(ports);
    return 0;
}

State *subject(void)
{
    return &state;
}

bool was_refused(int result)
{
    REQUIRE((result < 0) == (PyErr_Occurred() != NULL));
    PyErr_Clear();
    return result < 0;
}

/* ---- the rest of the core --------------------------------------------------------------------------------------- */

static int no(void)
{
    PyErr_SetString(PyExc_PermissionError, "refused");
    return -1;
}

const Policy *candidate_of(const State *unused)
{
    return &policy;
}

int check_name(State *asking, const Host *host, int port)
{
    return state_net(asking, match_name, host) ? 0 : no();
}

bool name_noted(const State *asking, const Host *host)
{
    return false;
}

int net_require(State *asking, unsigned operation, Matcher match, const void *what, PyObject *target)
{
    return state_net(asking, match, what) & operation ? 0 : no();
}

int net_deny(State *asking, unsigned operation, PyObject *target)
{
    return no();
}

bool state_has_policy(const State *asking, uint64_t policy_id)
{
    return policy_id == policy.id;
}

void shadow_url(State *asking, unsigned operations, Matcher match, const Url *url, int height)
{
}
