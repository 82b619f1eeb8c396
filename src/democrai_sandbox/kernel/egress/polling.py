"""Waiting for descriptors, whatever their numbers: ``select`` cannot with those of one that has many open."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def readable(descriptors: Iterable[int], seconds: float) -> set[int]:
    """Return those that have something to read, or whose other end is closed; wait until there are some."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(max(0.0, seconds) * 1000)}
