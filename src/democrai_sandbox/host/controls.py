"""Kernel controls as lines of a report."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from democrai_sandbox.kernel.states import ControlState

from .lines import Area, Line, LineState

if TYPE_CHECKING:
    from democrai_sandbox.kernel.states import ControlStatus

_TITLES = MappingProxyType(
    {
        "landlock": "Landlock",
        "seccomp": "seccomp",
        "spawn_server": "Spawn server",
        "egress": "Egress allowlist",
        "helper": "Privileged helper",
    }
)


_FACTS = MappingProxyType(
    {
        "landlock": "ABI {abi}, {paths} paths",
        "seccomp": "{architecture}, {threads_covered} of {threads} threads",
        "spawn_server": "process {pid}, {running} running",
        "egress": "{endpoints} endpoints at {addresses} addresses, last applied {last_apply[at]}",
        "helper": "process {pid} at {socket}",
    }
)
"""Summary of an active control; the details contain the rest."""

_STATES = MappingProxyType(
    {
        ControlState.ACTIVE: LineState.OK,
        ControlState.PARTIAL: LineState.DEGRADED,
        ControlState.OFF: LineState.OFF,
        ControlState.UNSUPPORTED: LineState.UNSUPPORTED,
    }
)


def control_line(control: ControlStatus, *, wanted: bool) -> Line:
    """Return the line of a control; ``wanted`` is whether the configuration enables it."""
    return Line(
        control.name,
        _TITLES.get(control.name, control.name),
        Area.KERNEL,
        _STATES[control.state],
        control.reason or (_active(control) if control.state is ControlState.ACTIVE else control.state.value),
        control.fix,
        control.details,
        wanted,
    )


def _active(control: ControlStatus) -> str:
    try:
        return f"in force: {_FACTS[control.name].format_map(control.details)}"
    except (KeyError, TypeError):  # not measured
        return "in force"
