"""Coverage of rules, matched as in a check, also for wildcards and ranges."""

from __future__ import annotations

from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from democrai_sandbox.manifests import Coverage, common_rules, covers
from democrai_sandbox.policy import NetworkIndex, Operation, PathIndex, file_access, parse_access, parse_declaration
from tests.services.rows import rows

TARGETS = [
    *("https://a.example.com", "https://a.example.com/v1", "https://a.example.com/v1/x", "https://a.example.com/v10"),
    *("http://a.example.com", "https://a.example.com:8443", "a.example.com", "a.example.com:443", "example.com"),
    *("*.example.com", "*.a.example.com", "*.example.com:443", "*.b.example.com", "wss://a.example.com/v1"),
    *("10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "10.1.2.3:443", "10.1.2.3/32", "https://10.1.2.3/x", "11.0.0.0/8"),
    *("localhost", "127.0.0.1", "127.0.0.0/8", "127.0.0.1/32", "::1/128", "http://localhost/x", "2001:db8::/32"),
    *("[2001:db8::1]:443", "2001:db8::/48", "unix:/run/a.sock", "unix:/run", "unix:@a", "0.0.0.0/0", "::/0"),
]
# Requests that distinguish the targets.
REQUESTS = [
    *(
        "https://a.example.com/",
        "https://a.example.com/v1",
        "https://a.example.com/v1/x/y",
        "https://a.example.com/v10",
    ),
    *(
        "http://a.example.com/",
        "https://a.example.com:8443/",
        "a.example.com:443",
        "a.example.com:22",
        "example.com:80",
    ),
    *("x.a.example.com:443", "x.a.example.com:22", "x.b.example.com:443", "x.b.example.com:1", "x.example.com:1"),
    *("x.example.com:443", "wss://a.example.com/v1", "10.1.2.3:443", "10.1.2.3:22", "10.1.9.9:1", "10.9.9.9:1"),
    *("https://10.1.2.3/x", "https://10.1.2.3/y", "11.0.0.1:1", "localhost:1", "127.0.0.1:2", "[::1]:3", "9.9.9.9:9"),
    *("127.0.0.2:1", "http://localhost/x/y", "http://localhost/z", "[2001:db8::1]:443", "[2001:db8::1]:1"),
    *("[2001:db8:0:1::1]:443", "[2001:db8:1::1]:1", "[2002::1]:1", "unix:/run/a.sock", "unix:/run", "unix:@a"),
]


@cache
def network(target, operation="connect"):
    (rule,) = parse_access([{"resource_type": "network", "operation": operation, "target": target}], base=None)
    return rule


def file(target, operation="read"):
    (rule,) = parse_access([{"resource_type": "filesystem", "operation": operation, "target": target}], base=None)
    return rule


@cache
def allowed(target):
    """Return the requests that a rule for this target allows."""
    index = NetworkIndex([network(target)])
    return {request for request in REQUESTS if index.allows(Operation.CONNECT, parse_declaration(request))}


@rows("broad", TARGETS)
def test_covering_is_what_the_matcher_says(broad):
    """A rule covers another exactly if it allows every request that the other one allows."""
    assert allowed(broad)
    for narrow in TARGETS:
        assert covers(network(broad), network(narrow)) is (allowed(narrow) <= allowed(broad)), (broad, narrow)


@rows(
    ("broad", "narrow", "expected"),
    [
        ("/srv", "/srv/a", True),
        ("/srv/a", "/srv", False),
        ("/srv/a", "/srv/ab", False),
        ("/", "/srv", True),
        ("/srv", "/srv", True),
        ("/srv/../etc", "/etc/x", True),
    ],
)
def test_folders_cover_what_is_below(broad, narrow, expected):
    """Whole components are compared."""
    assert covers(file(broad), file(narrow)) is expected


PROGRAMS = {name: ["system_dependency", "execute", name] for name in ("git", "tar")}


@rows(
    ("asking", "other", "expected"),
    [
        ([["filesystem", "read", "/a"]], [["filesystem", "read", "/a/b"]], [["filesystem", "read", "/a/b"]]),
        ([["filesystem", "read", "/a/b"]], [["filesystem", "read", "/a"]], [["filesystem", "read", "/a/b"]]),
        ([["filesystem", "read", "/a"]], [["filesystem", "modify", "/a"]], []),
        ([["filesystem", "read", "/a"]], [["filesystem", "read", "/ab"]], []),
        (
            [["network", "send", "a.test"]],
            [["network", "send", "https://a.test/v1"]],
            [["network", "send", "https://a.test/v1"]],
        ),
        ([PROGRAMS["git"]], [], [PROGRAMS["git"]]),
        ([], [PROGRAMS["git"]], [PROGRAMS["git"]]),
        ([PROGRAMS["git"]], [PROGRAMS["tar"]], [PROGRAMS["git"]]),
    ],
)
def test_common_rules_allow_only_what_both_lists_allow(asking, other, expected):
    """A list without programs permits all, so the result must not become empty."""

    def rules(entries):
        names = ("resource_type", "operation", "target")
        return parse_access([dict(zip(names, entry, strict=True)) for entry in entries], base="/")

    assert common_rules(rules(asking), rules(other)) == tuple(rules(expected))


def test_operations_and_types_are_apart():
    """A rule for one operation or resource type never covers one for another."""
    assert not covers(file("/", "read"), file("/srv", "create"))
    assert not covers(network("a.example", "send"), network("a.example", "receive"))
    (program,) = parse_access(
        [{"resource_type": "system_dependency", "operation": "execute", "target": "/bin/sh"}], base=None
    )
    assert not covers(file("/bin", "execute"), program)
    assert not covers(program, file("/bin/sh", "execute"))
    assert covers(program, program)


def test_the_nearest_position_is_found_among_many():
    """The index returns positions, the first one for equal rules."""
    rules = [network("localhost"), network("127.0.0.1"), network("127.0.0.0/8"), file("/srv"), file("/srv/a")]
    coverage = Coverage(rules)
    assert set(coverage.covering(network("127.0.0.1:80"))) == {0, 2}
    assert set(coverage.covering(file("/srv/a/b"))) == {3, 4}
    assert not coverage.covers(file("/etc"))


PATHS = st.lists(st.sampled_from("ab"), max_size=3).map(lambda parts: "/" + "/".join(parts))


@given(PATHS, PATHS, PATHS)
def test_what_a_covered_root_allows_is_allowed(broad, narrow, path):
    """If one root covers another, its index allows every path that the other's index allows."""
    read = file_access(Operation.READ)
    if covers(file(broad), file(narrow)) and PathIndex([(narrow, read)]).allows(path, read):
        assert PathIndex([(broad, read)]).allows(path, read)
