"""Separate connection pools: each subject has a pool next to that of the host."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")
_NAME = "_democrai_sandbox_pools"
_MOST_SUBJECTS = 32


class Apart(Generic[_T]):
    """Pools of the subjects that share one client, by subject key; the least recently used one is closed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pools: dict[int, _T] = {}
        self._latest = 0

    def get(self, key: int, make: Callable[[Any], _T], owner: Any) -> tuple[_T, list[_T]]:
        """Return the pool of a subject, and surplus pools to be closed."""
        if key == self._latest and (found := self._pools.get(key)) is not None:
            return found, []
        with self._lock:
            pool = self._pools.pop(key, None)
            if pool is None:
                pool = make(owner)
            self._pools[key] = pool
            self._latest = key
            surplus = [old for old in list(self._pools)[:-_MOST_SUBJECTS] if not self.is_busy(self._pools[old])]
            return pool, [self._pools.pop(old) for old in surplus]

    def is_busy(self, pool: _T) -> bool:  # noqa: ARG002 - for pools that know it
        """Return whether closing the pool would interrupt running requests."""
        return False

    def find(self, key: int) -> _T | None:
        """Return the pool of a subject, if it has one."""
        return self._pools.get(key)

    def drain(self) -> list[_T]:
        """Remove and return all pools, to be closed."""
        with self._lock:
            pools = list(self._pools.values())
            self._pools.clear()
            return pools


def apart(owner: Any, kind: type[Apart[_T]] = Apart) -> Apart[_T]:
    """Return the subjects' pools of this object."""
    found: Apart[_T] | None = owner.__dict__.get(_NAME)
    return owner.__dict__.setdefault(_NAME, kind()) if found is None else found


def drained(owner: Any) -> list[Any]:
    """Remove and return the subjects' pools of this object, to be closed with it."""
    found = owner.__dict__.pop(_NAME, None)
    return [] if found is None else found.drain()


def without_pools(owner: Any) -> None:
    """Remove the subjects' pools from a copy of an object."""
    owner.__dict__.pop(_NAME, None)
