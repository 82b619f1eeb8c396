"""Network index: the contract's table of declarations, and the matching of requests."""

from __future__ import annotations

import ipaddress
import re
import time
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from democrai_sandbox.policy import (
    InvalidInputError,
    NetworkIndex,
    Operation,
    TargetKind,
    implied_connection,
    parse_access,
    parse_declaration,
    parse_request,
    parse_request_url,
    parse_socket,
    rules_for_paths,
    rules_for_targets,
)
from tests.services.rows import rows

CONNECT, RECEIVE, SEND = Operation.CONNECT, Operation.RECEIVE, Operation.SEND


def index_of(*declarations, operation=("connect", "receive", "send")):
    entries = [
        {"resource_type": "network", "operation": list(operation), "target": declaration}
        for declaration in declarations
    ]
    return NetworkIndex(parse_access(entries, base=None))


# declaration, request, allowed
TABLE = [
    # a URL with a path: that path and below, by whole segments, that scheme, that port
    ("https://api.example.com/v1/reports", "https://api.example.com/v1/reports", True),
    ("https://api.example.com/v1/reports", "https://api.example.com/v1/reports/", True),
    ("https://api.example.com/v1/reports", "https://api.example.com/v1/reports/7", True),
    ("https://api.example.com/v1/reports", "https://api.example.com/v1/reports/7/x?y=1#z", True),
    ("https://api.example.com/v1/reports", "https://api.example.com:443/v1/reports?q", True),
    ("https://api.example.com/v1/reports", "HTTPS://API.EXAMPLE.COM./v1/reports", True),
    ("https://api.example.com/v1/reports", "https://api.example.com/%76%31/reports", True),
    ("https://api.example.com/v1/reports", "https://api.example.com/v1/reportsx", False),
    ("https://api.example.com/v1/reports", "https://api.example.com/v1/report", False),
    ("https://api.example.com/v1/reports", "https://api.example.com/v1", False),
    ("https://api.example.com/v1/reports", "https://api.example.com/", False),
    ("https://api.example.com/v1/reports", "https://api.example.com", False),
    ("https://api.example.com/v1/reports", "https://api.example.com/V1/reports", False),
    ("https://api.example.com/v1/reports", "https://api.example.com//v1/reports", False),
    ("https://api.example.com/v1/reports", "https://api.example.com/v1//reports", False),
    ("https://api.example.com/v1/reports", "https://api.example.com/v1/reports/../admin", False),
    ("https://api.example.com/v1/reports", "https://api.example.com/v1/reports/..", False),
    ("https://api.example.com/v1/reports", "https://api.example.com/v1/reports/%2e%2e/admin", False),
    ("https://api.example.com/v1/reports", "https://api.example.com/v1/reports/..%2fadmin", False),
    ("https://api.example.com/v1/reports", "https://api.example.com/v1/reports%2f7", False),
    ("https://api.example.com/v1/reports", "https://api.example.com/v1/reports/%5c..%5cadmin", False),
    ("https://api.example.com/v1/reports", "https://api.example.com/v1/reports/..;a/admin", False),
    ("https://api.example.com/v1/reports", "https://api.example.com/?/v1/reports", False),
    ("https://api.example.com/v1/reports", "https://api.example.com/#/v1/reports", False),
    ("https://api.example.com/v1/reports", "http://api.example.com/v1/reports", False),
    ("https://api.example.com/v1/reports", "http://api.example.com:443/v1/reports", False),
    ("https://api.example.com/v1/reports", "wss://api.example.com/v1/reports", False),
    ("https://api.example.com/v1/reports", "https://api.example.com:8443/v1/reports", False),
    ("https://api.example.com/v1/reports", "https://example.com/v1/reports", False),
    ("https://api.example.com/v1/reports", "https://x.api.example.com/v1/reports", False),
    ("https://api.example.com/v1/reports", "api.example.com:443", False),
    ("https://api.example.com/v1/reports", "api.example.com", False),
    ("https://api.example.com/v1/", "https://api.example.com/v1", True),
    ("https://api.example.com/v1/", "https://api.example.com/v1/x", True),
    ("https://api.example.com/v1/", "https://api.example.com/v10", False),
    # a URL without a path: every request of that scheme to that host and port
    ("https://api.example.com", "https://api.example.com", True),
    ("https://api.example.com", "https://api.example.com/any/thing", True),
    ("https://api.example.com", "https://api.example.com/projects/group%2Fname", True),
    ("https://api.example.com", "https://api.example.com/a/../b", True),
    ("https://api.example.com", "http://api.example.com/any", False),
    ("https://api.example.com", "https://api.example.com:444/any", False),
    ("https://api.example.com", "api.example.com:443", False),
    ("https://api.example.com:8443", "https://api.example.com:8443/x", True),
    ("https://api.example.com:8443", "https://api.example.com/x", False),
    ("ws://h.example", "ws://h.example/feed", True),
    ("ws://h.example", "http://h.example/feed", False),
    ("http://h.example", "ws://h.example/feed", False),
    ("http://[2001:db8::1]", "http://[2001:db8:0::1]/x", True),
    ("http://[2001:db8::1]", "http://[2001:db8::2]/x", False),
    # a host: sockets and URLs, any port
    ("api.example.com", "api.example.com:443", True),
    ("api.example.com", "api.example.com:1", True),
    ("api.example.com", "API.example.com.:22", True),
    ("api.example.com", "https://api.example.com/any", True),
    ("api.example.com", "http://api.example.com:8080/a%2fb", True),
    ("api.example.com", "postgres://api.example.com/db", True),
    ("api.example.com", "example.com:443", False),
    ("api.example.com", "x.api.example.com:443", False),
    ("api.example.com", "xapi.example.com:443", False),
    ("api.example.com", "api.example.com.evil.example:443", False),
    ("api.example.com", "https://evil.example/api.example.com", False),
    ("bücher.example", "https://xn--bcher-kva.example/", True),
    ("xn--bcher-kva.example", "BÜCHER.example:80", True),
    # a host with a port
    ("api.example.com:443", "api.example.com:443", True),
    ("api.example.com:443", "https://api.example.com/x", True),
    ("api.example.com:443", "wss://api.example.com/x", True),
    ("api.example.com:443", "api.example.com:80", False),
    ("api.example.com:443", "http://api.example.com/x", False),
    ("api.example.com:443", "api.example.com", False),
    # a wildcard: one or more labels below, not the apex
    ("*.example.com", "a.example.com:443", True),
    ("*.example.com", "a.b.c.example.com:1", True),
    ("*.example.com", "https://a.example.com/x", True),
    ("*.example.com", "example.com:443", False),
    ("*.example.com", "https://example.com/", False),
    ("*.example.com", "badexample.com:443", False),
    ("*.example.com", "a.example.com.evil.example:443", False),
    ("*.example.com", "a.example.org:443", False),
    ("*.example.com:443", "a.example.com:443", True),
    ("*.example.com:443", "a.example.com:80", False),
    ("*.example.com:443", "http://a.example.com/", False),
    # address ranges and literals
    ("10.0.0.0/8", "10.255.0.1:5432", True),
    ("10.0.0.0/8", "http://10.1.2.3/x", True),
    ("10.0.0.0/8", "[::ffff:10.1.2.3]:80", True),
    ("10.0.0.0/8", "11.0.0.1:80", False),
    ("10.0.0.0/8", "10.example.com:80", False),
    ("10.0.0.0/8", "[::10.1.2.3]:80", False),
    ("10.0.0.0/8", "[64:ff9b::a01:203]:80", False),
    ("10.0.0.0/8", "[2002:a01:203::1]:80", False),
    ("::ffff:10.0.0.0/104", "10.1.2.3:80", True),
    ("0.0.0.0/0", "203.0.113.9:80", True),
    ("0.0.0.0/0", "[2001:db8::1]:80", False),
    ("0.0.0.0/0", "a.example.com:80", False),
    ("2001:db8::/32", "[2001:db8:ffff::1]:443", True),
    ("2001:db8::/32", "[2001:db9::1]:443", False),
    ("::/0", "10.0.0.1:80", False),
    ("[2001:db8::1]:443", "[2001:db8:0:0::1]:443", True),
    ("[2001:db8::1]:443", "https://[2001:db8::1]/", True),
    ("[2001:db8::1]:443", "[2001:db8::1]:80", False),
    ("10.0.0.1", "[::ffff:10.0.0.1]:80", True),
    ("::ffff:10.0.0.1", "10.0.0.1:80", True),
    ("10.0.0.1", "[::10.0.0.1]:80", False),
    ("0.0.0.0", "127.0.0.1:80", False),
    ("127.0.0.1", "0.0.0.0:80", False),
    ("127.0.0.1", "[::]:80", False),
    # the loopback spellings are one host
    ("localhost", "127.0.0.1:80", True),
    ("localhost", "[::1]:80", True),
    ("127.0.0.1", "localhost:80", True),
    ("::1", "127.0.0.1:80", True),
    ("::1", "[::ffff:127.0.0.1]:80", True),
    ("http://localhost:8080/api", "http://127.0.0.1:8080/api/x", True),
    ("http://127.0.0.1:8080/api", "http://[::1]:8080/api", True),
    ("http://localhost:8080/api", "http://127.0.0.1:8080/", False),
    ("127.0.0.0/8", "localhost:80", True),
    ("localhost", "127.0.0.2:80", False),
    ("localhost", "localhost.example.com:80", False),
    # Unix sockets
    ("unix:/run/app.sock", "unix:/run/app.sock", True),
    ("unix:/run/app.sock", "unix:/run/./app.sock", True),
    ("unix:/run/app.sock", "unix:/run/app.sock2", False),
    ("unix:/run/app.sock", "unix:/run/app.sock/x", False),
    ("unix:/run", "unix:/run/app.sock", False),
    ("unix:/run/app.sock", "unix:@/run/app.sock", False),
    ("unix:@bus", "unix:@bus", True),
    ("unix:@bus", "unix:@bus2", False),
    ("localhost", "unix:/run/app.sock", False),
]


@rows(("declaration", "request_text", "allowed"), TABLE)
def test_the_table_of_declarations(declaration, request_text, allowed):
    """Each declaration allows exactly what the contract says, for every operation."""
    index = index_of(declaration)
    target = parse_request(request_text)
    for operation in (CONNECT, RECEIVE, SEND):
        assert index.allows(operation, target) is allowed
        found = index.find(operation, target)
        assert (found is not None) is allowed
        if found:
            assert found.operation is operation
            assert found.target == declaration


@rows("request_text", ["https://h.example", "h.example:80", "localhost:80", "unix:/run/a", "10.0.0.1:1"])
@rows("rules", [(), rules_for_paths(["/"])], ids=["none", "files only"])
def test_no_network_rules_allow_nothing(rules, request_text):
    """An index without network rules denies every request and lookup, including loopback."""
    index = NetworkIndex(rules)
    for operation in Operation:
        assert index.find(operation, parse_request(request_text)) is None
    assert index.find_name("localhost") is None


@rows("declaration", ["https://h.example", "h.example", "*.example", "10.0.0.0/8", "unix:/run/a"])
@rows("declared", [CONNECT, RECEIVE, SEND])
def test_no_operation_implies_another(declaration, declared):
    """A rule for one operation denies the others."""
    if declaration == "*.example":
        declaration = "*.h.example"
    index = index_of(declaration, operation=[declared])
    requests = {
        "https://h.example": "https://h.example/x",
        "h.example": "h.example:80",
        "*.h.example": "a.h.example:80",
        "10.0.0.0/8": "10.0.0.1:80",
        "unix:/run/a": "unix:/run/a",
    }
    for operation in Operation:
        assert index.allows(operation, parse_request(requests[declaration])) is (operation is declared)


def test_a_path_rule_does_not_fall_back_to_its_host():
    """Two path rules for one host allow only these two paths."""
    index = index_of("https://h.example/a", "https://h.example/b/c")
    assert index.allows(RECEIVE, parse_request_url("https://h.example/a/x"))
    assert index.allows(RECEIVE, parse_request_url("https://h.example/b/c"))
    for path in ("", "/", "/b", "/c", "/ab", "/b/cc"):
        assert not index.allows(RECEIVE, parse_request_url(f"https://h.example{path}"))


def test_operations_of_overlapping_rules_do_not_mix():
    """The depth of a longer path with `receive` does not apply to a shorter one with `send`."""
    rules = parse_access(
        [
            {"resource_type": "network", "operation": "receive", "target": "https://h.example"},
            {"resource_type": "network", "operation": "send", "target": "https://h.example/up"},
            {"resource_type": "network", "operation": "connect", "target": "h.example:22"},
        ],
        base=None,
    )
    index = NetworkIndex(rules)
    assert index.find(RECEIVE, parse_request_url("https://h.example/up/x")) is rules[0]
    assert index.find(SEND, parse_request_url("https://h.example/up/x")) is rules[1]
    assert index.find(SEND, parse_request_url("https://h.example/x")) is None
    assert index.find(CONNECT, parse_socket("h.example", 22)) is rules[2]
    assert index.find(CONNECT, parse_socket("h.example", 443)) is None
    assert index.find(CONNECT, parse_request_url("https://h.example/")) is None


def test_the_most_specific_rule_is_named():
    """URL before host form, longer path, exact port, longer wildcard, longer prefix."""
    declarations = ["*.example.com", "*.b.example.com", "a.b.example.com", "a.b.example.com:443"]
    declarations += ["https://a.b.example.com", "https://a.b.example.com/x", "10.0.0.0/8", "10.1.0.0/16", "10.1.1.1"]
    index = index_of(*declarations)

    def decided(text):
        return index.find(RECEIVE, parse_request(text)).target

    assert decided("https://a.b.example.com/x/y") == "https://a.b.example.com/x"
    assert decided("https://a.b.example.com/y") == "https://a.b.example.com"
    assert decided("wss://a.b.example.com/") == "a.b.example.com:443"
    assert decided("a.b.example.com:80") == "a.b.example.com"
    assert decided("c.b.example.com:80") == "*.b.example.com"
    assert decided("c.d.example.com:80") == "*.example.com"
    assert decided("10.1.1.1:80") == "10.1.1.1"
    assert decided("10.1.1.2:80") == "10.1.0.0/16"
    assert decided("10.2.1.1:80") == "10.0.0.0/8"


def test_patterns_as_requests_are_denied():
    """A wildcard or range as a request matches nothing, not even itself."""
    index = index_of("*.example.com", "10.0.0.0/8", "0.0.0.0/0")
    for pattern in ("*.example.com", "10.0.0.0/8"):
        assert not index.allows(CONNECT, parse_declaration(pattern))


def test_a_request_implies_its_own_connection_only():
    """The connection is the host and port of the URL, in host form; the index itself does not allow it."""
    target = parse_request_url("https://api.example.com/v1?x")
    connection = implied_connection(target)
    assert connection == parse_socket("api.example.com", 443)
    assert connection.kind is TargetKind.HOST
    assert not index_of("https://api.example.com/v1").allows(CONNECT, connection)
    with pytest.raises(ValueError, match=re.escape(connection.normalized)):
        implied_connection(connection)


@rows(
    ("declaration", "name", "allowed"),
    [
        ("https://api.example.com/v1", "api.example.com", True),
        ("api.example.com:443", "api.example.com", True),
        ("*.example.com", "a.b.example.com", True),
        ("*.example.com:443", "a.example.com", True),
        ("*.example.com", "example.com", False),
        ("api.example.com", "data.api.example.com", False),
        ("api.example.com", "example.com", False),
        ("10.0.0.0/8", "api.example.com", False),
        ("127.0.0.1", "localhost", True),
    ],
)
def test_names_that_may_be_looked_up(declaration, name, allowed):
    """A name is resolved only if a rule of any operation names it."""
    rule = index_of(declaration, operation=["receive"]).find_name(parse_socket(name, None).host)
    assert (rule is not None) is allowed


def test_an_index_does_not_change():
    """An index is immutable."""
    index = index_of("h.example")
    with pytest.raises(FrozenInstanceError):
        index._rules = {}


# --- properties ------------------------------------------------------------------------------------------------------

NAMES = st.lists(st.sampled_from(["a", "b", "example", "com"]), min_size=1, max_size=4).map(".".join)
V4 = st.integers(0, 7).map(lambda low: f"10.0.0.{low}")
HOSTS = st.one_of(NAMES, V4, st.sampled_from(["localhost", "127.0.0.1", "[::1]", "[::ffff:10.0.0.1]", "[2001:db8::1]"]))
PORTS = st.sampled_from(["", ":80", ":443"])
PATHS = st.lists(st.sampled_from(["a", "ab", "b"]), max_size=3).map(lambda parts: "".join(f"/{part}" for part in parts))
URLS = st.builds("{}://{}{}{}".format, st.sampled_from(["http", "https", "ws"]), HOSTS, PORTS, PATHS)
RANGES = st.sampled_from(
    ["10.0.0.0/8", "10.0.0.0/30", "10.0.0.4/31", "0.0.0.0/0", "2001:db8::/32", "::/0", "127.0.0.0/8"]
)
DECLARATIONS = st.one_of(URLS, st.builds("{}{}".format, HOSTS, PORTS), NAMES.map(lambda name: f"*.{name}.com"), RANGES)
REQUESTS = st.one_of(URLS, st.builds("{}{}".format, HOSTS, st.sampled_from([":80", ":443", ":22"])))
LOOPBACK = {"localhost", "127.0.0.1", "::1"}


def same_host(left, right):
    return left == right or {left, right} <= LOOPBACK


def in_range(host, network):
    for spelling in LOOPBACK - {"localhost"} if host in LOOPBACK else {host}:
        try:
            if ipaddress.ip_address(spelling) in ipaddress.ip_network(network):
                return True
        except ValueError:
            pass
    return False


def naive_covers(rule, request):
    """Match one rule with one request, without an index."""
    if rule.kind is TargetKind.URL:
        return (
            request.kind is TargetKind.URL
            and (rule.scheme, rule.port) == (request.scheme, request.port)
            and same_host(rule.host, request.host)
            and request.path[: len(rule.path)] == rule.path
        )
    if rule.port not in (None, request.port):
        return False
    if rule.kind is TargetKind.NETWORK:
        return in_range(request.host, rule.host)
    if rule.kind is TargetKind.WILDCARD:
        return request.host.endswith("." + rule.host)
    return same_host(rule.host, request.host)


@given(st.lists(DECLARATIONS, max_size=6), REQUESTS)
def test_index_equals_a_naive_matcher(declarations, request_text):
    """The index gives the same results as comparing each rule."""
    try:
        rules = rules_for_targets(declarations)
    except InvalidInputError:
        assume(False)
    request = parse_request(request_text)
    covering = {rule for rule in rules if naive_covers(parse_declaration(rule.normalized_target), request)}
    for operation in (CONNECT, RECEIVE, SEND):
        found = NetworkIndex(rules).find(operation, request)
        assert (found is not None) is bool(covering)
        assert found is None or (found in covering and found.operation is operation)


def test_cost_does_not_grow_with_the_rules():
    """A lookup among thousands of rules costs about as much as among a few."""

    def fill(count):
        targets = [f"h{number}.example.com" for number in range(count)]
        targets += [f"https://u.example/{number}" for number in range(count)]
        targets += [f"10.{number >> 8 & 255}.{number & 255}.0/24" for number in range(count)]
        return NetworkIndex(rules_for_targets(targets))

    def cost(index):
        requests = [
            parse_request(text) for text in ("x.y.example.org:1", "https://u.example/z/" + "a/" * 5000, "11.0.0.1:1")
        ]
        best = float("inf")
        for _ in range(5):
            begin = time.thread_time()
            for _ in range(20):
                for request in requests:
                    index.find(RECEIVE, request)
            best = min(best, time.thread_time() - begin)
        return best

    assert cost(fill(1000)) < 10 * cost(fill(3))
