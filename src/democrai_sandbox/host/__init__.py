"""Reference application: all packages of this distribution, set up from one configuration.

``Sandbox`` is loaded on first use, because reading a configuration does not need its dependencies.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .authentication import Authenticator, Identity, RoleLookup, Roles, Visit

if TYPE_CHECKING:
    from .sandbox import Sandbox

__all__ = ["Authenticator", "Identity", "RoleLookup", "Roles", "Sandbox", "Visit"]


def __getattr__(name: str) -> Any:
    if name == "Sandbox":
        return import_module(".sandbox", __name__).Sandbox
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
