"""The access-policy service: turns what is not declared into a decision by an authorised person.

The names below are loaded when they are first used: SQLAlchemy alone takes longer than most programs run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .administration import Administration
    from .aio import AsyncAccess
    from .assembly import Access, AccessSettings
    from .identity import Caller
    from .node import AccessNode, NodeStatus
    from .outcomes import Outcome
    from .registrar import Limits
    from .service import AccessService

_HOMES = {
    "Access": "assembly",
    "AccessNode": "node",
    "AccessService": "service",
    "AccessSettings": "assembly",
    "Administration": "administration",
    "AsyncAccess": "aio",
    "Caller": "identity",
    "Limits": "registrar",
    "NodeStatus": "node",
    "Outcome": "outcomes",
}

__all__ = [
    "Access",
    "AccessNode",
    "AccessService",
    "AccessSettings",
    "Administration",
    "AsyncAccess",
    "Caller",
    "Limits",
    "NodeStatus",
    "Outcome",
]


def __getattr__(name: str) -> Any:
    """Load the module that a name lives in."""
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
