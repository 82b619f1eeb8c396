"""Resource limits of a child."""

from __future__ import annotations

import resource
from dataclasses import dataclass

_NAMES = ("address_space", "cpu_seconds", "open_files", "processes", "wall_seconds")
# Read before a subject could replace them.
_AS, _CPU, _NOFILE, _NPROC = resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """Limits of a child; None for no limit. Its children are counted separately."""

    address_space: int | None = None
    """Bytes."""
    cpu_seconds: int | None = None
    open_files: int | None = None
    """Highest descriptor number, plus one."""
    processes: int | None = None
    """Processes of the whole user, as counted by the kernel. Not enforced for root."""
    wall_seconds: int | None = None
    """Enforced by the spawn server, which then kills the child's group."""

    def __post_init__(self) -> None:
        for name in _NAMES:
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"the limit {name} must be a whole number above 0, or None: got {value!r}")

    def stricter(self, other: ResourceLimits) -> ResourceLimits:
        """Return the stricter limit of each pair."""
        return ResourceLimits(*(_smaller(getattr(self, name), getattr(other, name)) for name in _NAMES))

    def rlimits(self) -> tuple[tuple[int, int], ...]:
        """Return the limits for the kernel: pairs of a resource number and its limit."""
        wanted = (
            (_AS, self.address_space),
            (_CPU, self.cpu_seconds),
            (_NOFILE, self.open_files),
            (_NPROC, self.processes),
        )
        return tuple((number, value) for number, value in wanted if value is not None)


NO_LIMITS = ResourceLimits()


def _smaller(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
