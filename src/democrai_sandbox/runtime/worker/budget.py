"""Rate limit for messages that a worker sends without being asked.

Replies to calls are not counted. A worker that has used up its budget is read more slowly, which code that waits for
each answer only notices as a delay. A worker that does not wait fills its socket: if many messages stay queued for a
while, it is flooding and is stopped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

_BYTES_PER_VALUE = 32
"""Cost of a value in addition to its bytes: a small text can decode to many objects."""


class Allowance(NamedTuple):
    """Limits of a worker per second: messages, bytes, and processor seconds that the host needs to handle them."""

    messages: float = 2_000
    bytes: float = 16 * 1024 * 1024
    seconds: float = 0.15
    burst: float = 5.0
    """Burst capacity, in seconds of these rates."""
    patience: float = 1.5
    """Seconds for which more than the following may be queued."""
    waiting_messages: int = 128
    waiting_bytes: int = 128 * 1024


class Budget:
    """Budget of one worker, over all its sockets."""

    def __init__(self, clock: Callable[[], float], allowance: Allowance, largest: int) -> None:
        """Start with a full budget, large enough for one frame of the largest size."""
        self._clock = clock
        self.allowance = allowance
        self._rates = (allowance.messages, allowance.bytes, allowance.seconds)
        most = [rate * allowance.burst for rate in self._rates]
        most[1] += largest
        self._full = tuple(most)
        self._left = most.copy()
        self._filled_at = clock()
        self._strained_since: float | None = None

    def charge(self, size: int, values: int, seconds: float) -> None:
        """Count a message."""
        left = self._left
        left[0] -= 1
        left[1] -= size + _BYTES_PER_VALUE * values
        left[2] -= seconds

    def wait(self) -> float:
        """Return the seconds until all parts of the budget are positive; 0 if they are now."""
        if min(self._left) > 0:
            return 0.0
        now = self._clock()
        passed, self._filled_at = now - self._filled_at, now
        filled = zip(self._full, self._left, self._rates, strict=True)
        self._left = [min(full, left + rate * passed) for full, left, rate in filled]
        return max(0.0, *(-left / rate for left, rate in zip(self._left, self._rates, strict=True)))

    def is_flooded(self, messages: int, size: int) -> bool:
        """Return whether too much has been queued for too long. Call it only while the budget is used up."""
        if messages < self.allowance.waiting_messages and size < self.allowance.waiting_bytes:
            self._strained_since = None
            return False
        now = self._clock()
        if self._strained_since is None:
            self._strained_since = now
        return now - self._strained_since >= self.allowance.patience
