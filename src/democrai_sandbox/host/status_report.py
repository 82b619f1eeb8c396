"""Report about the layers of a sandbox: lines with a state, also for kernel controls."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from democrai_sandbox.kernel.status import ControlState, plain

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from democrai_sandbox.kernel.selftest import SelfTestAttempt
    from democrai_sandbox.kernel.status import ControlStatus


class ReportLineState(StrEnum):
    """State of a layer."""

    OK = "ok"
    DEGRADED = "degraded"
    """Partly working."""
    OFF = "off"
    UNSUPPORTED = "unsupported"
    """Not possible on this machine."""


class ReportArea(StrEnum):
    """Group of lines."""

    HOST = "host"
    """Interpreter, folders and addresses, checked before the start."""
    GUARD = "guard"
    DECISIONS = "decisions"
    KERNEL = "kernel"
    RUNTIME = "runtime"


@dataclass(frozen=True, slots=True)
class ReportLine:
    """Current state of one layer, and how to improve it."""

    name: str
    """Stable name for programs."""
    title: str
    area: ReportArea
    state: ReportLineState = ReportLineState.OK
    summary: str = ""
    fix: str = ""
    details: Mapping[str, object] = field(default_factory=dict)
    wanted: bool = True
    """Whether the configuration enables it: a layer that is off and not enabled is not a problem."""

    @property
    def is_well(self) -> bool:
        """Whether no action is needed."""
        return self.state is ReportLineState.OK or (not self.wanted and self.state is not ReportLineState.DEGRADED)

    def ok(self, summary: str) -> ReportLine:
        """Return the line of a layer that works."""
        return replace(self, summary=summary)

    def off(self, summary: str, fix: str) -> ReportLine:
        """Return the line of a layer that does not work."""
        return replace(self, state=ReportLineState.OFF, summary=summary, fix=fix)

    def degraded(self, summary: str, fix: str = "") -> ReportLine:
        """Return the line of a layer that works partly."""
        return replace(self, state=ReportLineState.DEGRADED, summary=summary, fix=fix)

    def as_dict(self) -> dict[str, object]:
        """Return the line as JSON data."""
        names = ("name", "title", "area", "state", "wanted", "summary", "fix")
        return {**{name: getattr(self, name) for name in names}, "details": plain(self.details)}


@dataclass(frozen=True, slots=True)
class LayerReport:
    """All lines at one time."""

    at: datetime
    version: str
    node: str
    pid: int
    lines: tuple[ReportLine, ...]
    attempts: tuple[SelfTestAttempt, ...] = ()
    """Results of the last self-test of the kernel layer."""

    @property
    def is_well(self) -> bool:
        """Whether every enabled layer works."""
        return all(line.is_well for line in self.lines)

    def __getitem__(self, name: str) -> ReportLine:
        return {line.name: line for line in self.lines}[name]

    def of(self, area: ReportArea) -> tuple[ReportLine, ...]:
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


_CONTROLS = MappingProxyType(
    {
        "landlock": ("Landlock", "ABI {abi}, {paths} paths"),
        "seccomp": ("seccomp", "{architecture}, {threads_covered} of {threads} threads"),
        "spawn_server": ("Spawn server", "process {pid}, {running} running"),
        "egress": (
            "Egress allowlist",
            "{endpoints} endpoints at {addresses} addresses, last applied {last_apply[at]}",
        ),
        "helper": ("Privileged helper", "process {pid} at {socket}"),
    }
)
"""Title of each control, and the summary of an active one; the details contain the rest."""

_STATES = MappingProxyType({ControlState.ACTIVE: ReportLineState.OK, ControlState.PARTIAL: ReportLineState.DEGRADED})
"""States of controls with another name as the state of a line."""


def control_line(control: ControlStatus, *, wanted: bool) -> ReportLine:
    """Return the line of a control; ``wanted`` is whether the configuration enables it."""
    return ReportLine(
        control.name,
        _CONTROLS.get(control.name, (control.name,))[0],
        ReportArea.KERNEL,
        _STATES.get(control.state) or ReportLineState(control.state),
        control.reason or (_active(control) if control.state is ControlState.ACTIVE else control.state.value),
        control.fix,
        control.details,
        wanted,
    )


def _active(control: ControlStatus) -> str:
    try:
        return f"in force: {_CONTROLS[control.name][1].format_map(control.details)}"
    except (KeyError, TypeError):  # not measured
        return "in force"
