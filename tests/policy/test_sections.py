"""Configuration objects, read key by key."""

from __future__ import annotations

import pytest

from democrai_sandbox.policy import InvalidInputError
from democrai_sandbox.policy.config_section import ConfigSection, absolute_path, described, each, number, switch, whole
from tests.services.golden import sentence
from tests.services.rows import rows


def test_each_key_is_taken_once_and_others_are_refused():
    """The problems contain the nearest known key and the pointer."""
    problems = []
    section = ConfigSection({"on": True, "por": 5, "inner": {"x": 1, "y": 2}, "list": [1, "b"]}, "/top", problems)
    assert section.take("on", switch, default=False) is True
    assert section.take("port", whole(0, 9), default=7) == 7
    inner = section.inner("inner")
    assert inner.take("x", switch, default=None) is None
    inner.refuse_others()
    section.take("list", each(whole(0, 9), "numbers"), default=())
    section.refuse_others()
    assert {problem.pointer: problem.suggestion for problem in problems} == {
        "/top/inner/x": None,
        "/top/inner/y": None,
        "/top/list/1": None,
        "/top/por": "port",
    }


def test_what_nobody_took_can_be_handed_on():
    """They are not rejected afterwards."""
    problems = []
    section = ConfigSection({"type": "x", "a": 1, "b": 2}, "", problems)
    assert section.raw("type") == "x"
    assert section.rest() == {"a": 1, "b": 2}
    section.refuse_others()
    assert problems == []


@rows("value", [None, {}])
def test_no_object_is_one_without_keys(value):
    """A section whose keys are all commented out is not a mistake."""
    problems = []
    assert ConfigSection(value, "", problems).inner("any").take("key", switch, default="none") == "none"
    assert problems == []


@rows(
    ("read", "good", "bad"),
    [
        (switch, [True, False], [0, 1, "true", None, []]),
        (whole(1, 5), [1, 5], [0, 6, 1.0, True, "1", None, 1 << 20000]),
        (number(0.5, 2), [0.5, 1, 2.0], [0, 3, True, "1", float("nan"), float("inf"), None]),
        (absolute_path, ["/", "/a/../b", "/a b"], ["", "a", "~/a", "$HOME", "/a\0", 5, None, b"/a"]),
        (each(switch, "switches"), [[], [True], (False, True)], ["", {}, [1], [True, None], None, 5]),
    ],
)
def test_a_reader_takes_its_own_kind_and_nothing_else(read, good, bad):
    """Every other value is rejected with a message."""
    for value in good:
        read(value)
    for value in bad:
        with pytest.raises(ValueError) as error:
            read(value)
        assert str(error.value)


def test_all_wrong_entries_of_a_list_are_told():
    """Each problem has its index."""
    with pytest.raises(InvalidInputError) as error:
        each(absolute_path, "paths")(["/a", "b", "/c", 4])
    assert [problem.pointer for problem in error.value.problems] == ["/1", "/3"]


@rows(
    ("value", "text"),
    [
        (True, "true"),
        (5, "5"),
        (1.5, "1.5"),
        ("yes", "'yes'"),
        ("postgresql://ann:pw@db/x?token=y#z", "'postgresql://***@db/x?***'"),
        ("x://a:p@ss/w@rd@h://b", "'x://***@h://b'"),
        ("ann:pw@db", "'***@db'"),
        ("@x", "'@x'"),
        ("x" * 100, repr("x" * 77 + "...")),
        (f"x://{'a' * 100}:pw@h", "'x://***@h'"),
    ],
)
def test_a_refused_value_is_told_without_its_secrets(value, text):
    """The value stays recognizable."""
    assert described(value) == text


def test_a_value_without_a_short_text_is_told_by_its_type():
    """Python refuses to convert a number with thousands of digits to text."""
    assert described(10**5000) == described(10**30) != described(b"x")
    assert described([1]) == described(()) != described({})
    sentence("values by their type", "\n".join(map(described, (None, [1], {}, 10**30, b"x"))))
