"""All checks in one report."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from democrai_sandbox import __version__
from democrai_sandbox.errors import KernelLayerError
from democrai_sandbox.host.controls import control_line
from democrai_sandbox.host.lines import Area, Line, LineState, Report
from democrai_sandbox.host.places import application_places
from democrai_sandbox.kernel.application import Kernel
from democrai_sandbox.kernel.trying import UNTRIED, try_apart

from .extensions import extension_lines
from .machine import machine_lines
from .places import place_lines
from .services import service_lines

if TYPE_CHECKING:
    from collections.abc import Callable

    from democrai_sandbox.host.settings import HostSettings
    from democrai_sandbox.kernel.selftest import Attempt
    from democrai_sandbox.kernel.states import ControlStatus


def examine(settings: HostSettings, *, egress: bool = False, tell: Callable[[str], None] = lambda _: None) -> Report:
    """Run all checks. With ``egress``, start the helper briefly with an empty allowlist.

    ``tell`` is called with the name of each check, because some take seconds.
    """
    tell("the interpreter and the guard")
    lines = [*machine_lines()]
    tell("folders and files")
    lines += place_lines(settings)
    tell("the database, events and the address")
    lines += service_lines(settings)
    tell("the kernel layer")
    controls, attempts = _kernel_lines(settings, egress=egress)
    tell("extensions")
    lines += (*controls, *extension_lines(settings))
    lines.sort(key=lambda line: tuple(Area).index(line.area))
    return Report(datetime.now(UTC), __version__, "", os.getpid(), tuple(lines), attempts)


def _kernel_lines(settings: HostSettings, *, egress: bool) -> tuple[tuple[Line, ...], tuple[Attempt, ...]]:
    # Created only to read the wanted controls; it is neither prepared nor confined.
    wanted = frozenset(Kernel(settings.os, application_places(settings)).wanted)
    try:
        found = try_apart(egress=egress, desktop=settings.os.desktop)
    except KernelLayerError as error:
        line = Line("kernel", "Kernel layer", Area.KERNEL, LineState.OFF, error.what, error.fix, wanted=bool(wanted))
        return (line,), ()
    return tuple(_line(control, wanted) for control in found.controls), found.attempts


def _line(control: ControlStatus, wanted: frozenset[str]) -> Line:
    line = control_line(control, wanted=control.name in wanted)
    if control.fix == UNTRIED:
        # Without touching the machine's packet filter, only its availability is known.
        line = replace(line, state=LineState.OK, fix="")
    elif line.state is LineState.OK:
        line = replace(line, summary="works (tested in a child process)")
    if line.state is LineState.OK and not line.wanted:
        return replace(line, summary=f"{line.summary}; not enabled in the configuration")
    return line
