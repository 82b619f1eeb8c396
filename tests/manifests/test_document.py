"""The strict reader of JSON: positions, and everything that is refused."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from democrai_sandbox.manifests.document import LARGEST_MANIFEST, MOST_VALUES, read_document
from democrai_sandbox.manifests.problems import ManifestError

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
    """The problems of a text, those that ended the reading and those that did not."""
    try:
        return read_document(data).problems
    except ManifestError as error:
        return error.problems


@given(JSON, st.sampled_from([None, 2]), st.booleans())
def test_reads_what_the_standard_library_writes(value, indent, ascii_only):
    """Every JSON value comes back as it was."""
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    data = text.encode("utf-8", "surrogatepass") if ascii_only else text
    document = read_document(data)
    assert document.value == value
    assert document.problems == ()


@given(st.text(alphabet='{}[]",:\\u0019 \t\n-+.eEtrufalsnNIy/*#\x00\ufeff', max_size=40) | st.text())
def test_never_accepts_what_the_standard_library_refuses(text):
    """Whatever the text, it is refused by name or read as json.loads reads it."""
    try:
        document = read_document(text)
    except ManifestError:
        return
    if not document.problems:
        assert document.value == json.loads(text)


@given(st.binary())
def test_any_bytes_are_read_or_refused(data):
    """No bytes lead to another error than the one for bad manifests."""
    for problem in problems_of(data):
        assert problem.message


def test_every_value_has_its_position():
    """Lines and columns count from one, in characters; a pointer that leads nowhere means what is around it."""
    document = read_document('{\n  "a": [1,\n    {"ü/~": "x"}],\r\n\t"b": null}\n')
    assert document.place("") == (1, 1)
    assert document.place("/a") == (2, 8)
    assert document.place("/a/0") == (2, 9)
    assert document.place("/a/1") == (3, 5)
    assert document.place("/a/1/ü~1~0") == (3, 13)
    assert document.place("/b") == (4, 7)
    for missing in ("/a/2", "/a/x", "/a/-1", "/a/00", "/a/99999999999"):
        assert document.place(missing) == (2, 8)


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("", 1, 1, "ends here"),
        ("  \n ", 2, 2, "ends here"),
        ("{", 1, 2, "ends here"),
        ('{"a"', 1, 5, "expected ':'"),
        ('{"a" 1}', 1, 6, "expected ':'"),
        ('{"a": 1,}', 1, 8, "nothing follows"),
        ("[1,\n]", 1, 3, "nothing follows"),
        ("[1 2]", 1, 4, "expected ',' or ']'"),
        ('{"a": 1 "b": 2}', 1, 9, "expected ',' or '}'"),
        ("{a: 1}", 1, 2, "double quotes"),
        ("{'a': 1}", 1, 2, "double quotes"),
        ("['a']", 1, 2, "double quotes"),
        ("// x\n{}", 1, 1, "no comments"),
        ('{"a": 1 /* x */}', 1, 9, "no comments"),
        ("# x\n{}", 1, 1, "no comments"),
        ("{} {}", 1, 4, "nothing may follow"),
        ("{}\n}", 2, 1, "nothing may follow"),
        ("[True]", 1, 2, "did you mean 'true'"),
        ("[None]", 1, 2, "did you mean 'null'"),
        ("[yes]", 1, 2, "did you mean '\"yes\"'"),
        ('["a', 1, 2, "not closed"),
        ('["a\nb"]', 1, 4, "U+000A"),
        ('["\\x"]', 1, 3, "no escape"),
        ('["\\u12g4"]', 1, 3, "no escape"),
        ("[01]", 1, 2, "zeros in front"),
        ("[0x10]", 1, 2, "decimal digits"),
        ("[+1]", 1, 2, "expected a value"),
        ("[.5]", 1, 2, "expected a value"),
        ("[NaN]", 1, 2, "NaN is not JSON"),
        ("[1, -Infinity]", 1, 5, "-Infinity is not JSON"),
        ("[1e999]", 1, 2, "too large"),
        ("[" + "1" * 65 + "]", 1, 2, "too large or too long"),
        ('{"a": 1,\n "a": 2}', 2, 2, "given twice"),
        ('{"x": {"a": 1, "\\u0061": 2}}', 1, 16, "given twice"),
        ('{"' + "k" * 257 + '": 1}', 1, 2, "longer than 256"),
        ("[" * 65, 1, 65, "nested more than 64"),
        ("[" * 100_000, 1, 65, "nested more than 64"),
        ('{"a":' * 65, 1, 64 * 5 + 1, "nested more than 64"),
        ("\ufeff{}", 1, 1, "byte-order mark"),
        (b"\xef\xbb\xbf{}", 1, 1, "byte-order mark"),
        (b'{\n "\xc3\xbc": "\xff"}', 2, 8, "not UTF-8 (byte 0xff)"),
        (b"\xff\xfe{\x00}\x00", 1, 1, "not UTF-8"),
        (b'{"a": "\xed\xa0\x80"}', 1, 8, "not UTF-8"),
        ("[" + "0," * MOST_VALUES + "0]", 1, 2 * MOST_VALUES, "more than 20,000 values"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(text, line, column, words):
    """Each kind of fault is one problem with its line and column."""
    (problem,) = problems_of(text)
    assert words in str(problem)
    assert (problem.line, problem.column) == (line, column)


def test_deep_and_large_but_allowed():
    """Exactly as deep, as long and as many as allowed is read."""
    assert read_document("[" * 64 + "]" * 64).problems == ()
    assert len(read_document("[" + "0," * (MOST_VALUES - 2) + "0]").value) == MOST_VALUES - 1
    assert read_document(b" " * (LARGEST_MANIFEST - 2) + b"{}").value == {}


@pytest.mark.parametrize(
    "data", [b" " * LARGEST_MANIFEST + b"{}", " " * LARGEST_MANIFEST + "{}", "ü" * LARGEST_MANIFEST, b"[" * 10_000_000]
)
def test_too_large_is_refused_unread(data):
    """More than a mebibyte is one problem, whatever it holds."""
    (problem,) = problems_of(data)
    assert "larger than 1,048,576 bytes" in problem.message


def test_faults_that_do_not_end_the_reading_are_told_together():
    """Repeated keys and words that are no numbers are all told, each at its pointer."""
    found = problems_of('\ufeff{"a": NaN, "b": {"c": 1, "c": 2},\n "a": 1e999}')
    assert [(problem.pointer, problem.line) for problem in found] == [
        ("", 1),
        ("/a", 1),
        ("/b/c", 1),
        ("/a", 2),
        ("/a", 2),
    ]


@pytest.mark.parametrize(
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
    """No text within the limits takes long to be refused."""
    begin = time.process_time()
    assert problems_of(data[:LARGEST_MANIFEST])
    assert time.process_time() - begin < 2
