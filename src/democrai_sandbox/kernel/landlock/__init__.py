"""Landlock: restrict a process to files, TCP ports and scopes, without privileges."""

from __future__ import annotations

from .application import ApplicationPaths, application_paths, application_plan
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
from .ruleset import PathRule, PortRule, Ruleset, RulesetNumbers, RulesetPlan, apply, build, numbers

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
