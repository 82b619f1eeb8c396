"""Comparison of our URL parser with those of the clients, with counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, given, seed, settings

from democrai_sandbox.policy import InvalidInputError, NetworkTarget, parse_request_url
from tests.policy.url_readers import READERS, decoded
from tests.policy.url_targets import GROUPS

SMALL = 5_000
"""Up to this number of targets, rounds are short, because a long one would generate too many."""
ROUND = settings(
    max_examples=50,
    database=None,
    deadline=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)


@dataclass
class Tally:
    """Number of distinct targets, and their results."""

    seen: set[int] = field(default_factory=set)
    accepted: int = 0
    ambiguous: int = 0
    read: Counter[str] = field(default_factory=Counter)
    """Number of accepted targets that each reader accepts, by reader."""

    @property
    def generated(self) -> int:
        return len(self.seen)

    @property
    def refused(self) -> int:
        return self.generated - self.accepted


def compare(text: str, tally: Tally) -> None:
    """Fail if a reader parses an accepted URL differently."""
    identity = hash(text)
    if identity in tally.seen:
        return
    try:
        target = parse_request_url(text)
    except InvalidInputError:
        pass
    else:
        compare_readers(text, target, tally)
    # Only now, because a failing text must fail again when Hypothesis simplifies it.
    tally.seen.add(identity)


def compare_readers(text: str, target: NetworkTarget, tally: Tally) -> None:
    ours = "".join(f"/{segment}" for segment in target.path)
    for name, read in READERS.items():
        try:
            scheme, host, port, path = read(text)
        except Exception:
            continue  # a reader that rejects a URL does not connect
        tally.read[name] += 1
        same = (scheme, host) == (target.scheme, target.host) and port in (None, target.port)
        if not target.ambiguous:
            same = same and (path == ours or decoded(path) == decoded(ours))
        assert same, f"{text!a}: {name} reads {(scheme, host, port, path)!a}, we read {target!a}"
    tally.accepted += 1
    tally.ambiguous += target.ambiguous


def explore(group: str, count: int, tally: Tally, number: int) -> None:
    """Compare distinct targets of one group until `count` more exist; `number` seeds the generators."""
    wanted = tally.generated + count
    length = settings(ROUND, max_examples=5) if count <= SMALL else ROUND
    while tally.generated < wanted:
        explore_once(group, tally, number, length)
        number += 1


def explore_once(group: str, tally: Tally, number: int, length: settings) -> None:
    @seed(number)
    @length
    @given(GROUPS[group])
    def compare_batch(texts):
        for text in texts:
            compare(text, tally)

    compare_batch()
