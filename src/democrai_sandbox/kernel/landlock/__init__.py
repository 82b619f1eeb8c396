"""Landlock: restrict a process to files, TCP ports and scopes, without privileges."""

from __future__ import annotations

from .rights import (
    EXECUTE,
    FILE_RIGHTS,
    READ,
    WRITE,
    Feature,
    FsRight,
    LandlockSupport,
    NetRight,
    ScopeRight,
    SupportedRights,
    landlock_support,
    supported,
)
from .ruleset import (
    ApplicationPaths,
    PathRule,
    PortRule,
    Ruleset,
    RulesetNumbers,
    RulesetPlan,
    application_paths,
    application_plan,
    apply,
    build,
    numbers,
)

__all__ = [
    "EXECUTE",
    "FILE_RIGHTS",
    "READ",
    "WRITE",
    "ApplicationPaths",
    "Feature",
    "FsRight",
    "LandlockSupport",
    "NetRight",
    "PathRule",
    "PortRule",
    "Ruleset",
    "RulesetNumbers",
    "RulesetPlan",
    "ScopeRight",
    "SupportedRights",
    "application_paths",
    "application_plan",
    "apply",
    "build",
    "landlock_support",
    "numbers",
    "supported",
]
