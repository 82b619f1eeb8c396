"""The kernel layer: Landlock, seccomp, confined children, and the egress allowlist with its privileged helper."""

from __future__ import annotations

from .flow_log import FlowLog
from .settings import LandlockSettings, OsSettings, SeccompSettings, os_settings
from .status import ControlState, ControlStatus

__all__ = [
    "ControlState",
    "ControlStatus",
    "FlowLog",
    "LandlockSettings",
    "OsSettings",
    "SeccompSettings",
    "os_settings",
]
