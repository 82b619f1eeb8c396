"""Landlock: restrict a process to files, TCP ports and scopes, without privileges."""

from __future__ import annotations

from .application import ApplicationPaths, application_paths, application_plan
from .applying import apply
from .rights import EXECUTE, FILE_RIGHTS, READ, WRITE, Feature, FsRight, NetRight, Scope, Supported, supported
from .rulesets import Built, Numbers, PathRule, PortRule, RulesetPlan, build, numbers
from .support import LandlockSupport, landlock_support

__all__ = [
    "EXECUTE",
    "FILE_RIGHTS",
    "READ",
    "WRITE",
    "ApplicationPaths",
    "Built",
    "Feature",
    "FsRight",
    "LandlockSupport",
    "NetRight",
    "Numbers",
    "PathRule",
    "PortRule",
    "RulesetPlan",
    "Scope",
    "Supported",
    "application_paths",
    "application_plan",
    "apply",
    "build",
    "landlock_support",
    "numbers",
    "supported",
]
