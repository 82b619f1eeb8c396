"""Valid resume contexts and their round trip."""

from __future__ import annotations

import sys
import threading
import tracemalloc
from datetime import datetime
from enum import StrEnum

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from democrai_sandbox.access.resumptions import DEEPEST_CONTEXT, LONGEST_CONTEXT, decode_context, encode_context
from democrai_sandbox.errors import InvalidInputError
from tests.services.golden import sentence
from tests.services.rows import rows

plain = st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False, allow_infinity=False)
text = st.text(st.characters() | st.characters(categories=["Cs"]), max_size=30)
contexts = st.recursive(
    plain | text, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(text, inner, max_size=5), max_leaves=20
)


def same(one, other):
    """Return whether values are equal including types: 1, 1.0 and True differ, and so do 0.0 and -0.0."""
    return repr(one) == repr(other)


@given(contexts)
@example("\ud83d\ude00")  # two halves, which are not the character that they would form
@example({"\udcff": -0.0})
def test_what_was_encoded_comes_back(context):
    """Every JSON value survives the round trip, including types and odd characters."""
    assert same(decode_context(encode_context(context)), context)


@rows("letter", ["a", "\u00e4", "\U0001f600"])
def test_the_limit_is_exact(letter):
    """A context of exactly the limit is accepted; one byte more is rejected with its size."""
    width = len(letter.encode())
    count, rest = divmod(LONGEST_CONTEXT - 2, width)
    largest = letter * count + "x" * rest
    assert decode_context(encode_context(largest)) == largest
    with pytest.raises(InvalidInputError, match=str(LONGEST_CONTEXT)) as caught:
        encode_context(largest + "x")
    assert caught.value.problems[0].pointer == "/resume_context"


@rows(
    "make",
    [
        lambda: "x" * 10**7,
        lambda: [["x"] * 10] * 10**5,
        lambda: {"x" * 10**7: 1},
        lambda: [{str(number): number for number in range(20_000)}] * 10,
    ],
)
def test_what_is_far_too_large_is_refused_at_once(make):
    """A huge context is rejected before all of it is copied, which would take ten megabytes and more."""
    context = make()
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInputError, match=str(LONGEST_CONTEXT)) as caught:
            encode_context(context)
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()
    assert caught.value.problems[0].pointer == "/resume_context"


class Name(StrEnum):
    A = "a"


@rows(
    ("context", "pointer", "what"),
    [
        ({1, 2}, "", "set"),
        ({"a": [0, b"x"]}, "/a/1", "bytes"),
        ({"a/b": {"~": (1,)}}, "/a~1b/~0", "tuple"),
        ([{"x": datetime(2026, 1, 2)}], "/0/x", "datetime"),
        ([1, {2: 3}], "/1", "int"),
        ([float("nan")], "/0", "nan"),
        ({"a": float("-inf")}, "/a", "-inf"),
        ([Name.A], "/0", "'a'"),
        ([2**1024], "/0", "1024"),
        (object(), "", "object"),
    ],
)
def test_what_is_not_json_is_refused_with_its_place(context, pointer, what):
    """A value that JSON cannot represent is rejected with its pointer and type."""
    with pytest.raises(InvalidInputError) as caught:
        encode_context(context)
    (problem,) = caught.value.problems
    assert problem.pointer == "/resume_context" + pointer
    assert what in problem.message.split()
    sentence(f"{what} is not JSON", problem.message)


def test_code_of_the_context_is_never_run():
    """Subclasses of the plain types are rejected without calling their methods."""
    ran = []

    def note(*args, **kwargs):
        ran.append(args)
        raise AssertionError

    names = (
        "__iter__",
        "__len__",
        "__getitem__",
        "__str__",
        "__repr__",
        "__eq__",
        "__hash__",
        "__bool__",
        "__format__",
    )
    more = (
        "items",
        "keys",
        "copy",
        "bit_length",
        "encode",
        "__int__",
        "__float__",
        "__getattribute__",
        "__instancecheck__",
    )
    overrides = dict.fromkeys(names + more, note)

    class Meta(type):
        __eq__ = __hash__ = __instancecheck__ = __subclasscheck__ = note

    for base in (dict, list, str, int, float, object):
        value = Meta("Odd", (base,), overrides)()
        ran.clear()
        for context in (value, [value], {"a": value}):
            with pytest.raises(InvalidInputError):
                encode_context(context)
        assert ran == []


def test_nesting_has_a_limit():
    """The deepest context is accepted and one level more rejected; a context that contains itself is rejected too."""

    def nested(depth):
        return [nested(depth - 1)] if depth else 1

    deepest = nested(DEEPEST_CONTEXT)
    assert decode_context(encode_context(deepest)) == deepest
    circle, wide = [], []
    circle.append({"again": circle})
    wide.extend([wide] * 1000)
    endless = []
    for _ in range(100_000):
        endless = [endless]
    for context in (nested(DEEPEST_CONTEXT + 1), circle, wide, endless):
        with pytest.raises(InvalidInputError, match=rf"\b({DEEPEST_CONTEXT}|{LONGEST_CONTEXT})\b") as caught:
            encode_context(context)
        assert caught.value.problems[0].pointer == "/resume_context"
    while endless:  # dismantled by hand, because some interpreters would recurse
        endless = endless[0]


def test_a_context_that_changes_meanwhile_is_taken_as_it_was_at_some_moment():
    """Another thread that changes the context causes a consistent copy or a rejection."""
    context = {"list": [], "dict": {}}
    stop = threading.Event()

    def change():
        number = 0
        while not stop.is_set():
            number += 1
            context["list"].append(number)
            context["dict"][str(number % 50)] = number
            context["dict"].pop(str((number * 7) % 50), None)
            if len(context["list"]) > 100:
                context["list"].clear()

    thread, interval = threading.Thread(target=change, daemon=True), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        for _ in range(100):
            assert set(decode_context(encode_context(context))) == {"list", "dict"}
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join(30)
