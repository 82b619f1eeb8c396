/* Combines the rules of a chain of states. A state is merged with its parent, narrowed by it, or exact (its own
 * rules only). */
#include "core/core.h"

/* The policy of a state or, while candidates are tried, its candidate. */
static inline const Policy *policy_of(const State *state)
{
    return UNLIKELY(by_candidate) ? candidate_of(state) : state->policy;
}

/* Whether a state ignores its parent. A state that is entered inside a bypass does. */
static bool stands_alone(const State *state)
{
    return state->parent == NULL || state->mode == MODE_EXACT || state->parent->mode == MODE_BYPASS;
}

/* Whether a state of the chain lists the programs that may be started; all others are refused then. */
bool state_names_programs(const State *state)
{
    for (; state != NULL && state->mode != MODE_BYPASS; state = state->parent) {
        if (state->policy->named_programs) {
            return true;
        }
        if (stands_alone(state)) {
            return false;
        }
    }
    return false;
}

/* The state that restricts files, imports and processes, skipping policies for the network only. NULL when no state
 * restricts them. */
static const State *beyond_network(const State *state)
{
    while (state != NULL && state->mode != MODE_BYPASS && state->policy->network_only) {
        state = stands_alone(state) ? NULL : state->parent;
    }
    return state == NULL || state->mode == MODE_BYPASS ? NULL : state;
}

/* The state that this one is merged with or narrowed by; NULL when it stands alone. */
static const State *enclosing(const State *state)
{
    return stands_alone(state) ? NULL : beyond_network(state->parent);
}

bool state_guards_network_only(const State *state)
{
    return beyond_network(state) == NULL;
}

/* The operations that the subject itself was given for a path, without those that the runtime adds for all subjects. */
unsigned state_declared_mask(const State *state, const PathKey *key)
{
    state = beyond_network(state);
    if (state == NULL) {
        return OP_ALL;
    }
    const State *outer = enclosing(state);
    unsigned own = policy_mask(policy_of(state), key), other = outer ? state_declared_mask(outer, key) : own;
    return state->mode == MODE_NARROW ? own & other : own | other;
}

static unsigned own_mask(const State *state, const PathKey *key)
{
    const Policy *policy = policy_of(state), *shared = policy->include_runtime ? runtime_policy : code_policy;
    unsigned mask = policy_mask(policy, key);
    return shared ? mask | policy_mask_beside(shared, key, mask) : mask;
}

unsigned state_mask(const State *state, const PathKey *key)
{
    state = beyond_network(state);
    if (state == NULL) {
        return OP_ALL;
    }
    const State *outer = enclosing(state);
    unsigned own = own_mask(state, key), other = outer ? state_mask(outer, key) : own;
    return state->mode == MODE_NARROW ? own & other : own | other;
}

/* Whether a declared path lies below this folder: then its existence is not a secret. */
bool state_gives_below(const State *state, const char *path, bool owned)
{
    state = beyond_network(state);
    if (state == NULL) {
        return true;
    }
    const State *outer = enclosing(state);
    bool own = policy_gives_below(policy_of(state), path, owned);
    bool other = outer ? state_gives_below(outer, path, owned) : own;
    return state->mode == MODE_NARROW ? own && other : own || other;
}

bool state_allows_import(const State *state, PyObject *root)
{
    state = beyond_network(state);
    if (state == NULL) {
        return true;
    }
    const State *outer = enclosing(state);
    bool own = PySet_Contains(policy_of(state)->imports, root) == 1;
    bool other = outer ? state_allows_import(outer, root) : own;
    return state->mode == MODE_NARROW ? own && other : own || other;
}

/* The network operations that the chain allows for a target. */
unsigned state_net(const State *state, Matcher match, const void *what)
{
    if (state->mode == MODE_BYPASS) {
        return NET_ALL;
    }
    unsigned own = match(&policy_of(state)->network, what);
    if (state->parent == NULL || state->mode == MODE_EXACT || state->parent->mode == MODE_BYPASS) {
        return own;
    }
    unsigned outer = state_net(state->parent, match, what);
    return state->mode == MODE_NARROW ? own & outer : own | outer;
}

/* Whether a context that guarded code opened excludes the target: an approval cannot widen such a context. */
bool net_narrowed_away(const State *state, unsigned operation, Matcher match, const void *what)
{
    for (; state->mode == MODE_NARROW; state = state->parent) {
        if (!(match(&state->policy->network, what) & operation)) {
            return true;
        }
    }
    return false;
}

/* Whether a rule contains this address, or a range around it: then a name may lead to it. */
bool declared_literally(const State *state, const Address *address)
{
    Host host;
    host_of_address(address, &host);
    return state_net(state, match_literal, &host) != 0;
}
