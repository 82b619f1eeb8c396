"""Runtimes that load and call extensions under their guards.

``Runtime`` and ``RuntimeSettings`` are imported on first use, because a worker process imports parts of this package in
an environment without the host's libraries.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from democrai_sandbox.runtime.extensions.settings import RuntimeSettings

    from .runtime import Runtime

__all__ = ["Runtime", "RuntimeSettings"]

_PLACES = {"Runtime": ".runtime", "RuntimeSettings": ".extensions.settings"}


def __getattr__(name: str) -> Any:
    """Import and return ``Runtime`` or ``RuntimeSettings``."""
    if name in _PLACES:
        return getattr(import_module(_PLACES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
