"""Valid and invalid events."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from democrai_sandbox.access.events.bus import LONGEST_MESSAGE, Event, decoded, new_node
from democrai_sandbox.access.events.ipc import FrameAssembler, StreamError, to_frame
from tests.access.events.forged import forged_events
from tests.services.rows import rows

GENERATIONS = st.integers(0, 2**63 - 1)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(node=st.text(max_size=100), generation=GENERATIONS, channel=st.text(max_size=64))
def test_an_event_is_read_as_it_was_written(node, generation, channel):
    """Every node, generation and channel survives the round trip."""
    event = Event(node, generation, channel)
    assert decoded(event.encoded()) == event


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_an_event_or_nothing(data):
    """Decoding any bytes raises nothing."""
    event = decoded(data)
    assert event is None or 0 <= event.generation < 2**63


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "v": st.just(1) | VALUES,
            "node": st.just("x") | VALUES,
            "generation": GENERATIONS | VALUES,
            "channel": st.just("access") | VALUES,
            "more": VALUES,
        },
    )
)
def test_only_the_right_types_make_an_event(fields):
    """Another version or a wrong type is rejected; additional fields are ignored."""
    event = decoded(json.dumps(fields).encode())
    right = (
        type(fields.get("v")) is int
        and fields["v"] == 1
        and type(fields.get("node")) is str
        and type(fields.get("channel")) is str
        and type(fields.get("generation")) is int
        and 0 <= fields["generation"] < 2**63
        and len(json.dumps(fields).encode()) <= LONGEST_MESSAGE
    )
    assert (event is not None) == right


def test_what_is_too_long_is_no_event():
    """A message that is too long is rejected even if it contains an event."""
    data = Event("x", 1, "access").encoded()
    assert decoded(data + b" " * (LONGEST_MESSAGE - len(data))) is not None
    assert decoded(data + b" " * (LONGEST_MESSAGE - len(data) + 1)) is None


def test_the_longest_names_fit(monkeypatch):
    """A node on a host with a long and odd name can announce the highest generation on the longest channel."""
    monkeypatch.setattr("socket.gethostname", lambda: '"\\\u00fc' * 100)
    node = new_node()
    event = Event(node, 2**63 - 1, "c" * 64)
    assert decoded(event.encoded()) == event
    assert len(event.encoded()) < 512


def test_an_event_is_the_documented_json():
    """Other programs may read events."""
    fields = json.loads(Event("a:1:2:3", 5, "access").encoded())
    assert fields == {"v": 1, "node": "a:1:2:3", "generation": 5, "channel": "access"}


def test_forged_events_are_none():
    """The forged events of the bus tests are invalid."""
    events = [decoded(data) for data in forged_events("access")]
    assert [event for event in events if event is not None and event.channel == "access"] == []


@given(messages=st.lists(st.binary(min_size=1, max_size=300), max_size=8), cuts=st.lists(st.integers(1, 40)))
def test_messages_come_out_as_they_went_in(messages, cuts):
    """Messages survive any fragmentation of the stream."""
    data, frames, found = b"".join(map(to_frame, messages)), FrameAssembler(), []
    for cut in [*cuts, len(data)]:
        found += frames.feed(data[:cut])
        data = data[cut:]
    found += frames.feed(data)
    assert found == messages


@rows("length", [0, LONGEST_MESSAGE + 1, 2**32 - 1])
def test_a_length_that_no_message_has_is_refused(length):
    """An invalid length is rejected before anything is buffered; earlier messages are returned."""
    frames, found = FrameAssembler(), []
    with pytest.raises(StreamError):
        found.extend(frames.feed(to_frame(b"first") + length.to_bytes(4)))
