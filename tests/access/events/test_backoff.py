"""Reconnection after a lost connection."""

from __future__ import annotations

from democrai_sandbox.access.events.bus import Backoff


def test_delays_double_up_to_the_longest_and_begin_anew_after_a_success():
    """Each delay is between half of its full length and the full length."""
    backoff = Backoff(first=0.1, longest=2.0)
    for _ in range(2):
        for full in (0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0):
            assert full / 2 <= backoff.next() <= full
        backoff.reset()
