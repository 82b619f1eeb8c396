"""Exceptions for denials of the core. This module decides nothing: if it fails, the access is still refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import (
    EnvironmentDenied,
    FilesystemDenied,
    FilesystemFdDenied,
    GuardUsageError,
    ModuleDenied,
    NetworkDenied,
    SandboxDenied,
    SubprocessDenied,
    TamperDenied,
)

from . import _core
from .runtime_paths import is_host_code

if TYPE_CHECKING:
    from democrai_sandbox.policy import AccessDecision

_CLASSES: dict[str, type[SandboxDenied]] = {
    "filesystem": FilesystemDenied,
    "descriptor": FilesystemFdDenied,
    "module": ModuleDenied,
    "subprocess": SubprocessDenied,
    "environment": EnvironmentDenied,
    "tamper": TamperDenied,
    "network": NetworkDenied,
}
_HARMLESS = frozenset({"read", "execute", "use"})
"""Operations that do not change code of the host."""


def make_denial(
    kind: str, view: tuple[Any, ...], operation: str, target: str, *, decision: AccessDecision | None = None
) -> SandboxDenied:
    """Return the exception for a denial of the core, with the decider's decision if it was asked."""
    subject_kind, subject, _, _ = view[0][-1]
    denial = _CLASSES[kind](
        target,
        subject=subject,
        subject_kind=subject_kind,
        chain=view[1],
        operations=tuple(operation.split(",")) if "," in operation else (operation,),
        installing=view[5],
        opened_by=view[8],
    )
    if decision is not None and isinstance(denial, NetworkDenied):
        denial.decision = decision
    if operation not in _HARMLESS and isinstance(denial, FilesystemDenied):
        denial.is_host_code = is_host_code(target, denial.operation)
    return denial


@dataclass(frozen=True, slots=True)
class DenialRecord:
    """Recorded denial; ``silent`` if library code got "does not exist" instead of an exception."""

    time: float
    denial: SandboxDenied
    silent: bool

    def __str__(self) -> str:
        """Return the documented error shape."""
        return str(self.denial)


def recent_denials() -> list[DenialRecord]:
    """Return the latest denials of this process, oldest first. Only for the host: refused inside a guard."""
    if _core.current_view() is not None:
        raise GuardUsageError("guarded code cannot read denials; call this from the host")
    return [DenialRecord(time, make_denial(*facts), silent) for time, silent, facts in _core.recent()]
