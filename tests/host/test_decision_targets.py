"""Possible targets of an approval: the exact one first, then wider ones, each covering the requested one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from democrai_sandbox.access.snapshot import covers
from democrai_sandbox.access.values import AccessTuple
from democrai_sandbox.host.decisions import PathKind, decision_targets, path_kind
from democrai_sandbox.manifests import ModuleManifest, lint
from democrai_sandbox.policy import (
    InvalidInputError,
    Operation,
    ResourceType,
    Subject,
    normalise_target,
    parse_access,
    parse_request,
)
from tests.services.golden import sentence
from tests.services.rows import rows

REPORTS = Subject.parse("module:reports")


def asked(target, operation="receive", resource_type="network"):
    return AccessTuple(REPORTS, ResourceType(resource_type), Operation(operation), target)


def offered(*args):
    return [choice.target for choice in decision_targets(asked(*args))]


def test_a_url_narrows_by_its_path():
    """The URL itself, its parent paths, the server; never its host with any protocol."""
    assert offered("https://api.example.com:8443/v1/reports/7") == [
        "https://api.example.com:8443/v1/reports/7",
        "https://api.example.com:8443/v1/reports",
        "https://api.example.com:8443/v1",
        "https://api.example.com:8443",
    ]
    assert offered("https://api.example.com") == ["https://api.example.com"]


def test_a_file_that_looks_like_a_pattern_is_pointed_out(tmp_path):
    """An approval would cover a file with exactly that name; no warning if it exists."""
    (tmp_path / "report[1].csv").touch()
    names = (f"{tmp_path}/*.csv", f"{tmp_path}/report[1].csv")
    assert [bool(decision_targets(asked(name, "read", "filesystem"))[0].warnings) for name in names] == [True, False]


def test_a_connection_narrows_by_its_port():
    """Only here a whole host is offered, with a warning."""
    exact, wide = decision_targets(asked("db.example.com:5432", "connect"))
    assert (exact.target, exact.is_exact, bool(exact.warnings)) == ("db.example.com:5432", True, False)
    assert (wide.target, wide.is_exact, bool(wide.warnings)) == ("db.example.com", False, True)
    assert "db.example.com" in wide.warnings[0]
    sentence("whole host", "\n".join(wide.warnings))
    assert offered("https://a.example/x", "connect") == [
        "https://a.example/x",
        "https://a.example",
        "a.example:443",
        "a.example",
    ]


@rows(
    ("target", "operation", "resource_type"),
    [
        ("git", "execute", "system_dependency"),
        ("unix:/run/db", "connect", "network"),
        ("*.example.com", "connect", "network"),
        ("10.0.0.0/8", "connect", "network"),
        ("no target at all", "connect", "network"),
    ],
)
def test_some_things_are_only_what_they_are(target, operation, resource_type):
    """A program, a socket, a pattern: they have no wider targets."""
    (choice,) = decision_targets(asked(target, operation, resource_type))
    assert (choice.target, choice.is_exact) == (target, True)


@rows(
    ("path", "expected"),
    [
        ("/srv/data/a/b.csv", ["/srv/data/a/b.csv", "/srv/data/a", "/srv/data"]),
        ("/home/ann/notes/x", ["/home/ann/notes/x", "/home/ann/notes"]),
        ("/etc/passwd", ["/etc/passwd"]),
        ("/etc/app/x", ["/etc/app/x", "/etc/app"]),
        ("/x", ["/x"]),
        ("/", ["/"]),
    ],
)
def test_folders_up_to_where_they_hold_too_much(path, expected):
    """Never the root, a top-level folder, or a home."""
    assert offered(path, "read", "filesystem") == expected


def test_warnings_are_those_of_manifests():
    """Plain HTTP, a requested home folder, the whole disk."""
    warned = []
    for target, operation, kind in [
        ("http://a.example/x", "receive", "network"),
        ("/home/ann", "read", "filesystem"),
        ("/", "read", "filesystem"),
    ]:
        (entry,) = parse_access([{"resource_type": kind, "operation": operation, "target": target}], base=None)
        findings = lint(ModuleManifest(name="reports", access=(entry,)))
        assert decision_targets(asked(target, operation, kind))[0].warnings == tuple(
            found.message for found in findings
        )
        warned += [found.code for found in findings]
    assert warned == ["plain_http", "broad_root", "broad_root"]
    assert not any(choice.warnings for choice in decision_targets(asked("http://127.0.0.1:8000/x")))


def test_every_choice_says_its_rule():
    """In words, and with a distinct label."""
    found = decision_targets(asked("https://a.example/one/two"))
    assert all(choice.target in choice.words for choice in found)
    assert len({choice.label for choice in found}) == len(found)
    sentence("choices", "\n".join(f"{choice.label}: {choice.words}" for choice in found))


def test_each_choice_is_named_by_what_it_covers(tmp_path):
    """A file is described as a file, a folder with its content; a missing path as either."""
    (tmp_path / "report.csv").touch()
    names = ("report.csv", "", "later.csv")
    found = [decision_targets(asked(str(tmp_path / name), "read", "filesystem"))[0] for name in names]
    sentence("paths", "\n".join(f"{choice.label}: {choice.words}" for choice in found), folder=tmp_path)
    file, folder, _ = found
    assert "below" not in file.label + file.words
    assert "in it" not in file.label + file.words
    assert "everything in it" in folder.words
    hidden = decision_targets(asked(str(tmp_path / "report.csv"), "read", "filesystem"), look=False)[0]
    assert hidden.words.replace("report.csv", "later.csv") == found[2].words
    around = decision_targets(asked(str(tmp_path / "report.csv"), "read", "filesystem"))[1]
    assert around.target == str(tmp_path)
    assert around.label == folder.label


@rows(
    ("target", "operation", "resource_type"),
    [
        ("https://a.example/one", "receive", "network"),
        ("https://a.example", "receive", "network"),
        ("a.example:443", "connect", "network"),
        ("a.example", "connect", "network"),
        ("*.a.example", "connect", "network"),
        ("10.0.0.0/8", "connect", "network"),
        ("unix:/run/db", "connect", "network"),
        ("git", "execute", "system_dependency"),
        ("no target at all", "connect", "network"),
    ],
)
def test_no_choice_is_called_exact(target, operation, resource_type):
    """The label says what a decision covers: an address is never that address alone."""
    exact = decision_targets(asked(target, operation, resource_type))[0]
    sentence(f"label of {target}", exact.label)


@rows("path", ["/a\0b", "/\ud800", "/" + "x" * 5000, "/proc/self/nothing"])
def test_a_path_that_cannot_be_looked_at_has_a_name_too(path):
    """Its type is unknown."""
    assert path_kind(ResourceType.FILESYSTEM, path) is PathKind.UNKNOWN


def test_deep_paths_offer_a_few():
    """The nearest, and the widest."""
    deep = "/".join(f"s{number}" for number in range(300))
    assert len(offered(f"https://a.example/{deep}")) == 8
    assert offered(f"https://a.example/{deep}")[-2:] == ["https://a.example/s0", "https://a.example"]
    assert len(offered(f"/{deep}", "read", "filesystem")) <= 7


_NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=8)
_HOSTS = st.sampled_from(
    ["a.example", "x.a.example", "localhost", "127.0.0.1", "[::1]", "[2001:db8::1]", "b\u00fccher.example"]
)


@st.composite
def _accesses(draw):
    kind = draw(st.sampled_from(["url", "host", "path"]))
    if kind == "path":
        target = "/" + "/".join(draw(st.lists(_NAMES, max_size=6)))
        operation = draw(st.sampled_from(["read", "create", "modify", "delete", "execute"]))
        return "filesystem", operation, target
    host, port = draw(_HOSTS), draw(st.sampled_from(["", ":1", ":8443"]))
    operation = draw(st.sampled_from(["connect", "receive", "send"]))
    if kind == "host":
        return "network", operation, f"{host}{port}"
    scheme = draw(st.sampled_from(["http", "https", "postgresql"]))
    return "network", operation, f"{scheme}://{host}{port}/" + "/".join(draw(st.lists(_NAMES, max_size=6)))


@given(_accesses())
def test_every_choice_covers_what_was_asked(access):
    """By the matching of every check; the first is the exact target, and none is offered twice."""
    kind, operation, raw = access
    try:
        if kind == "network":
            parsed = parse_request(raw)
            if parsed.ambiguous:
                return
            target = parsed.normalized
        else:
            target = normalise_target(ResourceType.FILESYSTEM, raw)
    except InvalidInputError:
        return
    wanted = asked(target, operation, kind)
    found = decision_targets(wanted)
    assert found[0].target == target
    assert found[0].is_exact
    assert len({choice.target for choice in found}) == len(found)
    for choice in found:
        # The exact target may be impossible as a rule, such as a path with an empty segment: it is approved unchanged.
        assert choice.is_exact or normalise_target(wanted.resource_type, choice.target) == choice.target
        assert covers(asked(choice.target, operation, kind), wanted), choice
