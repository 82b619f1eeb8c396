"""Rules as JSON text."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from democrai_sandbox.policy import (
    AccessRule,
    InvalidInputError,
    Operation,
    ResourceType,
    parse_access,
    rules_for_paths,
    rules_for_targets,
    rules_from_json,
    rules_to_json,
)
from tests.services.golden import sentence
from tests.services.rows import rows

# File names from arbitrary bytes, as on a disk, except those that a rule rejects.
NAMES = st.binary(min_size=1, max_size=6).map(os.fsdecode).filter(lambda name: not set(name) & set("/~"))


def test_rules_survive_the_environment():
    """Rules written for a child parse to equal rules."""
    rules = rules_for_paths(["/srv/a", "/srv/ü"]) + rules_for_targets(["https://example.com/v1", "*.example.org:443"])
    text = rules_to_json(rules)
    assert rules_from_json(text) == rules
    assert text.isascii()
    assert "\n" not in text


def test_relative_targets_are_written_resolved():
    """The child does not know the folder of the manifest."""
    rules = parse_access([{"resource_type": "filesystem", "operation": "read", "target": "data"}], base="/opt/mod")
    assert rules_from_json(rules_to_json(rules)) == rules


@given(st.lists(NAMES, max_size=4))
def test_any_file_name_survives(names):
    """Names that are not UTF-8 survive the round trip, or are rejected first."""
    try:
        rules = rules_for_paths([f"/{name}" for name in names])
    except InvalidInputError:
        return
    assert rules_from_json(rules_to_json(rules)) == rules


def test_no_rules_are_an_empty_list():
    """An empty list is written and parsed as such."""
    assert rules_to_json(()) == "[]"
    assert rules_from_json("[]") == ()


@rows(
    "text",
    [
        "",
        " ",
        "null",
        "{}",
        "0",
        "false",
        '""',
        '"[]"',
        "[",
        "[]]",
        "[] []",
        "[null]",
        "[[]]",
        "[NaN]",
        "[1e400]",
        "\ufeff[]",
        '[{"resource_type":"filesystem","operation":"read","target":"/srv"',
        '[{"resource_type":"filesystem","operation":"read","target":"srv"}]',
        '[{"resource_type":"filesystem","operation":"read","target":"/srv","scope":"x"}]',
        "[" * 100_000,
        "[" + "9" * 10_000 + "]",
        b"[]",
        None,
        [],
    ],
    ids=lambda text: repr(text)[:30],
)
def test_malformed_text_is_an_error_never_an_empty_list(text):
    """Truncated, empty, foreign and too deep JSON is rejected."""
    with pytest.raises(InvalidInputError):
        rules_from_json(text)


@rows("key", ["target", "operation"])
def test_repeated_keys_are_refused(key):
    """A duplicate key is ambiguous."""
    member = json.dumps({"resource_type": "filesystem", "operation": "read", "target": "/srv"})
    text = f'[{member[:-1]}, "{key}": "/"}}]'
    with pytest.raises(InvalidInputError) as caught:
        rules_from_json(text)
    (problem,) = caught.value.problems
    assert f"'{key}'" in problem.message
    sentence(f"repeated {key}", problem.message)


def test_problems_point_into_the_text():
    """The pointer names the invalid entry."""
    rule = AccessRule(ResourceType.FILESYSTEM, Operation.READ, "/a", "/a")
    text = json.dumps([rule.to_dict(), {**rule.to_dict(), "operation": "raed"}])
    with pytest.raises(InvalidInputError) as caught:
        rules_from_json(text, pointer="/DEMOCRAI_ACCESS")
    assert [problem.pointer for problem in caught.value.problems] == ["/DEMOCRAI_ACCESS/1/operation"]
