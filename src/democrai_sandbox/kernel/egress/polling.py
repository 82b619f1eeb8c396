"""Wait for descriptors with any number; ``select`` fails for numbers above 1023."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def readable(descriptors: Iterable[int], seconds: float) -> set[int]:
    """Wait until some descriptors are readable or closed by the other end; return them."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(max(0.0, seconds) * 1000)}
