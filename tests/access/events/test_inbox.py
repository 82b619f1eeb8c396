"""Delivery of many received events to a node."""

from __future__ import annotations

import time

from democrai_sandbox.access.events.bus import EventInbox
from tests.access.events.nodes import Heard


def test_of_many_generations_the_highest_is_kept():
    """The order of events does not matter."""
    inbox = EventInbox()
    for generation in (3, 7, 5):
        inbox.hear(generation)
    assert inbox.take() == [7]


def test_a_gap_and_a_generation_are_both_told():
    """The gap is delivered first, so that one read also covers the generation."""
    inbox = EventInbox()
    inbox.hear(3)
    inbox.miss()
    inbox.miss()
    assert inbox.take() == [None, 3]


def test_a_closed_inbox_gives_out_nothing():
    """A closed inbox also drops its content."""
    inbox = EventInbox()
    inbox.hear(3)
    inbox.stop()
    assert inbox.take() == []


def test_a_flood_does_not_keep_a_node_busy(no_thread_stays):
    """A node is called at most about a hundred times a second, and gets the last event."""
    inbox, heard = EventInbox(), Heard()
    inbox.start("events-test", heard)
    begin, generation = time.monotonic(), 0
    while time.monotonic() < begin + 0.5:
        generation += 1
        inbox.hear(generation)
    assert heard.reaches(generation)
    calls, took = len(heard.told), time.monotonic() - begin
    inbox.stop()
    assert calls <= took * 100 + 2
    assert generation > 10 * calls
