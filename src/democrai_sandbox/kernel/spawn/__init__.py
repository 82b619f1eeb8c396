"""Spawn server, which starts confined programs, and its client in the application."""

from __future__ import annotations

from .client import SpawnedChild, SpawnOrder, SpawnServer
from .confinement import NO_LIMITS, ChildConfinement, Enforcement, ResourceLimits, confinement_of, enforcement_of
from .protocol import CHILD_CAPABILITIES, LandlockPlan

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
