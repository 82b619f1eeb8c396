"""What is said about the layers of a sandbox: lines with a state, and the report that they make up."""

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
    """How a layer does."""

    OK = "ok"
    DEGRADED = "degraded"
    """It works, but not for everything or not as it should."""
    OFF = "off"
    UNSUPPORTED = "unsupported"
    """This machine cannot do it."""


class Area(StrEnum):
    """What a line belongs to."""

    HOST = "host"
    """The interpreter, folders and addresses: looked at before anything is started."""
    GUARD = "guard"
    DECISIONS = "decisions"
    KERNEL = "kernel"
    RUNTIME = "runtime"


@dataclass(frozen=True, slots=True)
class Line:
    """One layer: what is true of it now, and what to do where that is less than it could be."""

    name: str
    """Stable, for machines."""
    title: str
    area: Area
    state: LineState
    summary: str
    fix: str = ""
    details: Mapping[str, object] = field(default_factory=dict)
    wanted: bool = True
    """Whether the configuration asks for it: what is off because nobody wants it is no trouble."""

    @property
    def is_well(self) -> bool:
        """Whether nothing needs to be done."""
        return self.state is LineState.OK or (not self.wanted and self.state is not LineState.DEGRADED)

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
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
    """Everything at one time."""

    at: datetime
    version: str
    node: str
    pid: int
    lines: tuple[Line, ...]
    attempts: tuple[Attempt, ...] = ()
    """What the last self-test of the kernel layer met."""

    @property
    def is_well(self) -> bool:
        """Whether every layer that is asked for does what it should."""
        return all(line.is_well for line in self.lines)

    def __getitem__(self, name: str) -> Line:
        """Return the line of this name."""
        for line in self.lines:
            if line.name == name:
                return line
        raise KeyError(name)

    def of(self, area: Area) -> tuple[Line, ...]:
        """Return the lines of an area."""
        return tuple(line for line in self.lines if line.area is area)

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        return {
            "at": self.at.isoformat(),
            "version": self.version,
            "node": self.node,
            "pid": self.pid,
            "ok": self.is_well,
            "lines": [line.as_dict() for line in self.lines],
            "selftest": [attempt.as_dict() for attempt in self.attempts],
        }
