"""The words in which the kernel layer says what is enforced now."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class ControlState(StrEnum):
    """How far a control is in force. Measured, never taken from the configuration."""

    ACTIVE = "active"
    PARTIAL = "partial"
    """In force, but not for everything; the reason names what is not covered."""
    OFF = "off"
    """Not asked for, or not applied yet."""
    UNSUPPORTED = "unsupported"
    """Asked for or not: this kernel, architecture or machine cannot do it."""


@dataclass(frozen=True, slots=True)
class ControlStatus:
    """What one control does at the moment, and what to do where that is less than it could."""

    name: str
    state: ControlState
    reason: str = ""
    fix: str = ""
    details: Mapping[str, object] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """Return it as plain data."""
        return {
            "name": self.name,
            "state": self.state.value,
            "reason": self.reason,
            "fix": self.fix,
            "details": dict(self.details),
        }
