"""Measured state of each kernel control."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from democrai_sandbox.errors import HelperFailed, KernelRefused

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from democrai_sandbox.errors import KernelLayerError

    from .selftest import SelfTestAttempt


class ControlState(StrEnum):
    """Degree to which a control is in force: measured, never copied from the configuration."""

    ACTIVE = "active"
    PARTIAL = "partial"
    """In force with exceptions; the reason names them."""
    OFF = "off"
    """Not enabled, or not applied yet."""
    UNSUPPORTED = "unsupported"
    """Not possible with this kernel, architecture or machine."""


@dataclass(frozen=True, slots=True)
class ControlStatus:
    """Current state of one control, and how to improve it."""

    name: str
    state: ControlState
    reason: str = ""
    fix: str = ""
    details: Mapping[str, object] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """Return the status as JSON data."""
        return {
            "name": self.name,
            "state": self.state.value,
            "reason": self.reason,
            "fix": self.fix,
            "details": plain(self.details),
        }


LANDLOCK = "landlock"
SECCOMP = "seccomp"
SPAWN_SERVER = "spawn_server"
EGRESS = "egress"
HELPER = "helper"

_TASKS = "/proc/self/task"
_SETTINGS = {LANDLOCK: "sandbox.os.landlock.enabled", SECCOMP: "sandbox.os.seccomp.enabled"}
_MACHINE_LACKS = frozenset(
    {"no_iptables", "no_ip6tables", "no_cgroup2", "cgroup_read_only", "not_privileged", "no_way_up"}
)
_NEWER = "run Linux 6.12 or newer, on x86_64 or aarch64"


@dataclass(frozen=True, slots=True)
class KernelStatus:
    """State of every control, with the results of the last self-test."""

    controls: tuple[ControlStatus, ...]
    attempts: tuple[SelfTestAttempt, ...] = ()

    def __getitem__(self, name: str) -> ControlStatus:
        return {control.name: control for control in self.controls}[name]

    def less_than_active(self, wanted: Collection[str]) -> tuple[ControlStatus, ...]:
        """Return the wanted controls that are not fully active."""
        chosen = (control for control in self.controls if control.name in wanted)
        return tuple(control for control in chosen if control.state is not ControlState.ACTIVE)

    def as_dict(self) -> dict[str, object]:
        """Return the status as JSON data."""
        return {
            "controls": {control.name: control.as_dict() for control in self.controls},
            "selftest": [attempt.as_dict() for attempt in self.attempts],
        }


def with_attempts(control: ControlStatus, attempts: Iterable[SelfTestAttempt]) -> ControlStatus:
    """Return the status with the self-test's results: a control that permitted a forbidden operation is not active."""
    own = [attempt for attempt in attempts if attempt.control == control.name]
    failed = [attempt for attempt in own if not attempt.ok]
    details = {**control.details, "selftest": {f"{tried.where}: {tried.act}": tried.outcome for tried in own}}
    if not failed or control.state not in {ControlState.ACTIVE, ControlState.PARTIAL}:
        return replace(control, details=details) if own else control
    met = ", ".join(f"{attempt.act} ({attempt.where}): {attempt.outcome}" for attempt in failed)
    reasons = (control.reason, f"the self-test found: {met}")
    fixes = dict.fromkeys((control.fix, *(attempt.fix for attempt in failed)))
    return ControlStatus(
        control.name, ControlState.PARTIAL, "; ".join(filter(None, reasons)), "; ".join(filter(None, fixes)), details
    )


def landlock_now(applied: ControlStatus, *, reaches_outside: bool) -> ControlStatus:
    """Return the state of Landlock. ``/proc`` does not show it, so the calling thread tests itself."""
    details = {**applied.details, "threads_now": len(os.listdir(_TASKS))}  # noqa: PTH208 - only names are needed
    if reaches_outside and applied.state is ControlState.ACTIVE:
        return ControlStatus(
            applied.name,
            ControlState.PARTIAL,
            "the calling thread can open folders outside the lists",
            fix="call confine() in the main thread, before any other thread is started",
            details=details,
        )
    return replace(applied, details=details)


def not_wanted(name: str, enabled: bool | None = False) -> ControlStatus:  # noqa: FBT001, FBT002 - a setting
    """Return the state of a control that the configuration does not enable; ``enabled`` is its main switch."""
    if name == SPAWN_SERVER:  # needs no privileges, unlike the rest of sandbox.os.enabled
        return ControlStatus(name, ControlState.OFF, "sandbox.os.enabled is false", fix="remove sandbox.os.enabled")
    setting = _SETTINGS.get(name, "sandbox.os.enabled")
    value = "not set" if enabled is None and name not in _SETTINGS else "false"
    return ControlStatus(name, ControlState.OFF, f"{setting} is {value}", fix=f"set {setting} to true")


def unconfinable(*lacking: ControlStatus) -> ControlStatus:
    """Return the state of the spawn server where no control can confine children."""
    reason = "; ".join(f"{control.name}: {control.reason}" for control in lacking)
    fix = "; ".join(dict.fromkeys(control.fix for control in lacking))
    return ControlStatus(SPAWN_SERVER, ControlState.UNSUPPORTED, f"children cannot be confined: {reason}", fix)


def not_applied(name: str, *, is_over: bool) -> ControlStatus:
    """Return the state of a control that is not applied yet, or not any more."""
    if is_over:
        return ControlStatus(name, ControlState.OFF, "the kernel layer has been stopped", "restart the application")
    step = "confine()" if name in _SETTINGS else "prepare()"
    return ControlStatus(name, ControlState.OFF, "not applied yet", f"call {step}")


def without_helper(name: str, error: KernelLayerError) -> ControlStatus:
    """Return the state of a control that needs the helper, when the helper is missing."""
    reason = error.reason if isinstance(error, HelperFailed) else ""
    state = ControlState.UNSUPPORTED if reason in _MACHINE_LACKS else ControlState.OFF
    return ControlStatus(name, state, error.what, error.fix, {"reason": reason})


def server_now(unenforced: tuple[str, ...], fix: str, details: Mapping[str, object]) -> ControlStatus:
    """Return the state of a running spawn server: active when its children are fully confined."""
    details = {**details, "unenforced": unenforced}
    if not unenforced:
        return ControlStatus(SPAWN_SERVER, ControlState.ACTIVE, details=details)
    reason = "children are not fully confined on this machine: " + "; ".join(unenforced)
    return ControlStatus(SPAWN_SERVER, ControlState.PARTIAL, reason, fix or _NEWER, details)


def refusal(lacking: Iterable[ControlStatus]) -> KernelRefused:
    """Return the error for a refused start, with every incomplete control and its fix."""
    lacking = tuple(lacking)
    what = "; ".join(f"{control.name} is {control.state}: {control.reason}" for control in lacking)
    fixes = dict.fromkeys(f"{control.name}: {control.fix}" for control in lacking if control.fix)
    return KernelRefused(
        f"sandbox.os.require is true, but some enabled controls are not active: {what}", fix="; ".join(fixes)
    )


def plain(details: Mapping[str, object]) -> dict[str, object]:
    """Return details as JSON data."""
    return {name: _plain(value) for name, value in details.items()}


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(inner) for inner in value]
    return str(value)
