/* Decides whether an address may be connected to: if a rule with `connect` covers the address or a name that led to
 * it, or if a permitted request needs exactly this connection. */
#include "io/io.h"

#include <string.h>

static bool rule_connects(const State *state, const Host *host, int port)
{
    SocketTarget what = {host, port};
    return state_net(state, match_socket, &what) & NET_CONNECT;
}

/* During a permitted request, a connection to another host (a proxy) is allowed by a URL rule with `connect`. */
static const char *relay_scheme(const State *state, const Host *host, int port)
{
    static const char *const schemes[] = {"http", "https"};
    for (int i = 0; i < 2; i++) {
        Url url = {.scheme = schemes[i], .host = *host, .port = port};
        if (state_net(state, match_origin, &url) & NET_CONNECT) {
            return schemes[i];
        }
    }
    return NULL;
}

static bool ticket_covers(const Ticket *ticket, const Host *host, int port)
{
    return ticket->port == port && strcmp(ticket->host.key, host->key) == 0;
}

/* Checks one name of the address, or the address itself. 1 allowed, 0 not, -1 error. */
static int try_host(State *state, const Host *host, int port, const Ticket *ticket, Wire **wire)
{
    if (rule_connects(state, host, port)) {
        return 1;
    }
    if (ticket == NULL) {
        return 0;
    }
    const char *scheme = ticket_covers(ticket, host, port) ? ticket->scheme : relay_scheme(state, host, port);
    if (scheme != NULL) {
        *wire = wire_new(scheme, host, port);
        return *wire ? 1 : -1;
    }
    return 0;
}

/* No rule covers it: asks the decider for the name, if one is known, because a user can judge a name better. */
static int ask_for(State *state, const Host *host, int port)
{
    SocketTarget what = {host, port};
    PyObject *target = host_target(host->text, port);
    int result = target ? net_require(state, NET_CONNECT, match_socket, &what, target) : -1;
    Py_XDECREF(target);
    return result;
}

typedef struct {
    State *state;
    const Address *address;
    int port;
    const Ticket *ticket;
    Wire *wire;
    Host found; /* the name that permits the address, or that the decider is asked for */
} Endpoint;

/* A denial must not reveal a name that other subjects looked up. */
static bool knows(const State *state, const Host *name)
{
    return !host_is_own(name) && (state_net(state, match_name, name) || name_noted(state, name));
}

static int try_name(const Host *name, void *context)
{
    Endpoint *endpoint = context;
    if (!may_lead_to(endpoint->state, name, endpoint->address)) {
        return 0;
    }
    int result = try_host(endpoint->state, name, endpoint->port, endpoint->ticket, &endpoint->wire);
    if (result != 0 || (endpoint->found.is_address && knows(endpoint->state, name))) {
        endpoint->found = *name;
    }
    return result;
}

static bool covers_host(const Endpoint *endpoint, const Host *host)
{
    return rule_connects(endpoint->state, host, endpoint->port) ||
           (endpoint->ticket != NULL && ticket_covers(endpoint->ticket, host, endpoint->port));
}

static int covers_name(const Host *name, void *context)
{
    const Endpoint *endpoint = context;
    return may_lead_to(endpoint->state, name, endpoint->address) && covers_host(endpoint, name);
}

/* A connection for requests is reported with them. */
static void shadow_endpoint(Endpoint *endpoint, const Host *host, bool allowed)
{
    Host literal;
    host_of_address(endpoint->address, &literal);
    if (endpoint->wire != NULL || !shadow_concerns(endpoint->state)) {
        return;
    }
    by_candidate = true;
    bool other = covers_host(endpoint, &literal) || each_name(endpoint->address, covers_name, endpoint) == 1;
    by_candidate = false;
    if (allowed != other) {
        shadow_socket(endpoint->state, host, endpoint->port, allowed, WHEN_DONE);
    }
}

/* 0 when the address may be connected to; *wire is set when only for requests. `name`: the name that the caller gave.
 */
int permit_endpoint(State *state, const Address *address, int port, const Host *name, bool tickets, Wire **wire,
                    bool *asked)
{
    Endpoint endpoint = {.state = state, .address = address, .port = port};
    endpoint.ticket = tickets ? ticket_current(state) : NULL;
    host_of_address(address, &endpoint.found);
    int result = try_host(state, &endpoint.found, port, endpoint.ticket, &endpoint.wire);
    if (result == 0) {
        result = each_name(address, try_name, &endpoint);
    }
    *asked = result == 0;
    if (result == 0) {
        endpoint.found = name ? *name : endpoint.found;
    }
    if (UNLIKELY(candidates_held) && result >= 0) {
        shadow_endpoint(&endpoint, &endpoint.found, result == 1);
    }
    if (result == 0) {
        result = ask_for(state, &endpoint.found, port) == 0 ? 1 : -1;
    }
    if (result == 1 && observe(state, endpoint.found.is_address ? NULL : &endpoint.found, address, port) < 0) {
        result = -1;
    }
    if (result < 0) {
        wire_drop(endpoint.wire);
        endpoint.wire = NULL;
    }
    *wire = endpoint.wire;
    return result < 0 ? -1 : 0;
}
