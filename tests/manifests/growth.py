"""How the cost of something grows with its size, measured within one run: no absolute times."""

from __future__ import annotations

import time


def cost(work, *arguments):
    """Return the least processor time of this thread that some calls took."""
    times = []
    for _ in range(3):
        begin = time.thread_time()
        work(*arguments)
        times.append(time.thread_time() - begin)
    return min(times)


def is_linear(work, make, small=250, factor=8):
    """Tell whether work on something a few times as large costs about as many times as much, and not its square."""
    return cost(work, make(small * factor)) < cost(work, make(small)) * factor * factor / 2
