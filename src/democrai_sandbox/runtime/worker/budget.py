"""How much a worker may say of its own accord: so much a second, in the long run.

Answers to calls are not counted, because each was asked for. A worker that has used its budget up is read more slowly,
which is all that code notices that waits for each answer. One that does not wait fills its socket meanwhile: a worker
that has many messages waiting for a while floods, and is ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

_BYTES_PER_VALUE = 32
"""What a value costs besides its bytes: a small text can become very much."""


class Allowance(NamedTuple):
    """What a worker may say, a second: messages, bytes, and what the host needs of its processor to hear them."""

    messages: float = 2_000
    bytes: float = 16 * 1024 * 1024
    seconds: float = 0.15
    burst: float = 5.0
    """Seconds of all this that may be used at once."""
    patience: float = 1.5
    """Seconds for which it may have more waiting than this."""
    waiting_messages: int = 128
    waiting_bytes: int = 128 * 1024


class Budget:
    """The budget of one worker, over all its sockets."""

    def __init__(self, clock: Callable[[], float], allowance: Allowance, largest: int) -> None:
        """Begin with a full one, which one of the largest frames does not use up."""
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
        """Return how many seconds it takes until there is something left of everything; 0 when there is now."""
        if min(self._left) > 0:
            return 0.0
        now = self._clock()
        passed, self._filled_at = now - self._filled_at, now
        filled = zip(self._full, self._left, self._rates, strict=True)
        self._left = [min(full, left + rate * passed) for full, left, rate in filled]
        return max(0.0, *(-left / rate for left, rate in zip(self._left, self._rates, strict=True)))

    def is_flooded(self, messages: int, size: int) -> bool:
        """Tell whether too much has been waiting for too long, by what is waiting while nothing is left."""
        if messages < self.allowance.waiting_messages and size < self.allowance.waiting_bytes:
            self._strained_since = None
            return False
        now = self._clock()
        if self._strained_since is None:
            self._strained_since = now
        return now - self._strained_since >= self.allowance.patience
