"""Strict JSON parser: positions, and rejected texts."""

from __future__ import annotations

import json
from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from democrai_sandbox.manifests.document import LARGEST_MANIFEST, MOST_VALUES, ManifestError, read_document
from tests.manifests.growth import cost
from tests.services.golden import sentence
from tests.services.rows import rows

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=20), inner),
    max_leaves=20,
)


def problems_of(data):
    """Return the problems of a text, including those that did not stop the parser."""
    try:
        return read_document(data).problems
    except ManifestError as error:
        return error.problems


@given(JSON, st.sampled_from([None, 2]), st.booleans())
def test_reads_what_the_standard_library_writes(value, indent, ascii_only):
    """Every JSON value survives the round trip."""
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    data = text.encode("utf-8", "surrogatepass") if ascii_only else text
    document = read_document(data)
    assert document.value == value
    assert document.problems == ()


@given(st.text(alphabet='{}[]",:\\u0019 \t\n-+.eEtrufalsnNIy/*#\x00\ufeff', max_size=40) | st.text())
def test_never_accepts_what_the_standard_library_refuses(text):
    """A text is either rejected or parsed as json.loads parses it."""
    try:
        document = read_document(text)
    except ManifestError:
        return
    if not document.problems:
        assert document.value == json.loads(text)


@given(st.binary())
def test_any_bytes_are_read_or_refused(data):
    """Any bytes are parsed or rejected with ManifestError."""
    for problem in problems_of(data):
        assert problem.message


def test_every_value_has_its_position():
    """Lines and columns count from one, in characters; an unknown pointer means its nearest ancestor."""
    document = read_document('{\n  "a": [1,\n    {"ü/~": "x"}],\r\n\t"b": null}\n')
    assert document.place("") == (1, 1)
    assert document.place("/a") == (2, 8)
    assert document.place("/a/0") == (2, 9)
    assert document.place("/a/1") == (3, 5)
    assert document.place("/a/1/ü~1~0") == (3, 13)
    assert document.place("/b") == (4, 7)
    for missing in ("/a/2", "/a/x", "/a/-1", "/a/00", "/a/99999999999"):
        assert document.place(missing) == (2, 8)


FAULTS = [
    ("", 1, 1),
    ("  \n ", 2, 2),
    ("{", 1, 2),
    ('{"a"', 1, 5),
    ('{"a" 1}', 1, 6),
    ('{"a": 1,}', 1, 8),
    ("[1,\n]", 1, 3),
    ("[1 2]", 1, 4),
    ('{"a": 1 "b": 2}', 1, 9),
    ("{a: 1}", 1, 2),
    ("{'a': 1}", 1, 2),
    ("['a']", 1, 2),
    ("// x\n{}", 1, 1),
    ('{"a": 1 /* x */}', 1, 9),
    ("# x\n{}", 1, 1),
    ("{} {}", 1, 4),
    ("{}\n}", 2, 1),
    ("[True]", 1, 2),
    ("[None]", 1, 2),
    ("[yes]", 1, 2),
    ('["a', 1, 2),
    ('["a\nb"]', 1, 4),
    ('["\\x"]', 1, 3),
    ('["\\u12g4"]', 1, 3),
    ("[01]", 1, 2),
    ("[0x10]", 1, 2),
    ("[+1]", 1, 2),
    ("[.5]", 1, 2),
    ("[NaN]", 1, 2),
    ("[1, -Infinity]", 1, 5),
    ("[1e999]", 1, 2),
    ("[" + "1" * 65 + "]", 1, 2),
    ('{"a": 1,\n "a": 2}', 2, 2),
    ('{"x": {"a": 1, "\\u0061": 2}}', 1, 16),
    ('{"' + "k" * 257 + '": 1}', 1, 2),
    ("[" * 65, 1, 65),
    ("[" * 100_000, 1, 65),
    ('{"a":' * 65, 1, 64 * 5 + 1),
    ("\ufeff{}", 1, 1),
    (b"\xef\xbb\xbf{}", 1, 1),
    (b'{\n "\xc3\xbc": "\xff"}', 2, 8),
    (b"\xff\xfe{\x00}\x00", 1, 1),
    (b'{"a": "\xed\xa0\x80"}', 1, 8),
    ("[" + "0," * MOST_VALUES + "0]", 1, 2 * MOST_VALUES),
]
"""Texts with one problem each, with its line and column."""


@rows(("text", "line", "column"), FAULTS)
def test_what_is_wrong_is_told_with_its_place(text, line, column):
    """Each kind of problem is reported with its line and column."""
    (problem,) = problems_of(text)
    assert (problem.line, problem.column) == (line, column)


def test_each_kind_of_fault_has_its_sentence():
    """The message says what is wrong."""
    sentence("faults", "\n".join(f"{text!r:.30}: {problem}" for text, *_ in FAULTS for problem in problems_of(text)))


@rows(("text", "suggestion"), [("[True]", "true"), ("[None]", "null"), ("[yes]", '"yes"')])
def test_a_word_that_is_no_value_comes_with_one_that_is(text, suggestion):
    """The suggestion can be pasted."""
    (problem,) = problems_of(text)
    assert problem.suggestion == suggestion


def test_deep_and_large_but_allowed():
    """Texts exactly at the limits of depth, length and number are accepted."""
    assert read_document("[" * 64 + "]" * 64).problems == ()
    assert len(read_document("[" + "0," * (MOST_VALUES - 2) + "0]").value) == MOST_VALUES - 1
    assert read_document(b" " * (LARGEST_MANIFEST - 2) + b"{}").value == {}


@rows(
    "data", [b" " * LARGEST_MANIFEST + b"{}", " " * LARGEST_MANIFEST + "{}", "ü" * LARGEST_MANIFEST, b"[" * 10_000_000]
)
def test_too_large_is_refused_unread(data):
    """More than a mebibyte is one problem, for any content."""
    (problem,) = problems_of(data)
    assert "1,048,576" in problem.message


def test_faults_that_do_not_end_the_reading_are_told_together():
    """Duplicate keys and invalid numbers are all reported, each with its pointer."""
    found = problems_of('\ufeff{"a": NaN, "b": {"c": 1, "c": 2},\n "a": 1e999}')
    assert [(problem.pointer, problem.line) for problem in found] == [
        ("", 1),
        ("/a", 1),
        ("/b/c", 1),
        ("/a", 2),
        ("/a", 2),
    ]


@cache
def ordinary_cost():
    """Return the cost of parsing an ordinary text of the same size."""
    return cost(problems_of, json.dumps(["x" * 100] * 9_000).encode())


@rows(
    "data",
    [
        b'["' + b"\\" * LARGEST_MANIFEST,
        b'["' + b"\\u0061" * 170_000,
        b'{"a": ' + b" " * 1_000_000,
        b"[" + b'{"a":1,"a":1},' * 6_000,
        b"9" * 1_000_000,
        b'[{"' + b"k" * 200 + b'":' + b"[" * 40 + b'"\\q',
    ],
)
def test_hostile_texts_are_refused_quickly(data):
    """Rejecting a text within the limits takes not much longer than parsing an ordinary one."""
    assert problems_of(data[:LARGEST_MANIFEST])
    assert cost(problems_of, data[:LARGEST_MANIFEST]) < 30 * ordinary_cost()
