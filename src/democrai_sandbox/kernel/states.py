"""States of a kernel control."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


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
            "details": dict(self.details),
        }
