"""The keys that cover a request find exactly the rules that cover it."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from democrai_sandbox.policy import (
    AccessRule,
    NetworkIndex,
    Operation,
    ResourceType,
    TargetKind,
    covering_keys,
    network_entries,
    parse_declaration,
    parse_request,
    rule_key,
)
from tests.policy.test_matching import naive_covers

HOSTS = ("a.test", "b.a.test", "c.b.a.test", "127.0.0.1", "localhost", "[::1]", "10.1.2.3", "[2001:db8::1]")
PATHS = ("", "/", "/v1", "/v1/x", "/v1/x/y", "/v1x", "/v1/../x", "/v1/%2e%2e/x")

hosts = st.sampled_from(HOSTS)
ports = st.sampled_from(("", ":80", ":443", ":8080"))
urls = st.builds("{}://{}{}{}".format, st.sampled_from(("http", "https")), hosts, ports, st.sampled_from(PATHS[:6]))
requests = st.one_of(
    st.builds("{}://{}{}{}".format, st.sampled_from(("http", "https")), hosts, ports, st.sampled_from(PATHS)),
    st.builds("{}{}".format, hosts, ports),
    st.sampled_from(("unix:/run/a.sock", "unix:@name")),
)
declared = st.one_of(
    urls,
    st.builds("{}{}".format, hosts, ports),
    st.builds("*.{}{}".format, st.sampled_from(("a.test", "b.a.test")), ports),
    st.sampled_from(("10.0.0.0/8", "10.1.0.0/16", "127.0.0.0/8", "::/0", "2001:db8::/32", "unix:/run/a.sock")),
)


def is_plain(text: str) -> bool:
    """Leave out targets that are rejected anyway."""
    try:
        parse_declaration(text)
    except ValueError:
        return False
    return True


def covers(rule, request):
    """Match one rule with one request, in all forms."""
    if TargetKind.UNIX in (rule.kind, request.kind):
        return rule == request
    return naive_covers(rule, request) and not (request.ambiguous and rule.path)


@given(st.lists(declared.filter(is_plain), max_size=6), requests)
@example(["https://a.test/v1"], "https://a.test/v1/x")
@example(["127.0.0.1:80"], "http://localhost/")
@example(["https://[2001:db8::1]:8080/v1"], "https://[2001:db8::1]:8080/v1/x")
def test_covering_keys_find_the_covering_rules(targets, wanted):
    """A rule is found by its key, and by the index, if and only if one covers the request, for all forms."""
    normal = [parse_declaration(text).normalized for text in targets]
    rules = [AccessRule(ResourceType.NETWORK, Operation.RECEIVE, text, text) for text in normal]
    request = parse_request(wanted)
    kept = {rule_key(rule.normalized_target) for rule in rules}
    prefixes = {(int(key[1]), int(key.split("|")[1])) for key in kept if key.startswith("N")}
    found = kept & set(covering_keys(request, depth=8, prefixes=prefixes))
    expected = any(covers(parse_declaration(text), request) for text in normal)
    assert (bool(found), NetworkIndex(rules).allows(Operation.RECEIVE, request)) == (expected, expected)


@given(declared.filter(is_plain))
def test_the_key_of_a_rule_is_the_first_that_the_core_gets(text):
    """A canonical URL is split without parsing, with the same result."""
    normal = parse_declaration(text).normalized
    rule = AccessRule(ResourceType.NETWORK, Operation.RECEIVE, normal, normal)
    assert rule_key(normal).encode() in dict(network_entries([rule]))
    assert rule_key(normal)[0] in "UHWNS"


def test_a_depth_bounds_the_keys_of_a_long_path():
    """A request with thousands of segments costs no more than the deepest rule."""
    request = parse_request("https://a.test/" + "x/" * 5000)
    assert len(list(covering_keys(request, depth=2))) == len(["/x/x", "/x", "", "port", "*", "W", "W"])
