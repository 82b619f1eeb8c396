"""Controls of the kernel layer as lines of a report."""

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


_STATES = MappingProxyType(
    {
        ControlState.ACTIVE: LineState.OK,
        ControlState.PARTIAL: LineState.DEGRADED,
        ControlState.OFF: LineState.OFF,
        ControlState.UNSUPPORTED: LineState.UNSUPPORTED,
    }
)


def control_line(control: ControlStatus, *, wanted: bool) -> Line:
    """Return what is said about a control; ``wanted`` is whether the configuration asks for it."""
    return Line(
        control.name,
        _TITLES.get(control.name, control.name),
        Area.KERNEL,
        _STATES[control.state],
        control.reason or ("in force" if control.state is ControlState.ACTIVE else control.state.value),
        control.fix,
        control.details,
        wanted,
    )
