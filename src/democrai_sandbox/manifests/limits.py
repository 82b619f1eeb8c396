"""Resource limits of a subject's processes. Manifest and host both set limits; the stricter one applies."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from democrai_sandbox.policy import InvalidInputError, Problem, nearest, pointer_to
from democrai_sandbox.policy.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# Names that other systems use. They are only hints in errors, never accepted.
OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("memory", "max_memory", "ram", "mem", "rss_mb", "data"), "memory_mb"),
        **dict.fromkeys(("as", "address_space", "virtual_memory"), "address_space_mb"),
        **dict.fromkeys(("fsize", "file_size", "max_file_size"), "file_size_mb"),
        **dict.fromkeys(("cpu", "cpu_time", "max_cpu"), "cpu_seconds"),
        **dict.fromkeys(("weight", "cpu_shares", "shares", "nice", "priority"), "cpu_weight"),
        **dict.fromkeys(("files", "nofile", "max_files", "fds", "descriptors"), "open_files"),
        **dict.fromkeys(("nproc", "max_processes", "pids", "threads"), "processes"),
        **dict.fromkeys(("temp", "tmp_mb", "tmp", "disk_mb", "disk", "quota"), "temp_mb"),
        **dict.fromkeys(("timeout", "timeout_s", "timeout_seconds", "wall_time", "seconds"), "wall_seconds"),
    }
)


def _limit(largest: int, about: str) -> Any:
    """Return a field with the maximum of a limit and its description."""
    return field(default=None, metadata={"largest": largest, "about": about})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of each process; None means no limit. Megabytes have 2**20 bytes."""

    address_space_mb: int | None = _limit(16 * 1024 * 1024, "Megabytes of address space, used or not.")
    memory_mb: int | None = _limit(16 * 1024 * 1024, "Megabytes of private, writable memory.")
    cpu_seconds: int | None = _limit(31_536_000, "Seconds of processor time, over the whole life of the process.")
    cpu_weight: int | None = _limit(100, "Share of the processor while others need it too; other processes have 100.")
    file_size_mb: int | None = _limit(16 * 1024 * 1024, "Megabytes of each file that it writes.")
    open_files: int | None = _limit(1_048_576, "Maximum number of open files and sockets.")
    processes: int | None = _limit(4_194_304, "Maximum number of processes and threads of the operating-system user.")
    """For root, of each worker or program, where the kernel layer has pids cgroups; elsewhere not enforced."""
    temp_mb: int | None = _limit(16 * 1024 * 1024, "Megabytes of all files in the temp folder of a worker.")
    wall_seconds: int | None = _limit(
        31_536_000, "Seconds of real time: of a program or an installation, of each call to a worker."
    )

    def stricter(self, other: Limits) -> Limits:
        """Return the smaller of each pair of limits."""
        return Limits(**{name: _smaller(getattr(self, name), getattr(other, name)) for name in LARGEST})

    def otherwise(self, defaults: Limits) -> Limits:
        """Return these limits, with the defaults for those that are not set."""
        return Limits(**{name: value for limits in (defaults, self) for name, value in limits.given()})

    def given(self) -> Iterator[tuple[str, int]]:
        """Yield the limits that are set, by name."""
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None:
                yield item.name, value


NO_LIMITS = Limits()
_FIELDS = sorted(fields(Limits), key=lambda item: item.name)
LARGEST: Mapping[str, int] = MappingProxyType({item.name: item.metadata["largest"] for item in _FIELDS})
"""Limits by name with their maximum; the minimum is 1."""
ABOUT: Mapping[str, str] = MappingProxyType({item.name: item.metadata["about"] for item in _FIELDS})
"""Descriptions by name."""


def limits_from(value: object, pointer: str = "/limits") -> Limits:
    """Parse the limits of a configuration, or raise with all problems."""
    if type(value) is not dict:
        raise InvalidInputError.of(f"expected an object, got {shown(value)}", pointer=pointer)
    problems = [problem for name, number in value.items() for problem in _problems(name, number, pointer)]
    if problems:
        raise InvalidInputError(problems)
    return Limits(**value)


def limit_problems(limits: object) -> list[Problem]:
    """Return the problems of limits that were constructed in code."""
    if not isinstance(limits, Limits):
        return [Problem("/limits", f"expected Limits, as limits_from() returns them, got {shown(limits)}")]
    return [problem for name, number in limits.given() for problem in _problems(name, number, "/limits")]


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
