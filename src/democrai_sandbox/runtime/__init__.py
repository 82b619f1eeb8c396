"""What runs extensions: who a request is served for, and under which guard.

``Runtime`` and ``RuntimeSettings`` come from their modules when they are first used: a worker process imports parts of
this package in an environment that has none of the host's libraries.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .assembly import Runtime
    from .settings import RuntimeSettings

__all__ = ["Runtime", "RuntimeSettings"]

_PLACES = {"Runtime": ".assembly", "RuntimeSettings": ".settings"}


def __getattr__(name: str) -> Any:
    """Load the part that has the name."""
    if name in _PLACES:
        return getattr(import_module(_PLACES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
