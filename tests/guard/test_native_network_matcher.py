"""The core parses URLs and hosts like the policy package, and finds the same rules."""

from __future__ import annotations

import ipaddress
import time
from functools import reduce
from itertools import product
from operator import or_

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from democrai_sandbox.guard import _core
from democrai_sandbox.policy import (
    NETWORK_OPERATIONS,
    InvalidInputError,
    NetworkIndex,
    network_access,
    network_entries,
    parse_access,
    parse_declaration,
    parse_request_url,
    parse_socket,
)
from tests.policy.url_oddities import HOMOGRAPHS, ODD_HOSTS
from tests.policy.url_targets import GROUPS, HOSTS, V4, V6, address_spellings, number_spellings
from tests.services.properties import examples
from tests.services.rows import rows

pytestmark = pytest.mark.once  # does not depend on the interpreter

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def native(rules):
    """Return the same rules in the core."""
    return _core.policy(
        subject="demo",
        kind="module",
        entries=(),
        imports=frozenset(),
        allow_subprocess=False,
        include_runtime=False,
        declared="[]",
        ancestors=(),
        resolve=False,
        network=network_entries(rules),
        network_only=True,
        opened_by="",
        named_programs=False,
    )


def outcome(function, *args):
    """Return the value of a function, or the class of its refusal; any other error is a test error."""
    try:
        return function(*args)
    except InvalidInputError as error:
        return type(error)


# --- parsing
# -----------------------------------------------------------------------------------------------------------


def read_in_python(text):
    target = parse_request_url(text)
    path = "".join(f"/{segment}" for segment in target.path)
    return target.scheme, target.host, target.port, path, target.ambiguous


@rows("group", GROUPS)
def test_urls_are_read_the_same(group):
    """Both accept the same texts, with the same scheme, host, port, path and ambiguity."""
    count = 0

    @settings(UNHURRIED, max_examples=examples(0.4))
    @given(GROUPS[group])
    def compare(texts):
        nonlocal count
        count += len(texts)
        for text in texts:
            assert outcome(_core.read_url, text) == outcome(read_in_python, text), ascii(text)

    compare()
    assert count > 200


@rows("length", [65534, 65535, 65536])
@rows("filler", ["a", "/", "|", "%7e", "%7c", "é", "日", "/a"])
@rows("head", ["http://a.com/", "http://a.com/?"])
def test_the_longest_urls_are_read_the_same(head, filler, length):
    """This also applies if the canonical form is longer than the text."""
    text = (head + filler * length)[:length]
    same = outcome(_core.read_url, text) == outcome(read_in_python, text)
    assert same


@rows("value", [b"http://a.com", bytearray(b"http://a.com"), None, 80, ["http://a.com"], object()])
def test_what_is_no_text_is_refused_as_a_url(value):
    """The error is the same, and nothing crashes."""
    assert outcome(_core.read_url, value) is outcome(parse_request_url, value) is InvalidInputError


class Forged(str):
    __slots__ = ()

    def __str__(self):
        return "http://good.example/"

    __repr__ = __getitem__ = lower = encode = lambda self, *args: "http://good.example/"
    isascii = __eq__ = __contains__ = startswith = lambda self, *args: True
    __len__ = lambda self: 20
    __hash__ = str.__hash__


@rows("text", ["http://evil.example/x", "http://a.com\\@b.com", "http://bücher.example/é", "", "x"])
def test_a_subclass_is_read_by_its_characters(text):
    """Lying methods are not called, for ASCII and other text."""
    assert outcome(_core.read_url, Forged(text)) == outcome(read_in_python, text)


SOUP = st.text("0123456789abcdefx.:%[]", min_size=1, max_size=24)
GROUPS_OF_SIX = st.lists(st.sampled_from(["0", "1", "ffff", "0001", "00001", "g", "", "1.2.3.4", "01.2.3.4", "127.1"]))
ODD = st.one_of(
    HOSTS,
    SOUP,
    GROUPS_OF_SIX.map(":".join),
    st.text(min_size=1, max_size=8),
    st.sampled_from(ODD_HOSTS + HOMOGRAPHS),
    V4.map(number_spellings).flatmap(st.sampled_from),
    V6.map(address_spellings).flatmap(st.sampled_from).map(lambda host: host.strip("[]")),
)
PORTS = st.one_of(st.none(), st.integers(-1, 65537))


@settings(UNHURRIED, max_examples=examples(4))
@given(ODD, PORTS)
def test_hosts_of_sockets_are_read_the_same(host, port):
    """Both accept the same hosts and ports, with the same canonical host."""
    target = outcome(parse_socket, host, port)
    if isinstance(target, type):
        assert outcome(_core.socket_mask, native(()), host, port) is target
        return
    rules = parse_access([rule(["send"], str(target))], base=None)
    assert _core.socket_mask(native(rules), host, port) == 4


# --- matching --------------------------------------------------------------------------------------------------------


def rule(operations, target):
    return {"resource_type": "network", "operation": operations, "target": target}


def mask_of(operations):
    return reduce(or_, (int(network_access(operation)) for operation in operations), 0)


NAMES = st.sampled_from(
    ["example.com", "a.example.com", "b.a.example.com", "aexample.com", "example.org", "h", "bücher.example", "x.h.org"]
)
LITERALS = st.sampled_from(
    [
        *(
            "10.0.0.1",
            "10.0.0.2",
            "10.0.1.1",
            "10.128.0.1",
            "127.0.0.2",
            "0.0.0.0",
            "255.255.255.255",
            "169.254.169.254",
        ),
        *("[2001:db8::1]", "[2001:db8::2]", "[2001:db8:8000::1]", "[::]", "[fe80::1]", "[::a00:1]", "[64:ff9b::a00:1]"),
    ]
)
LOOPBACK = st.sampled_from(["localhost", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "[0:0:0:0:0:0:0:1]", "LOCALHOST."])
MAPPED = st.sampled_from(["[::ffff:10.0.0.1]", "[::ffff:a00:2]", "[::FFFF:10.128.0.1]"])
PLACES = st.one_of(NAMES, NAMES, LITERALS, LOOPBACK, MAPPED)
SPELLED = st.one_of(PLACES, NAMES.map(str.upper), NAMES.map("{}.".format), NAMES.map("c.{}".format))
SCHEMES = st.sampled_from(["http", "https", "ws", "HTTP"])
SUFFIXES = st.sampled_from(["", ":80", ":443", ":8080"])
SEGMENTS = st.sampled_from(["a", "ab", "b", "%61", "a%20b", "é", "%C3%A9", "a;b", "a%3Bb", "|", "%7C", "A", "x" * 50])
PATHS = st.lists(SEGMENTS, max_size=4).map(lambda parts: "".join(f"/{part}" for part in parts))
ODD_PATHS = st.builds(
    "{}{}{}".format,
    PATHS,
    st.sampled_from(["", "/", "//", "/..", "/./", "/%2e%2e", "/a%2fb", "/..;x", "/..%3Bx", "/%", "/a//b", "/..a"]),
    PATHS,
)


@st.composite
def networks(draw):
    """Return an address range of any length around an address of these tests, or around any."""
    literal = draw(st.one_of(LITERALS, LOOPBACK.filter(lambda host: host[0] in "[1"), st.sampled_from(["10.77.0.9"])))
    address = ipaddress.ip_address(literal.strip("[]"))
    length = draw(st.integers(0, address.max_prefixlen))
    network = str(ipaddress.ip_network((address, length), strict=False))
    return network if outcome(parse_declaration, network) is not InvalidInputError else "10.0.0.0/8"


DECLARATIONS = st.one_of(
    st.builds("{}://{}{}{}".format, SCHEMES, PLACES, SUFFIXES, PATHS),
    st.builds("{}{}".format, PLACES, SUFFIXES),
    st.builds("*.{}{}".format, NAMES.filter(lambda name: "." in name), SUFFIXES),
    networks(),
    st.sampled_from(["unix:/run/a", "unix:@a"]),
)
OPERATIONS = st.sets(st.sampled_from(NETWORK_OPERATIONS), min_size=1).map(sorted)
RULES = st.lists(st.builds(rule, OPERATIONS, DECLARATIONS), max_size=12).map(lambda rows: parse_access(rows, base=None))


def several(strategy):
    return st.lists(strategy, min_size=1, max_size=4, unique=True)


URLS = st.builds(
    lambda *parts: ["".join(row) for row in product(*parts)],
    several(SCHEMES.map("{}://".format)),
    several(SPELLED),
    several(SUFFIXES),
    several(ODD_PATHS),
    st.sampled_from([[""], ["?q"], ["#f"]]),
)


@settings(UNHURRIED, max_examples=examples(1))
@given(RULES, URLS)
def test_rules_for_urls_are_the_same(rules, urls):
    """The mask of a request has exactly the operations for which the index finds a rule."""
    policy, index = native(rules), NetworkIndex(rules)
    for url in urls:
        target = parse_request_url(url)
        allowed = [operation for operation in NETWORK_OPERATIONS if index.allows(operation, target)]
        assert _core.url_mask(policy, url) == mask_of(allowed), url


@settings(UNHURRIED, max_examples=examples(1))
@given(RULES, several(SPELLED))
def test_rules_for_sockets_are_the_same(rules, places):
    """The same applies to an address or name with or without a port."""
    policy, index = native(rules), NetworkIndex(rules)
    for place, port in product(places, [None, 80, 443, 8080, 1]):
        host = place.strip("[]")
        target = parse_socket(host, port)
        allowed = [operation for operation in NETWORK_OPERATIONS if index.allows(operation, target)]
        assert _core.socket_mask(policy, host, port) == mask_of(allowed), (place, port)


def names_host(declared, host):
    """Return whether a rule names this host, without an index."""
    if declared.kind == "wildcard":
        return host.endswith("." + declared.host) and ":" not in host and not host.rpartition(".")[2].isdecimal()
    loopback = {"localhost", "127.0.0.1", "::1"}
    return declared.kind in ("url", "host") and (declared.host == host or {declared.host, host} <= loopback)


@settings(UNHURRIED, max_examples=examples(1))
@given(RULES, several(SPELLED))
def test_names_to_look_up_are_the_same(rules, places):
    """The same rules of any operation allow the lookup of a name."""
    policy, index = native(rules), NetworkIndex(rules)
    for place in places:
        host = parse_socket(place.strip("[]"), None).host
        naming = [row.operation for row in rules if names_host(parse_declaration(row.normalized_target), host)]
        assert _core.name_mask(policy, place.strip("[]")) == mask_of(naming), place
        assert (index.find_name(host) is not None) is bool(naming)


@rows("spelling", [b"h.example", "h.example", "H.EXAMPLE.", b"H.Example."])
def test_a_host_in_bytes_is_the_host(spelling):
    """Sockets accept bytes as hosts; they mean the same host."""
    policy = native(parse_access([rule(["send"], "h.example")], base=None))
    assert _core.socket_mask(policy, spelling, 80) == 4
    assert outcome(_core.socket_mask, policy, b"h\xc3\xa9.example", 80) is InvalidInputError


# --- ten thousand rules ----------------------------------------------------------------------------------------------


def many_rules(count):
    """Return rules of every form, with hosts and paths that start alike."""
    rows = []
    for number in range(count // 5):
        rows += [
            rule(["send"], f"https://u.example/tenant{number}/data"),
            rule(["receive"], f"http://h{number}.example:81/a"),
            rule(["connect"], f"h{number}.example"),
            rule(["connect"], f"*.w{number}.example"),
            rule(["receive"], f"10.{number >> 8}.{number & 255}.0/24"),
        ]
    return parse_access(rows, base=None)


def test_ten_thousand_rules_are_told_apart():
    """A rule never matches a neighbor that starts with the same letters."""
    policy = native(many_rules(10_000))
    for number in range(0, 2000, 97):
        assert _core.url_mask(policy, f"https://u.example/tenant{number}/data/x") == 4
        assert _core.url_mask(policy, f"https://u.example/tenant{number}/datax") == 0
        assert _core.url_mask(policy, f"https://u.example/tenant{number}") == 0
        assert _core.url_mask(policy, f"http://h{number}.example:81/a") == 3
        assert _core.url_mask(policy, f"http://h{number}.example/a") == 1
        assert _core.socket_mask(policy, f"h{number}.example", 22) == 1
        assert _core.socket_mask(policy, f"a.b.w{number}.example", 22) == 1
        assert _core.socket_mask(policy, f"w{number}.example", 22) == 0
        assert _core.socket_mask(policy, f"10.{number >> 8}.{number & 255}.9", 22) == 2
        assert _core.name_mask(policy, f"h{number}.example") == 3
    for unknown in ("https://u.example/tenant2000/data", "https://u.example/tenant", "http://h2000.example:81/a"):
        assert _core.url_mask(policy, unknown) == 0


def test_a_decision_costs_the_same_among_ten_thousand_rules():
    """The number of rules does not matter; `make bench` has the exact figure."""
    urls = ["https://u.example/tenant1/data/x", "http://h1.example:81/b", "https://other.example/" + "a/" * 1000]

    def cost(policy):
        best = float("inf")
        for _ in range(20):
            begin = time.perf_counter()
            for url in urls:
                for _ in range(50):
                    _core.url_mask(policy, url)
            best = min(best, time.perf_counter() - begin)
        return best

    assert cost(native(many_rules(10_000))) < 2 * cost(native(many_rules(10)))
