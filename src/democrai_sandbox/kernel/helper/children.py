"""Children of the application: sets with the same endpoints, and a cgroup for each child.

The rules belong to the set, so another child of a subject only needs a folder, not a packet filter change. The cgroup
per child serves to kill a child with all its descendants.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from .answers import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .cgroups import Cgroup
    from .policy import Endpoint
    from .tables import Allow

MOST_SETS = 128
MOST_CHILDREN = 4096
_UNUSED_SECONDS = 600.0
_MOST_ADDRESSES = 64
_SET, _CHILD = "set_", "child_"


@dataclass(slots=True)
class ChildSet:
    """Children with the same endpoints."""

    number: int
    cgroup: Cgroup
    endpoints: tuple[Endpoint, ...] | None
    """None for a set of a previous helper, whose rules stay unchanged until it is empty."""
    digest: str
    used: float
    allowed: frozenset[Allow] = frozenset()
    """Destinations at the last resolution of the endpoints."""
    children: set[int] = field(default_factory=set)

    @property
    def part(self) -> str:
        """Name of its chain."""
        return f"S{self.number}"


class Child(NamedTuple):
    """Cgroup of one child."""

    number: int
    set: ChildSet
    cgroup: Cgroup
    made: float


class Children:
    """Sets and children of one application."""

    def __init__(self, cgroup: Cgroup, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with no children, below the application's cgroup."""
        self._cgroup = cgroup
        self._clock = clock
        self._sets: dict[int, ChildSet] = {}
        self._children: dict[int, Child] = {}
        self._last_set = 0
        self._last_child = 0

    @property
    def sets(self) -> tuple[ChildSet, ...]:
        """Sets of children."""
        return tuple(self._sets.values())

    def __len__(self) -> int:
        return len(self._children)

    def known(self, endpoints: Iterable[Endpoint]) -> ChildSet | None:
        """Return the existing set with these endpoints, with their new addresses added."""
        wanted = tuple(endpoints)
        digest = _digest(wanted)
        found = next((each for each in self._sets.values() if each.digest == digest), None)
        if found is not None:
            found.used = self._clock()
            found.endpoints = _merged(found.endpoints or (), wanted)
        return found

    def make(self, endpoints: Iterable[Endpoint]) -> ChildSet:
        """Create a set with these endpoints. Children may enter only after its rules are applied."""
        if len(self._sets) >= MOST_SETS:
            text = f"the limit of {MOST_SETS} different endpoint lists is reached"
            raise Refused("busy", text, "wait until some children have ended, or release them")
        wanted = tuple(endpoints)
        self._last_set += 1
        group = self._cgroup.below(f"{_SET}{self._last_set}")
        made = ChildSet(self._last_set, group, wanted, _digest(wanted), self._clock())
        group.make()
        self._sets[made.number] = made
        return made

    def admit(self, child_set: ChildSet) -> tuple[Child, int]:
        """Create the cgroup of another child in a set with rules; return it with the descriptor for joining it."""
        if len(self._children) >= MOST_CHILDREN:
            raise Refused("busy", f"the limit of {MOST_CHILDREN} children is reached", "release ended children")
        self._last_child += 1
        child = Child(self._last_child, child_set, child_set.cgroup.below(f"{_CHILD}{self._last_child}"), self._clock())
        child.cgroup.make()
        try:
            descriptor = child.cgroup.opened()
        except Refused:
            child.cgroup.remove()
            raise
        self._children[child.number] = child
        child_set.children.add(child.number)
        return child, descriptor

    def release(self, number: int) -> bool:
        """Kill a child with all its descendants; return whether it existed."""
        child = self._children.get(number)
        if child is None:
            return False
        if not child.cgroup.kill() or not child.cgroup.remove():
            text = f"child {number} was killed but has not ended yet"
            raise Refused("busy", text, "release it again; a process that waits for a disk ends when the disk responds")
        del self._children[number]
        child.set.children.discard(number)
        return True

    def drop(self, child_set: ChildSet) -> None:
        """Remove a set from the list without removing its cgroup."""
        for number in tuple(child_set.children):
            self._children.pop(number, None)
        self._sets.pop(child_set.number, None)

    def forget(self, child_set: ChildSet) -> None:
        """Remove a set and its cgroup. It must have no rules."""
        child_set.cgroup.kill()
        child_set.cgroup.remove()
        self.drop(child_set)

    def collect(self) -> tuple[ChildSet, ...]:
        """Remove the cgroups of children that ended without a release; return inherited sets that are now empty."""
        oldest = self._clock() - _UNUSED_SECONDS
        for child in tuple(self._children.values()):
            # A new child may not have entered its cgroup yet.
            if child.made < oldest and not child.cgroup.populated() and child.cgroup.remove():
                del self._children[child.number]
                child.set.children.discard(child.number)
        return tuple(s for s in self._sets.values() if s.endpoints is None and not s.cgroup.populated())

    def take_over(self) -> None:
        """Register the cgroups of a previous helper."""
        for folder in self._cgroup.inside():
            number = _number(folder, _SET)
            if number is None or number in self._sets:
                continue
            self._last_set = max(self._last_set, number)
            found = self._sets[number] = ChildSet(number, folder, None, "", self._clock())
            for group in folder.inside():
                child = _number(group, _CHILD)
                if child is not None:
                    self._last_child = max(self._last_child, child)
                    self._children[child] = Child(child, found, group, self._clock())
                    found.children.add(child)

    def idle(self) -> ChildSet | None:
        """Return the set to remove before another one is created: the least recently used one without children."""
        if len(self._sets) < MOST_SETS:
            return None
        return min((s for s in self._sets.values() if not s.children), key=lambda s: s.used, default=None)


def _number(group: Cgroup, prefix: str) -> int | None:
    text = group.name.removeprefix(prefix)
    return int(text) if group.name.startswith(prefix) and text.isascii() and text.isdigit() else None


def _merged(known: tuple[Endpoint, ...], told: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
    """Return the endpoints with the addresses of both: a running child may be connected to its addresses."""
    before = {(each.host, each.port, each.protocol): each.addresses for each in known}
    merged = []
    for each in told:
        addresses = dict.fromkeys((*each.addresses, *before.get((each.host, each.port, each.protocol), ())))
        merged.append(each._replace(addresses=tuple(addresses)[:_MOST_ADDRESSES]))
    return tuple(merged)


def _digest(endpoints: tuple[Endpoint, ...]) -> str:
    """Return the digest for comparing endpoint lists. It excludes addresses, which change over time."""
    keys = sorted({(each.host, each.port, each.protocol) for each in endpoints})
    return hashlib.sha256(json.dumps(keys).encode()).hexdigest()
