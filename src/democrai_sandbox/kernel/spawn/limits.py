"""Resource limits of a child, and which of them the kernel keeps."""

from __future__ import annotations

import resource
from dataclasses import dataclass

_NAMES = ("address_space", "cpu_seconds", "open_files", "processes", "wall_seconds")
# Plain numbers, settled before a subject could put others in their place.
_AS, _CPU, _NOFILE, _NPROC = resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """The most that a child may use; None for no limit of ours. Children of the child count for themselves."""

    address_space: int | None = None
    """Bytes."""
    cpu_seconds: int | None = None
    open_files: int | None = None
    """The highest number of a descriptor, plus one."""
    processes: int | None = None
    """Of the user as a whole, as the kernel counts them; it does not hold root to it."""
    wall_seconds: int | None = None
    """Kept by the spawn server, which ends the child's group then."""

    def __post_init__(self) -> None:
        for name in _NAMES:
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"the limit {name} is a whole number above 0, or None: got {value!r}")

    def stricter(self, other: ResourceLimits) -> ResourceLimits:
        """Return the limits that keep to both."""
        return ResourceLimits(*(_smaller(getattr(self, name), getattr(other, name)) for name in _NAMES))

    def rlimits(self) -> tuple[tuple[int, int], ...]:
        """Return what the kernel is told: pairs of a resource's number and its limit."""
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
