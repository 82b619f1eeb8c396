"""Strict YAML: plain words, lines, and rejected ambiguous values."""

from __future__ import annotations

import re

from democrai_sandbox.host.config.yaml_document import DEEPEST_NESTING, MOST_VALUES, YamlDocument, read_document
from tests.services.golden import sentence
from tests.services.rows import rows


def complaints(text):
    return [(problem.pointer, problem.message, line) for problem, line in read_document(text).problems]


@rows(
    ("word", "value"),
    [
        ("true", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("0", 0),
        ("-12", -12),
        ("+7", 7),
        ("8420", 8420),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ('"true"', "true"),
        ("'12'", "12"),
    ],
)
def test_words_that_mean_the_same_to_everybody_are_values(word, value):
    """Numbers, true, false and null are as in JSON; in quotes everything is a text."""
    document = read_document(f"key: {word}")
    assert document.problems == ()
    assert document.value["key"] == value
    assert type(document.value["key"]) is type(value)


@rows(
    "word",
    # fmt: off
    [
        "yes",
        "no",
        "on",
        "off",
        "y",
        "True",
        "TRUE",
        "Null",
        "010",
        "0o17",
        "0x10",
        "0b1",
        "1_000",
        "22:22",
        "1:30:00",
        "2026-11-15",
        "2026-11-15T10:00:00Z",
        ".inf",
        "-.inf",
        ".nan",
        "-",
        "+",
        "1.",
        "1e",
        "=",
        "<<",
    ],
    # fmt: on
)
def test_surprises_of_yaml_stay_texts(word):
    """A text is rejected where a switch or number is needed, so none of these is silently converted."""
    value = read_document(f"key: {word}").value
    assert value in ({"key": word}, None)
    if word in ("-",):  # the mark of a list
        assert complaints(f"key: {word}")
    else:
        assert value == {"key": word}


def test_each_value_has_the_line_of_its_key():
    """Also in lists and in values on one line."""
    document = read_document('a:\n  b: 1\n  "c/d":\n    - x\n    -\n      y\ne: {f: 2,\n  g: 3}\n')
    assert document.lines == {
        "/a": 1,
        "/a/b": 2,
        "/a/c~1d": 3,
        "/a/c~1d/0": 4,
        "/a/c~1d/1": 6,
        "/e": 7,
        "/e/f": 7,
        "/e/g": 8,
    }


def test_a_key_given_twice_is_refused_with_both_lines():
    """PyYAML silently keeps the last one."""
    ((pointer, message, line),) = complaints("a: 1\nb: 2\na: 3\n")
    assert (pointer, line) == ("/a", 3)
    assert "'a'" in message
    assert re.search(r"\b1\b", message)


NOT_READ = [
    ("a: !!python/object/apply:os.system [ls]", ["/a"]),
    ("a: !!str x", ["/a"]),
    ("a: !x y", ["/a"]),
    ("a: &x 1", ["/a"]),
    ("a: &x {}\nb: *x", ["/a", "/b"]),
    ("a: *nothing", ["/a"]),
    ("%YAML 1.1\n---\na: 1", [""]),
    ("%TAG ! tag:example.com,2026:\n---\na: 1", [""]),
]


@rows(("text", "pointers"), NOT_READ)
def test_tags_anchors_aliases_and_directives_are_not_read(text, pointers):
    """Each is rejected at its place: nothing is created or followed."""
    assert [pointer for pointer, _, _ in complaints(text)] == pointers


def test_aliases_that_multiply_are_refused_before_they_do():
    """A short text that would expand to millions of values is rejected without creating them."""
    text = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for previous, name in zip("abcdefgh", "bcdefghi"):
        text += f"{name}: &{name} [{', '.join([f'*{previous}'] * 9)}]\n"
    found = complaints(text)
    assert {pointer.split("/")[1] for pointer, _, _ in found} == set("abcdefghi")
    assert len(found) < 100  # one for each mark in the text


@rows("text", ["[" * 100_000, "- " * 5_000, "{a: " * 10_000, "\n".join("  " * n + "a:" for n in range(400))])
def test_what_is_nested_too_deep_is_refused(text):
    """Before it uses up the stack or much time."""
    found = complaints(text)
    assert f" {DEEPEST_NESTING} " in found[-1][1]


def test_too_many_values_are_refused():
    """So that a large file is rejected quickly."""
    assert f"{MOST_VALUES:,}" in complaints("- 1\n" * (MOST_VALUES + 10))[-1][1]
    assert complaints("- 1\n" * (MOST_VALUES // 2)) == []


@rows(("text", "line"), [("a: 1\n---\nb: 2\n", 2), ("--- {}\n--- {}\n", 2), ("{}\n...\n---\n", 3)])
def test_a_second_document_is_refused(text, line):
    """It would be ambiguous which one counts."""
    assert [(pointer, found) for pointer, _, found in complaints(text)] == [("", line)]


@rows("key", ["1", "true", "~", "[a]", "{a: b}", "1.5", "!!str a", "&x a"])
def test_a_key_is_a_text(key):
    """A number as a key would match no name."""
    assert complaints(f"? {key}\n: 1\n")[-1][1] == complaints("? 1\n: 1\n")[-1][1]


def test_a_number_that_nobody_needs_is_refused():
    """One with thousands of digits, and one beyond all floats."""
    assert [pointer for pointer, _, _ in complaints(f"a: {'9' * 5000}\nb: 1e999\nc: 1")] == ["/a", "/b"]


@rows(
    ("text", "line"),
    [("a: 1\nb: [1, 2\nc: 3\n", 3), ("a: 1\n\tb: 2\n", 2), ('a: "x\n', 2), ("a: b: c\n", 1), ("a: 1\nb\nc: 3", 3)],
)
def test_what_is_no_yaml_is_refused_with_its_line(text, line):
    """And with the parser's message."""
    ((pointer, message, found),) = complaints(text)
    assert (pointer, found) == ("", line)
    assert "YAML" in message


def test_what_the_parser_expected_is_told():
    """Marks and tokens are not secret."""
    ((_, message, _),) = complaints("a: [1, 2\nb: 3")
    assert re.findall("'(.)'", message) == [",", "]", ":"]


def test_characters_that_no_text_file_has_are_named():
    """A control character is reported by its number, with the line."""
    ((pointer, message, line),) = complaints("a: 1\nb: \x07\n")
    assert (pointer, line) == ("", 2)
    assert "U+0007" in message


def test_each_complaint_has_its_sentence():
    """The message says what is wrong, not only where."""
    texts = [text for text, _ in NOT_READ]
    texts += ["a: 1\na: 3", "[" * 100, "a: 1\n---\nb: 2", "? 1\n: 1", f"a: {'9' * 5000}", "b: 1e999", "a: [1, 2\nb: 3"]
    texts += ["a: 1\nb: \x07", "- 1\n" * (MOST_VALUES + 10)]
    told = [f"{text!r:.40}: {pointer} {message}" for text in texts for pointer, message, _ in complaints(text)]
    sentence("complaints", "\n".join(told))


@rows(
    "text",
    [
        "password: *hunter22",
        "password: !hunter22",
        "password: !hunter22!x y",
        'password: "hunter22\\q"',
        "hunter22: {",
        "password: @hunter22",
    ],
)
def test_a_complaint_never_quotes_the_text(text):
    """The text may be an unquoted password."""
    assert complaints(text)
    assert "hunter22" not in "".join(message for _, message, _ in complaints(text))


@rows("text", ["", "# nothing\n", "---\n", "null", "~\n"])
def test_a_text_without_values_is_empty(text):
    """It is distinguished from an empty object."""
    assert read_document(text) == YamlDocument(None, {}, ())
    assert read_document("{}") == YamlDocument({}, {}, ())
