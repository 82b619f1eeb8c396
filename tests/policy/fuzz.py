"""Long comparison of URL parsers: `make fuzz`, or python -m tests.policy.fuzz TARGETS SEED."""

from __future__ import annotations

import random
import sys
import time

from tests.policy.differential import Tally, explore
from tests.policy.url_readers import READERS
from tests.policy.url_targets import GROUPS

TARGETS = 1_000_000
STEPS = 10
"""Number of turns per generator; a line reports the progress every few seconds."""


def main(targets: int, number: int) -> int:
    print(f"fuzz: {targets:,} targets, seed {number}, readers: {', '.join(READERS)}", flush=True)
    tally, begin = Tally(), time.monotonic()
    share = -(-targets // (len(GROUPS) * STEPS))
    for step in range(STEPS):
        for group in GROUPS:
            # Far enough apart for separate seeds of the rounds in between.
            explore(group, share, tally, number + step * 1_000_000)
        print(f"fuzz: {time.monotonic() - begin:5.0f} s, {figures(tally)}", flush=True)
    read = ", ".join(f"{name} {tally.read[name]:,}" for name in READERS)
    print(f"fuzz: done, no two readings of an accepted target. {figures(tally)}\nfuzz: read by {read}")
    return 0


def figures(tally: Tally) -> str:
    return (
        f"generated {tally.generated:,}, accepted {tally.accepted:,}, refused {tally.refused:,}, "
        f"ambiguous {tally.ambiguous:,}"
    )


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:]]
    sys.exit(main(*given, *[TARGETS, random.randrange(2**32)][len(given) :]))
