"""Keeping pooled connections apart: each subject has a pool of its own beside the one of the host."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")
_NAME = "_democrai_sandbox_pools"
_MOST_SUBJECTS = 32


class Apart(Generic[_T]):
    """What the subjects of one shared client use in place of its pool, by their keys; the least used is given up."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pools: dict[int, _T] = {}
        self._latest = 0

    def get(self, key: int, make: Callable[[Any], _T], owner: Any) -> tuple[_T, list[_T]]:
        """Return the pool of a subject, and those to be closed because too many others were used since."""
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
        """Tell whether closing the pool would cut off what is under way."""
        return False

    def find(self, key: int) -> _T | None:
        """Return the pool of a subject, if it has one."""
        return self._pools.get(key)

    def drain(self) -> list[_T]:
        """Return all pools, to be closed, and forget them."""
        with self._lock:
            pools = list(self._pools.values())
            self._pools.clear()
            return pools


def apart(owner: Any, kind: type[Apart[_T]] = Apart) -> Apart[_T]:
    """Return the pools that lie beside the one of this object."""
    found: Apart[_T] | None = owner.__dict__.get(_NAME)
    return owner.__dict__.setdefault(_NAME, kind()) if found is None else found


def drained(owner: Any) -> list[Any]:
    """Return the pools beside the one of this object, to be closed with it."""
    found = owner.__dict__.pop(_NAME, None)
    return [] if found is None else found.drain()


def without_pools(owner: Any) -> None:
    """Make a copy of an object one that has no pools beside it."""
    owner.__dict__.pop(_NAME, None)
