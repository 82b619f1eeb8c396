"""Application side of the egress allowlist: collect the allowed endpoints and pass them to the helper."""

from __future__ import annotations

from .allowlist import (
    Allowlist,
    AllowlistBuilder,
    ChildCgroup,
    Endpoint,
    EndpointSource,
    FailedSource,
    NotMaterialised,
    ObservedConnection,
    SourceEntry,
    endpoints_of,
)
from .control import EgressControl

__all__ = [
    "Allowlist",
    "AllowlistBuilder",
    "ChildCgroup",
    "EgressControl",
    "Endpoint",
    "EndpointSource",
    "FailedSource",
    "NotMaterialised",
    "ObservedConnection",
    "SourceEntry",
    "endpoints_of",
]
