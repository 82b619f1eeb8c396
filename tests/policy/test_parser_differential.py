"""Clients and standards read an accepted URL as we do, or reject it.

The number of URLs depends on the profile of the property tests: the long run is `make fuzz`.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from democrai_sandbox.policy import InvalidInputError, NetworkTargetMissingError, parse_request_url
from tests.policy.differential import Tally, compare, explore
from tests.policy.url_readers import READERS
from tests.policy.url_targets import GROUPS
from tests.services.rows import rows

SHARES = {"grammar": 50, "insertions": 200, "twists": 100, "hosts": 70, "scripts": 30, "soup": 15}
"""Number of URLs of each generator per example of a property test."""


def test_each_generator_has_its_share():
    """No generator is left out of the comparison."""
    assert set(SHARES) == set(GROUPS)


@pytest.mark.parametrize("group", SHARES)
def test_all_clients_read_an_accepted_url_the_same(group):
    """Scheme, host and port are the same, and the path unless it is marked as ambiguous."""
    profile, tally = settings(), Tally()
    share = SHARES[group] * min(profile.max_examples, 220)  # tests.policy.fuzz compares a million
    explore(group, share, tally, 0 if profile.derandomize else random.randrange(2**32))
    assert tally.generated == tally.accepted + tally.refused >= share
    assert tally.refused > tally.generated // 10
    assert tally.accepted > tally.generated // 100
    for name in READERS:
        # A reader that rejects everything would agree with anything.
        assert tally.read[name] > tally.accepted // 8, name


DISAGREEMENTS = [
    "http://a.com\\@b.com/",
    "http://a.com\t.b.com/",
    "http://0x7f.1/",
    "http://2130706433/",
    "http://127.1/",
    "http://0177.0.0.1/",
    "http://a%2ecom/",
    "http://u@a.com/",
    "http://a.com:/",
    "http://\u24dbocalhost/",
    "http://x.\u03a30.de/",
    "http://fa\u00df.de/",
    "http:a.com",
    "http://[::1%25lo]/",
    "http://a.com/v1#/../admin#x",
    "http://a.com/x/../y",
    "http://a.com/x/%2e%2e/y",
    "http://a.com//admin",
]


@rows("text", DISAGREEMENTS, ids=ascii)
def test_what_clients_disagree_about_is_refused_or_marked(text):
    """Each of these has two readings, or a reader that rejects it."""
    readings = set()
    for read in READERS.values():
        try:
            scheme, host, port, path = read(text)
        except Exception:
            readings.add(None)
        else:
            readings.add((scheme, host, port, path))
    assert len(readings) > 1
    try:
        target = parse_request_url(text)
    except InvalidInputError:
        return
    assert target.ambiguous


@rows(
    ("text", "lax"),
    [
        ("http://a.com\\@b.com/", "http://a.com/"),
        ("http://0x7f.1/", "http://0.0.0.1/"),
        ("http://a.com:80@b.com/", "http://a.com/"),
        ("http://a.com/x/../y", "http://a.com/y"),
    ],
)
def test_the_comparison_notices_a_lax_parser(text, lax, monkeypatch):
    """A parser that accepted one of the known holes would be detected."""
    monkeypatch.setattr("tests.policy.differential.parse_request_url", lambda given: parse_request_url(lax))
    with pytest.raises(AssertionError, match="reads"):
        compare(text, Tally())


# --- odd input -------------------------------------------------------------------------------------------------------

LONGEST = 65535


@rows("head", ["http://a.com/", "http://a.com/?", "http://a.com/#", "http://a.com/%41"])
@rows("filler", ["a", "/", "%41", "é", "a/", ";", "&a="])
def test_urls_are_read_up_to_their_greatest_length(head, filler):
    """The longest URL, 64 KiB minus one, is parsed like a short one, and a longer one is rejected."""
    text = (head + filler * LONGEST)[:LONGEST]
    compare(text, Tally())
    with pytest.raises(InvalidInputError, match=str(LONGEST)):
        parse_request_url((head + filler * LONGEST)[: LONGEST + 1])


@rows("value", [b"http://a.com", bytearray(b"http://a.com"), memoryview(b"http://a.com"), None, 80, ["http://a.com"]])
def test_what_is_no_text_is_refused(value):
    """Nothing is decoded or converted before a decision."""
    with pytest.raises(InvalidInputError):
        parse_request_url(value)


def test_nothing_is_its_own_error():
    """An empty URL has a separate error."""
    with pytest.raises(NetworkTargetMissingError):
        parse_request_url("")


class Forged(str):
    """Text that claims to be another one in all its methods."""

    __slots__ = ()

    def _lie(self, *args, **kwargs):
        return "http://good.example/"

    __str__ = __repr__ = __format__ = __getitem__ = __add__ = __iter__ = _lie
    lower = upper = strip = casefold = partition = rpartition = split = replace = removeprefix = _lie
    encode = lambda self, *args: b"http://good.example/"
    isascii = startswith = endswith = __contains__ = __eq__ = lambda self, *args: True
    __len__ = lambda self: 20
    __hash__ = lambda self: hash("http://good.example/")


@given(st.one_of(*GROUPS.values()))
def test_a_subclass_is_read_by_its_characters(texts):
    """Lying methods are not called."""
    for text in texts[:: max(1, len(texts) // 50)]:
        try:
            target = parse_request_url(text)
        except InvalidInputError:
            with pytest.raises(InvalidInputError):
                parse_request_url(Forged(text))
        else:
            assert parse_request_url(Forged(text)) == target
