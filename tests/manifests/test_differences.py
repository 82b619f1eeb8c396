"""Rights that a new version of a manifest adds and drops."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from democrai_sandbox.manifests import ChangeEffect, diff, make_manifest
from democrai_sandbox.policy import InvalidInputError
from tests.manifests.corpus import MCP
from tests.manifests.growth import is_linear
from tests.services.golden import sentence
from tests.services.rows import rows


def module(*access, imports=(), folder=None):
    entries = [
        {"resource_type": "filesystem" if target[:1] in "/." else "network", "operation": operation, "target": target}
        for operation, target in access
    ]
    return make_manifest({"name": "demo", "access": entries, "allowed_imports": imports}, "module", folder=folder)


def changes(old, new):
    return [(str(change.effect), change.before, change.after) for change in diff(old, new).changes]


def test_the_same_in_other_words_is_no_difference():
    """Spelling, order and covered entries make no difference."""
    old = module(("receive", "https://api.example.com/v1"), (["read", "create"], "/srv/a"), imports=["ctypes", "cffi"])
    new = module(
        ("create", "/srv/x/../a/"),
        ("read", "/srv/a/b"),
        ("read", "/srv/a"),
        ("receive", "HTTPS://API.example.com:443/v1/"),
        imports=["cffi", "ctypes"],
    )
    assert diff(old, new).changes == diff(new, old).changes == ()
    assert not diff(old, new).adds_power
    assert str(diff(old, new)) == ""


def test_each_effect_is_told():
    """Added, dropped, widened and narrowed rules are reported, those that add rights first."""
    old = module(
        ("read", "/srv/a"),
        ("read", "/srv/b/c"),
        ("read", "/srv/b/d"),
        ("send", "https://x.example"),
        ("connect", "*.example.com"),
        imports=["cffi"],
    )
    new = module(
        ("delete", "/srv/a"),
        ("read", "/srv/b"),
        ("send", "https://x.example/v1"),
        ("connect", "a.example.com:443"),
        imports=["ctypes"],
    )
    difference = diff(old, new)
    assert difference.adds_power
    assert [str(change) for change in difference.changes] == [
        "added /access: filesystem delete /srv/a",
        "added /allowed_imports: ctypes",
        "widened /access: filesystem read /srv/b/c, filesystem read /srv/b/d -> filesystem read /srv/b",
        "narrowed /access: network send https://x.example -> network send https://x.example/v1",
        "narrowed /access: network connect *.example.com -> network connect a.example.com:443",
        "dropped /access: filesystem read /srv/a",
        "dropped /allowed_imports: cffi",
    ]
    assert not diff(module(("read", "/srv")), module(("read", "/srv/a"))).adds_power


def test_two_versions_in_two_folders_are_compared_as_written():
    """A relative target means the same in the folder of each version."""
    old = module(("read", "./data"), folder="/ext/demo-1")
    assert changes(old, module(("read", "./data/.."), folder="/ext/demo-2")) == [
        ("widened", ("filesystem read ./data",), ("filesystem read ./data/..",))
    ]
    assert changes(old, module(("read", "./data/"), folder="/ext/demo-2")) == []
    assert changes(old, module(("read", "/ext/demo-1/data"), folder="/ext/demo-2")) == []
    assert changes(old, module(("read", "/ext/demo-2/data"), folder="/ext/demo-2"))[0][0] == "added"


def test_phases_are_compared_apart():
    """An entry that moves to the other phase is added there and dropped here; requirements and keys count too."""
    entry = {"resource_type": "network", "operation": "receive", "target": "https://x.example"}
    old = make_manifest(
        {
            "name": "e",
            "runtime": {"access": [entry], "allowed_config_urls": ["a"]},
            "install": {"requirements": ["numpy"]},
        },
        "engine",
    )
    new = make_manifest({"name": "e", "install": {"access": [entry], "requirements": ["numpy>=2"]}}, "engine")
    assert [(str(change.effect), change.pointer) for change in diff(old, new).changes] == [
        ("added", "/install/access"),
        ("added", "/install/requirements"),
        ("dropped", "/runtime/access"),
        ("dropped", "/runtime/allowed_config_urls"),
        ("dropped", "/install/requirements"),
    ]


def test_declaring_at_all_narrows_a_tool():
    """A tool without an access list has the rights of its caller, which are not known here."""
    bare, empty = make_manifest({"name": "t"}, "tool"), make_manifest({"name": "t", "access": []}, "tool")
    assert [change.effect for change in diff(bare, empty).changes] == [ChangeEffect.NARROWED]
    assert [change.effect for change in diff(empty, bare).changes] == [ChangeEffect.WIDENED]
    assert diff(bare, bare).changes == ()


def test_the_endpoint_of_an_mcp_server_is_its_power():
    """Another endpoint and an enabled server are reported; a longer timeout adds no rights."""
    old = make_manifest({**MCP, "enabled": False}, "mcp")
    new = make_manifest(MCP, "mcp")
    assert {change.effect for change in diff(old, new).changes} == {ChangeEffect.ADDED}
    assert diff(new, make_manifest({**MCP, "timeout_ms": 5}, "mcp")).changes == ()
    wider = make_manifest({**MCP, "endpoint_url": "https://mcp.example.com/"}, "mcp")
    assert {change.effect for change in diff(new, wider).changes} == {ChangeEffect.WIDENED}


def test_kinds_are_not_compared():
    """A module and an engine cannot be compared."""
    with pytest.raises(InvalidInputError, match="module.*engine"):
        diff(module(), make_manifest({"name": "e"}, "engine"))


ACCESS = st.lists(
    st.tuples(
        st.sampled_from(["read", "create"]),
        st.lists(st.sampled_from("ab"), max_size=3).map(lambda parts: "/" + "/".join(parts)),
    ),
    max_size=4,
)


@given(ACCESS, ACCESS)
def test_back_and_forth_are_opposites(old, new):
    """One direction adds what the other drops; nothing is reported exactly if both allow the same."""
    there, back = diff(module(*old), module(*new)), diff(module(*new), module(*old))
    opposite = {"added": "dropped", "dropped": "added", "widened": "narrowed", "narrowed": "widened"}
    told = {(opposite[change.effect], change.after, change.before) for change in there.changes}
    assert told == {(str(change.effect), change.before, change.after) for change in back.changes}
    assert there.adds_power is any(not change.effect.adds_power for change in back.changes)


def test_the_cost_grows_with_the_number_of_entries():
    """Many entries are compared without comparing each pair."""

    def versions(count):
        return [
            module(*(("receive", f"https://{host}.example/{number}") for number in range(count))) for host in ("a", "b")
        ]

    def compare(pair):
        assert {change.effect for change in diff(*pair).changes} == {ChangeEffect.ADDED, ChangeEffect.DROPPED}

    assert is_linear(compare, versions)


# --- limits, whose increase adds rights
# --------------------------------------------------------------------------------


@rows(
    ("before", "after", "effect", "limit"),
    [
        ({"cpu_seconds": 5}, {"cpu_seconds": 6}, ChangeEffect.WIDENED, "cpu_seconds"),
        ({"cpu_seconds": 5}, {}, ChangeEffect.WIDENED, "cpu_seconds"),
        ({"cpu_seconds": 6}, {"cpu_seconds": 5}, ChangeEffect.NARROWED, "cpu_seconds"),
        ({}, {"open_files": 9}, ChangeEffect.NARROWED, "open_files"),
    ],
)
def test_a_limit_that_is_raised_or_left_out_is_power(before, after, effect, limit):
    """It is reported like a wider rule."""
    old, new = (make_manifest({"name": "demo", "limits": limits}, "module") for limits in (before, after))
    difference = diff(old, new)
    assert [(change.effect, change.pointer) for change in difference.changes] == [(effect, f"/limits/{limit}")]
    sentence(f"from {before} to {after}", str(difference))
    assert difference.adds_power is effect.adds_power


def test_each_phase_has_limits_of_its_own():
    """A limit of the install phase is not one of the runtime phase."""
    old = make_manifest({"name": "demo", "install": {"limits": {"processes": 4}}}, "engine")
    new = make_manifest({"name": "demo", "runtime": {"limits": {"processes": 4}}}, "engine")
    assert {change.pointer: change.effect for change in diff(old, new).changes} == {
        "/install/limits/processes": ChangeEffect.WIDENED,
        "/runtime/limits/processes": ChangeEffect.NARROWED,
    }
