"""JSON of plain data."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from democrai_sandbox.console.render import PlainResponse, jsonable, speakable

characters = st.characters(codec=None, exclude_categories=())
texts = st.text(characters)
keys = texts | st.integers() | st.booleans() | st.none() | st.floats()
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(keys, inner) | st.tuples(inner),
)


@given(values)
def test_any_plain_data_is_told(value):
    """Every result of an extension becomes strict JSON."""
    body = PlainResponse(jsonable(value)).body
    json.loads(body.decode("ascii"), parse_constant=lambda name: 1 / 0).__repr__().encode("utf-8", "strict")


@given(texts)
def test_texts_stay(text):
    """Texts stay unchanged, except for lone surrogates, which are escaped."""
    speakable(text).encode()
    if not any(0xD800 <= ord(character) < 0xE000 for character in text):
        assert speakable(text) == text


def test_bytes_and_odd_numbers():
    """Bytes become base64, numbers that are not finite become texts."""
    assert jsonable({1: b"\x00\xff", "n": float("nan"), None: (float("-inf"),)}) == {
        "1": {"base64": "AP8="},
        "n": "nan",
        "null": ["-inf"],
    }
