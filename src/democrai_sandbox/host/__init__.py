"""The reference application: everything of this distribution, wired from one configuration.

``Sandbox`` comes from its module when it is first used: reading a configuration needs none of what it stands on.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .interface import Authenticator, Identity, RoleLookup, Roles, Visit

if TYPE_CHECKING:
    from .sandbox import Sandbox

__all__ = ["Authenticator", "Identity", "RoleLookup", "Roles", "Sandbox", "Visit"]


def __getattr__(name: str) -> Any:
    """Load what has the name."""
    if name == "Sandbox":
        return import_module(".sandbox", __name__).Sandbox
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
