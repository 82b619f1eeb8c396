"""Application side of the egress allowlist: collect the allowed endpoints and pass them to the helper."""

from __future__ import annotations

from .allowlist import Allowlist, AllowlistBuilder, FailedSource
from .control import EgressControl
from .endpoints import endpoints_of
from .interface import ChildCgroup, Endpoint, NotMaterialised, Observation, Source, SourceEntry

__all__ = [
    "Allowlist",
    "AllowlistBuilder",
    "ChildCgroup",
    "EgressControl",
    "Endpoint",
    "FailedSource",
    "NotMaterialised",
    "Observation",
    "Source",
    "SourceEntry",
    "endpoints_of",
]
