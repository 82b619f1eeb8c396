"""Report about the layers of a sandbox: lines with a state."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from democrai_sandbox.kernel.status import plain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from democrai_sandbox.kernel.selftest import Attempt


class LineState(StrEnum):
    """State of a layer."""

    OK = "ok"
    DEGRADED = "degraded"
    """Partly working."""
    OFF = "off"
    UNSUPPORTED = "unsupported"
    """Not possible on this machine."""


class Area(StrEnum):
    """Group of lines."""

    HOST = "host"
    """Interpreter, folders and addresses, checked before the start."""
    GUARD = "guard"
    DECISIONS = "decisions"
    KERNEL = "kernel"
    RUNTIME = "runtime"


@dataclass(frozen=True, slots=True)
class Line:
    """Current state of one layer, and how to improve it."""

    name: str
    """Stable name for programs."""
    title: str
    area: Area
    state: LineState
    summary: str
    fix: str = ""
    details: Mapping[str, object] = field(default_factory=dict)
    wanted: bool = True
    """Whether the configuration enables it: a layer that is off and not enabled is not a problem."""

    @property
    def is_well(self) -> bool:
        """Whether no action is needed."""
        return self.state is LineState.OK or (not self.wanted and self.state is not LineState.DEGRADED)

    def as_dict(self) -> dict[str, object]:
        """Return the line as JSON data."""
        return {
            "name": self.name,
            "title": self.title,
            "area": self.area.value,
            "state": self.state.value,
            "wanted": self.wanted,
            "summary": self.summary,
            "fix": self.fix,
            "details": plain(self.details),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """All lines at one time."""

    at: datetime
    version: str
    node: str
    pid: int
    lines: tuple[Line, ...]
    attempts: tuple[Attempt, ...] = ()
    """Results of the last self-test of the kernel layer."""

    @property
    def is_well(self) -> bool:
        """Whether every enabled layer works."""
        return all(line.is_well for line in self.lines)

    def __getitem__(self, name: str) -> Line:
        """Return the line with this name."""
        for line in self.lines:
            if line.name == name:
                return line
        raise KeyError(name)

    def of(self, area: Area) -> tuple[Line, ...]:
        """Return the lines of an area."""
        return tuple(line for line in self.lines if line.area is area)

    def as_dict(self) -> dict[str, object]:
        """Return the report as JSON data."""
        return {
            "at": self.at.isoformat(),
            "version": self.version,
            "node": self.node,
            "pid": self.pid,
            "ok": self.is_well,
            "lines": [line.as_dict() for line in self.lines],
            "selftest": [attempt.as_dict() for attempt in self.attempts],
        }
