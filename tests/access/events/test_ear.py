"""What a node is told of the many things that are heard."""

from __future__ import annotations

import time

from democrai_sandbox.access.events.ear import Ear, Inbox
from tests.access.events.nodes import Heard


def test_of_many_generations_the_highest_is_kept():
    """In whatever order they come."""
    inbox = Inbox()
    for generation in (3, 7, 5):
        inbox.hear(generation)
    assert inbox.take() == [7]


def test_a_gap_and_a_generation_are_both_told():
    """The gap first: whoever looks for everything then knows of the other already."""
    inbox = Inbox()
    inbox.hear(3)
    inbox.miss()
    inbox.miss()
    assert inbox.take() == [None, 3]


def test_a_closed_inbox_gives_out_nothing():
    """Also what was in it."""
    inbox = Inbox()
    inbox.hear(3)
    inbox.close()
    assert inbox.take() == []


def test_a_flood_does_not_keep_a_node_busy(no_thread_stays):
    """However many events come in, a node is called about a hundred times a second, and learns of the last one."""
    ear, heard = Ear(name="events-test"), Heard()
    ear.start(heard)
    begin, generation = time.monotonic(), 0
    while time.monotonic() < begin + 0.5:
        generation += 1
        ear.inbox.hear(generation)
    assert heard.reaches(generation)
    calls, took = len(heard.told), time.monotonic() - begin
    ear.stop()
    assert calls <= took * 100 + 2
    assert generation > 10 * calls
