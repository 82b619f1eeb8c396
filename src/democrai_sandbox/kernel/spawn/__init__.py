"""Spawn server, which starts confined programs, and its client in the application."""

from __future__ import annotations

from .client import SpawnedChild, SpawnOrder, SpawnServer
from .confinement import ChildConfinement, Enforcement, confinement_of, enforcement_of
from .limits import NO_LIMITS, ResourceLimits
from .wire import CHILD_CAPABILITIES, LandlockPlan

__all__ = [
    "CHILD_CAPABILITIES",
    "NO_LIMITS",
    "ChildConfinement",
    "Enforcement",
    "LandlockPlan",
    "ResourceLimits",
    "SpawnOrder",
    "SpawnServer",
    "SpawnedChild",
    "confinement_of",
    "enforcement_of",
]
