"""Access rules: parsing of manifest entries, with all problems."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from democrai_sandbox.policy import (
    AccessRule,
    InvalidInputError,
    Operation,
    ResourceType,
    normalise_target,
    parse_access,
)
from tests.services.golden import sentence
from tests.services.rows import rows


def entry(resource_type="filesystem", operation="read", target="/srv/a", **extra):
    return {"resource_type": resource_type, "operation": operation, "target": target, **extra}


def problems_of(entries, **options):
    options = {"base": None, **options}
    with pytest.raises(InvalidInputError) as caught:
        parse_access(entries, **options)
    return {problem.pointer: problem for problem in caught.value.problems}


def test_entries_become_rules():
    """Each resource type gives a rule with the raw and the normalized target."""
    rules = parse_access(
        [
            entry(target="/srv/a/../b/"),
            entry("network", "receive", "HTTPS://API.Example.com:443/v1/"),
            entry("system_dependency", "execute", "ffmpeg"),
        ],
        base=None,
    )
    assert rules == (
        AccessRule(ResourceType.FILESYSTEM, Operation.READ, "", "/srv/b"),
        AccessRule(ResourceType.NETWORK, Operation.RECEIVE, "", "https://api.example.com/v1"),
        AccessRule(ResourceType.SYSTEM_DEPENDENCY, Operation.EXECUTE, "", "ffmpeg"),
    )
    assert rules[0].target == "/srv/a/../b/"


@rows("entries", [[], ()])
def test_an_empty_list_is_no_rules(entries):
    """An empty list allows nothing and is not an error."""
    assert parse_access(entries, base=None) == ()


@rows("entries", [None, {}, "", "read", 0, False, {"access": []}, b"", iter(())])
def test_what_is_no_list_is_refused(entries):
    """A wrong type is never read as an empty list."""
    assert set(problems_of(entries)) == {"/access"}


def test_a_list_of_operations_makes_one_rule_each():
    """Several operations on one target are several rules; duplicates are dropped."""
    rules = parse_access([entry(operation=["read", "create", "read"])], base=None)
    assert [rule.operation for rule in rules] == [Operation.READ, Operation.CREATE]


def test_rules_that_allow_the_same_are_one():
    """Other spellings of a target do not make another rule."""
    rules = parse_access([entry(target="/srv/a"), entry(target="/srv//a/"), entry(target="/srv/b")], base=None)
    assert [rule.normalized_target for rule in rules] == ["/srv/a", "/srv/b"]
    assert rules[0].target == "/srv/a"


@rows(
    ("target", "expected"),
    [("data", "/opt/mod/data"), ("./data/", "/opt/mod/data"), (".", "/opt/mod"), ("../x", "/opt/x"), ("/abs", "/abs")],
)
def test_relative_paths_belong_to_the_manifest_folder(target, expected):
    """A relative target is resolved against the base; an absolute one stays."""
    (rule,) = parse_access([entry(target=target)], base="/opt/mod/")
    assert rule.normalized_target == expected


def test_relative_paths_without_a_folder_are_refused():
    """Without a base nothing is guessed, in particular not the working directory."""
    problem = problems_of([entry(target="data")])["/access/0/target"]
    assert "'data'" in problem.message
    sentence("relative path without a folder", problem.message)


@rows("base", ["", "mod", "/a\0b"])
def test_a_base_must_be_an_absolute_path(base):
    """An invalid base is an error of the caller."""
    with pytest.raises(InvalidInputError):
        parse_access([entry(target="data")], base=base)


def test_every_problem_is_told_at_once():
    """Parsing a manifest finds all problems, each with its pointer and suggestion."""
    found = problems_of(
        [
            entry(),
            entry(operation="raed"),
            entry("url", "get", "https://example.com"),
            {"resource_type": "network", "opration": "send", "target": "https://example.com"},
            entry(operation=["read", "connect", 7]),
            entry(target=""),
            entry("network", "receive", ""),
            "read /srv",
            entry(target="/a\nb", extra=1),
        ]
    )
    assert found["/access/1/operation"].suggestion == "read"
    assert found["/access/2/resource_type"].suggestion == "network"
    assert found["/access/3/opration"].suggestion == "operation"
    assert "'operation'" in found["/access/3"].message
    assert "filesystem" in found["/access/4/operation/1"].message
    assert " int" in found["/access/4/operation/2"].message
    assert found["/access/6/target"].message == "network_target_missing"
    assert "U+000A" in found["/access/8/target"].message
    assert "'extra'" in found["/access/8/extra"].message
    assert set(found) == {
        *("/access/1/operation", "/access/2/resource_type", "/access/2/operation", "/access/3/opration", "/access/3"),
        *("/access/4/operation/1", "/access/4/operation/2", "/access/5/target", "/access/6/target", "/access/7"),
        *("/access/8/target", "/access/8/extra"),
    }
    sentence("every problem", "\n".join(map(str, found.values())))


def test_the_pointer_begins_where_the_caller_says():
    """The pointer of a list in a phase includes that phase."""
    assert set(problems_of([entry(operation="x")], pointer="/runtime/access")) == {"/runtime/access/0/operation"}


@rows(
    ("resource_type", "operation"),
    [
        ("filesystem", "connect"),
        ("filesystem", "receive"),
        ("network", "read"),
        ("network", "execute"),
        ("system_dependency", "read"),
        ("system_dependency", "connect"),
    ],
)
def test_operations_of_other_resources_are_refused(resource_type, operation):
    """An operation must exist for its resource type."""
    target = "/srv/a" if resource_type == "filesystem" else "example.com"
    assert set(problems_of([entry(resource_type, operation, target)])) == {"/access/0/operation"}


@rows(
    ("field", "value", "suggestion"),
    [
        ("operation", "write", "modify"),
        ("operation", "Read", "read"),
        ("operation", "exec", "execute"),
        ("operation", "download", None),
        ("resource_type", "file", "filesystem"),
        ("resource_type", "filesytem", "filesystem"),
        ("resource_type", "quantum", None),
    ],
)
def test_misspelt_values_are_told_the_right_name(field, value, suggestion):
    """The suggestion is a name that is valid in that place, or none."""
    assert problems_of([entry(**{field: value})])[f"/access/0/{field}"].suggestion == suggestion


@rows("field", ["resource_type", "operation", "target"])
@rows("value", [None, 1, True, b"read", {"a": 1}, object()])
def test_wrong_types_are_refused(field, value):
    """Each key has its type; nothing is converted."""
    assert f"/access/0/{field}" in problems_of([entry(**{field: value})])


@rows("field", ["resource_type", "operation", "target"])
def test_every_key_is_required(field):
    """A missing key is an error of the entry."""
    incomplete = entry()
    del incomplete[field]
    found = problems_of([incomplete])
    assert set(found) == {"/access/0"}
    assert f"'{field}'" in found["/access/0"].message


def test_an_empty_list_of_operations_is_refused():
    """A rule without an operation is invalid."""
    assert "/access/0/operation" in problems_of([entry(operation=[])])


@rows(("key", "place"), [("resource_types", "resource_types"), ("", ""), ("a/b", "a~1b"), (3, ""), (None, "")])
def test_unknown_keys_are_refused(key, place):
    """Unknown keys and keys that are not text are rejected, not skipped."""
    found = problems_of([{**entry(), key: 1}])
    assert set(found) == {f"/access/0/{place}"}


@rows("target", ["~", "~/x", "~root/x", "/a\0b", "/a\x1b[31m", "/a\u0085", "/a\ud800", "", "\n"])
def test_odd_paths_are_refused(target):
    """Home shorthands, NUL, control characters and lone surrogates are rejected, with and without a base."""
    assert set(problems_of([entry(target=target)], base="/opt")) == {"/access/0/target"}


@rows("target", ["/srv/\udcff", "/srv/[x", "/srv/a b", "/srv/\u202e", "/srv/e\u0301"])
def test_names_that_a_disk_can_hold_are_accepted(target):
    """A name is literal, and bytes that are not UTF-8 are kept."""
    (rule,) = parse_access([entry(target=target)], base=None)
    assert rule.normalized_target == target


@rows("target", [" ffmpeg", "ffmpeg\n", "a\u202eb", ""])
def test_odd_dependency_names_are_refused(target):
    """The name of a program is shown to an approver, so it must not contain invisible characters."""
    assert set(problems_of([entry("system_dependency", "execute", target)])) == {"/access/0/target"}


def test_rules_are_accepted_among_entries():
    """Existing rules are accepted next to manifest entries."""
    (rule,) = parse_access([entry()], base=None)
    assert parse_access([rule, entry(target="/srv/b")], base=None)[0] is rule


@rows(
    "rule",
    [
        AccessRule(ResourceType.FILESYSTEM, Operation.READ, "/a", "/a/.."),
        AccessRule(ResourceType.FILESYSTEM, Operation.READ, "/a", "a"),
        AccessRule(ResourceType.FILESYSTEM, Operation.CONNECT, "/a", "/a"),
        AccessRule("filesystem", Operation.READ, "/a", "/a"),
        AccessRule(ResourceType.FILESYSTEM, "read", "/a", "/a"),
        AccessRule(ResourceType.FILESYSTEM, Operation.READ, "/a", None),
        AccessRule(ResourceType.NETWORK, Operation.SEND, "x", "*.com"),
        AccessRule(ResourceType.NETWORK, Operation.SEND, "x", "EXAMPLE.com"),
    ],
)
def test_rules_made_by_hand_must_be_sound(rule):
    """A rule that parsing would not have produced is rejected."""
    assert all(pointer.startswith("/access/0") for pointer in problems_of([rule]))


def test_text_subclasses_are_copied():
    """A rule keeps the characters, not an object that could change."""

    class Sly(str):
        __slots__ = ()

        def startswith(self, *args):
            return True

    class SlyDict(dict):
        def items(self):
            return entry(target="/").items()

    (rule,) = parse_access([SlyDict(entry(target=Sly("/srv/x"), operation=Operation.READ))], base=None)
    assert type(rule.target) is type(rule.normalized_target) is str
    assert rule.normalized_target == "/srv/x"


def test_rules_do_not_change_and_can_be_hashed():
    """Rules are values."""
    (rule,) = parse_access([entry()], base=None)
    assert len({rule, AccessRule(rule.resource_type, rule.operation, "other spelling", "/srv/a")}) == 1
    with pytest.raises(FrozenInstanceError):
        rule.normalized_target = "/"


def test_the_manifest_form_needs_no_folder():
    """The result of to_dict is plain data and parses to an equal rule without a base."""
    (rule,) = parse_access([entry(target="data")], base="/opt/mod")
    assert rule.to_dict() == {"resource_type": "filesystem", "operation": "read", "target": "/opt/mod/data"}
    assert {type(value) for value in rule.to_dict().values()} == {str}
    assert parse_access([rule.to_dict()], base=None) == (rule,)


@rows("resource_type", ResourceType)
@rows("target", ["", None, 3, b"/x"])
def test_the_normaliser_refuses_what_is_no_target(resource_type, target):
    """Empty and non-text targets are rejected for every resource type."""
    with pytest.raises(InvalidInputError):
        normalise_target(resource_type, target)
