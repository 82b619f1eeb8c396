"""Text from outside."""

from __future__ import annotations

from democrai_sandbox.policy import Operation
from democrai_sandbox.policy.text import control_character, exact_str, invisible_character, invisible_or_space, shown
from tests.services.rows import rows


class Liar(str):
    """Text whose methods all return something else."""

    __slots__ = ()

    def __str__(self):
        return "other"

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0

    def startswith(self, *args):
        return True

    def isascii(self):
        return True


class Pretender:
    """Object that claims to be text."""

    @property
    def __class__(self):
        return str


def test_subclasses_become_exact_text_without_their_methods():
    """The copy has the characters of the original, although its methods return others."""
    copy = exact_str(Liar("/etc"))
    assert type(copy) is str
    assert copy == "/etc"
    assert type(exact_str(Operation.READ)) is str


@rows("value", [None, 1, b"x", bytearray(b"x"), ["x"], Pretender], ids=repr)
def test_what_is_not_text_is_not_taken_for_it(value):
    """Bytes, other types and objects that lie about their class are not text."""
    assert exact_str(value() if value is Pretender else value) is None


@rows(
    ("text", "control", "invisible", "space"),
    [
        ("plain", None, None, None),
        ("a b", None, None, "U+0020"),
        ("a\tb", "U+0009", "U+0009", "U+0009"),
        ("a\0b", "U+0000", "U+0000", "U+0000"),
        ("a\x7f", "U+007F", "U+007F", "U+007F"),
        ("é\x85", "U+0085", "U+0085", "U+0085"),
        ("a\u202eb", None, "U+202E", "U+202E"),
        ("a\u200bb", None, "U+200B", "U+200B"),
        ("a\u2028b", None, "U+2028", "U+2028"),
        ("a\u3000b", None, None, "U+3000"),
        ("a\udc80b", None, "U+DC80", "U+DC80"),
    ],
)
def test_forbidden_characters_are_found(text, control, invisible, space):
    """Each rule returns the first rejected character."""
    assert control_character(text) == control
    assert invisible_character(text) == invisible
    assert invisible_or_space(text) == space


def test_refused_values_are_shown_short_and_printable():
    """The result is printable and short, and no code of the value runs."""
    assert shown("a\x1b[31m\u202e") == r"'a\x1b[31m\u202e'"
    assert len(shown("x" * 100_000)) < 100
    assert shown(Liar("real")) == "'real'"
    assert shown(12).endswith(" int")
