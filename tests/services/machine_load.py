"""How busy the machine is: what a time limit has to be multiplied with to mean the same as on an idle one."""

from __future__ import annotations

import time

_WORK = 0.05


def slowness():
    """How many times as long as on an idle machine work takes now: the time that passes by the time that is worked."""
    begun, worked = time.perf_counter(), time.thread_time()
    while time.thread_time() - worked < _WORK:
        pass
    return max(1.0, (time.perf_counter() - begun) / _WORK)


class Paced:
    """Measures a block: its ``seconds`` are those of an idle machine, as far as the time before and after tells.

    with Paced() as taken:
        work()
    assert taken.seconds < 2
    """

    seconds = 0.0

    def __enter__(self):
        self._slowness = slowness()
        self._begun = time.perf_counter()
        return self

    def __exit__(self, *_):
        passed = time.perf_counter() - self._begun
        self.seconds = passed / max(self._slowness, slowness())
