"""Access service: files requests for undeclared access and applies the decisions of administrators.

The names below load on first use, because importing SQLAlchemy takes longer than most programs run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from democrai_sandbox._moved import renamed

if TYPE_CHECKING:
    from .access import Access, AccessSettings, AsyncAccess
    from .administration import Administration, Outcome
    from .caller import Caller
    from .checks import AccessService, PendingLimits
    from .node import AccessNode, NodeStatus

_HOMES = {
    "Access": "access",
    "AccessNode": "node",
    "AccessService": "checks",
    "AccessSettings": "access",
    "Administration": "administration",
    "AsyncAccess": "access",
    "Caller": "caller",
    "NodeStatus": "node",
    "Outcome": "administration",
    "PendingLimits": "checks",
}
__all__ = [
    "Access",
    "AccessNode",
    "AccessService",
    "AccessSettings",
    "Administration",
    "AsyncAccess",
    "Caller",
    "NodeStatus",
    "Outcome",
    "PendingLimits",
]


def __getattr__(name: str) -> Any:
    """Import the module that defines a name and return the name's value."""
    if name in _HOMES:
        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    return _renamed(name)


_renamed = renamed(__name__, {"Limits": "PendingLimits"})
