"""Shorthands allowed_paths and allowed_targets."""

from __future__ import annotations

import pathlib

import pytest

from democrai_sandbox.policy import InvalidInputError, rules_for_paths, rules_for_targets
from tests.services.rows import rows


def test_a_path_stands_for_four_operations():
    """Read, create, modify and delete, but not execute."""
    rules = rules_for_paths(["/srv/a/"])
    assert [rule.operation.value for rule in rules] == ["read", "create", "modify", "delete"]
    assert {rule.normalized_target for rule in rules} == {"/srv/a"}


def test_a_target_stands_for_three_operations():
    """Connect, receive and send."""
    rules = rules_for_targets(["Example.COM:443"])
    assert [rule.operation.value for rule in rules] == ["connect", "receive", "send"]
    assert {rule.normalized_target for rule in rules} == {"example.com:443"}


@rows("values", [[], (), set(), iter([])])
def test_nothing_stands_for_nothing(values):
    """No paths and no targets give no rules."""
    assert rules_for_paths(values) == ()
    assert rules_for_targets(values) == ()


def test_path_objects_are_accepted_and_asked_once():
    """A path object is converted once, so that it cannot change its result."""

    class Turncoat:
        answers = ["/srv/a", "/etc"]

        def __fspath__(self):
            return self.answers.pop(0)

    turncoat = Turncoat()
    assert {rule.normalized_target for rule in rules_for_paths([pathlib.Path("/srv/p"), turncoat])} == {
        "/srv/p",
        "/srv/a",
    }
    assert turncoat.answers == ["/etc"]


def test_repeated_paths_count_once():
    """Two spellings of one path do not duplicate the rules."""
    assert len(rules_for_paths(["/srv/a", pathlib.Path("/srv/a"), "/srv//a"])) == 4


class BytesPath:
    def __fspath__(self):
        return b"/srv"


@rows(
    "path", ["", "srv", ".", "~", "~/x", "/a\0b", "/a\nb", None, 3, b"/srv", ["/srv"], pathlib.Path("srv"), BytesPath()]
)
def test_odd_paths_are_refused_with_their_place(path):
    """Empty, relative, unexpanded and non-text paths are rejected among valid ones."""
    with pytest.raises(InvalidInputError) as caught:
        rules_for_paths(["/ok", path])
    assert [problem.pointer for problem in caught.value.problems] == ["/allowed_paths/1"]


@rows("target", ["", "*.com", "http:a.com", "a b", None, 3, b"example.com", pathlib.Path("/x")])
def test_odd_targets_are_refused_with_their_place(target):
    """Invalid network targets are rejected among valid ones."""
    with pytest.raises(InvalidInputError) as caught:
        rules_for_targets(["example.com", target])
    assert [problem.pointer for problem in caught.value.problems] == ["/allowed_targets/1"]


@rows("values", ["/srv", b"/srv", {"/srv": 1}, pathlib.Path("/srv"), None, 3])
@rows("shorthand", [rules_for_paths, rules_for_targets])
def test_a_single_value_is_not_a_list(values, shorthand):
    """A path instead of a list of paths is rejected, not read as a list of letters."""
    with pytest.raises(InvalidInputError) as caught:
        shorthand(values)
    place = "/allowed_paths" if shorthand is rules_for_paths else "/allowed_targets"
    assert [problem.pointer for problem in caught.value.problems] == [place]
