"""File targets that look like patterns are rejected in declarations, and can still be written literally."""

from __future__ import annotations

import json

import pytest

from democrai_sandbox.policy import (
    AccessRule,
    InvalidInputError,
    Operation,
    ResourceType,
    parse_access,
    rules_from_json,
    rules_to_json,
)
from democrai_sandbox.policy.paths import literal_target, pattern_in
from tests.services.rows import rows

PATTERNS = (
    ("/srv/data/*.csv", "/srv/data"),
    ("/srv/data/**", "/srv/data"),
    ("/srv/*/out", "/srv"),
    ("/srv/data/report?.csv", "/srv/data"),
    ("/srv/data/report[12].csv", "/srv/data"),
    ("/srv/data/{a,b}.csv", "/srv/data"),
    ("data/*.csv", "data"),
    ("*.csv", None),
)
NAMES = ("/srv/data/report[1].csv", "/srv/data/a*b", "/srv/what?/x*", "/srv/{a,b}")


def entry(target, kind="filesystem", operation="read"):
    return {"resource_type": kind, "operation": operation, "target": target}


@rows(("target", "folder"), PATTERNS)
def test_a_pattern_is_refused_and_its_folder_suggested(target, folder):
    with pytest.raises(InvalidInputError) as caught:
        parse_access([entry(target)], base="/srv/module")
    assert [(one.pointer, one.suggestion) for one in caught.value.problems] == [("/access/0/target", folder)]


@rows("name", NAMES)
def test_a_file_with_such_a_name_is_declared_with_a_dot_before_it(name):
    (rule,) = parse_access([entry(literal_target(name))], base=None)
    assert rule.normalized_target == name


@rows("target", ["report[1].csv", "*"])
def test_so_is_one_relative_to_the_manifest(target):
    (rule,) = parse_access([entry(f"./{target}")], base="/srv/module")
    assert rule.normalized_target == f"/srv/module/{target}"


@rows("target", ["/srv/a[", "/srv/a]b", "/srv/{a}", "/srv/a,b", "/srv/[]"])
def test_what_is_no_pattern_is_a_name(target):
    (rule,) = parse_access([entry(target)], base=None)
    assert (rule.normalized_target, literal_target(target)) == (target, target)


def test_a_unix_socket_is_a_file_too():
    with pytest.raises(InvalidInputError):
        parse_access([entry("unix:/run/*.sock", "network", "connect")], base=None)
    (rule,) = parse_access([entry("unix:/run/./a[1].sock", "network", "connect")], base=None)
    assert rule.normalized_target == "unix:/run/a[1].sock"


def test_hosts_keep_their_wildcards():
    (rule,) = parse_access([entry("*.example.com", "network", "connect")], base=None)
    assert rule.normalized_target == "*.example.com"


@rows("name", NAMES)
def test_a_rule_is_read_back_from_what_it_writes(name):
    rule = AccessRule(ResourceType.FILESYSTEM, Operation.READ, name, name)
    assert rules_from_json(rules_to_json([rule])) == (rule,)
    assert not pattern_in(json.loads(rules_to_json([rule]))[0]["target"])
