"""How much of the machine one process of a subject may use. A manifest and the host both say; the stricter counts."""

from __future__ import annotations

from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING

from democrai_sandbox.policy import InvalidInputError, Problem, nearest, pointer_to
from democrai_sandbox.policy.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LARGEST: Mapping[str, int] = MappingProxyType(
    {
        "address_space_mb": 16 * 1024 * 1024,
        "cpu_seconds": 31_536_000,
        "open_files": 1_048_576,
        "processes": 4_194_304,
        "wall_seconds": 31_536_000,
    }
)
"""The limits by name, with the largest number that each may be; the smallest is 1."""

# What people write who know other systems. Only ever a hint in an error, never accepted.
OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("memory", "memory_mb", "max_memory", "ram", "mem", "as", "rss_mb"), "address_space_mb"),
        **dict.fromkeys(("cpu", "cpu_time", "max_cpu"), "cpu_seconds"),
        **dict.fromkeys(("files", "nofile", "max_files", "fds", "descriptors"), "open_files"),
        **dict.fromkeys(("nproc", "max_processes", "pids", "threads"), "processes"),
        **dict.fromkeys(("timeout", "timeout_s", "timeout_seconds", "wall_time", "seconds"), "wall_seconds"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of each process; None where there is none."""

    address_space_mb: int | None = None
    """Megabytes (2**20 bytes) of addresses, used or not."""
    cpu_seconds: int | None = None
    """Seconds of computing, over the whole life of the process."""
    open_files: int | None = None
    """Descriptors at a time."""
    processes: int | None = None
    """Processes and threads of the same user at a time. The kernel does not hold root to it."""
    wall_seconds: int | None = None
    """Seconds by the clock: of a child or an installation as a whole, of each call to a worker."""

    def stricter(self, other: Limits) -> Limits:
        """Return the smaller of each two."""
        return Limits(**{name: _smaller(getattr(self, name), getattr(other, name)) for name in LARGEST})

    def given(self) -> Iterator[tuple[str, int]]:
        """Yield the limits that there are, by name."""
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None:
                yield item.name, value


NO_LIMITS = Limits()


def limits_from(value: object, pointer: str = "/limits") -> Limits:
    """Return the limits that a configuration holds, or refuse it with everything that is wrong with it."""
    if type(value) is not dict:
        raise InvalidInputError.of(f"expected an object, got {shown(value)}", pointer=pointer)
    problems = [problem for name, number in value.items() for problem in _problems(name, number, pointer)]
    if problems:
        raise InvalidInputError(problems)
    return Limits(**value)


def limit_problems(limits: object, pointer: str = "/limits") -> list[Problem]:
    """Return what is wrong with limits that were made by hand."""
    if not isinstance(limits, Limits):
        return [Problem(pointer, f"expected Limits, which limits_from() reads, got {shown(limits)}")]
    return [problem for name, number in limits.given() for problem in _problems(name, number, pointer)]


def _problems(name: object, number: object, pointer: str) -> Iterator[Problem]:
    place = pointer_to(pointer, str(name))
    largest = LARGEST.get(name) if type(name) is str else None
    if largest is None:
        meant = OTHER_NAMES.get(str(name).lower()) or nearest(str(name), LARGEST)
        yield Problem(place, f"unknown limit {shown(name)}", meant)
    elif type(number) is not int or not 1 <= number <= largest:
        yield Problem(place, f"expected a whole number from 1 to {largest:,}, got {shown(number)}")


def _smaller(one: int | None, other: int | None) -> int | None:
    return min((number for number in (one, other) if number is not None), default=None)
