"""Growth of cost with size, measured within one run without absolute times."""

from __future__ import annotations

import time


def cost(work, *arguments):
    """Return the minimum processor time of this thread over some calls."""
    times = []
    for _ in range(3):
        begin = time.thread_time()
        work(*arguments)
        times.append(time.thread_time() - begin)
    return min(times)


def is_linear(work, make, small=250, factor=8):
    """Return whether the cost grows linearly with the size, not quadratically."""
    return cost(work, make(small * factor)) < cost(work, make(small)) * factor * factor / 2
