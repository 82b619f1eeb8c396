"""Access service: files requests for undeclared access and applies the decisions of administrators.

The names below load on first use, because importing SQLAlchemy takes longer than most programs run.
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
    """Import the module that defines a name and return the name's value."""
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
