"""A sandbox for other people's code in your own process: each subject has its own files, imports and children.

The names below come from ``democrai_sandbox.guard`` when they are first used, so that importing a pure part of the
package (``democrai_sandbox.policy``) does not arm the guard.
"""

from __future__ import annotations

from . import _moved as _moved

TYPE_CHECKING = False  # typing is slow to import, and ``--help`` of the command line has to be there at once
if TYPE_CHECKING:
    from typing import Any

    from .guard import (
        AccessQuestion,
        Decider,
        DenialRecorder,
        EndpointObserver,
        GuardView,
        ObservedEndpoint,
        access_changed,
        child_environment,
        configure_guard,
        current_guard,
        network_policy_context,
        process_guard_bypass_context,
        process_guard_context,
        process_guard_context_from_env,
        recent_denials,
    )

__version__ = "0.1.0"

__all__ = [
    "AccessQuestion",
    "Decider",
    "DenialRecorder",
    "EndpointObserver",
    "GuardView",
    "ObservedEndpoint",
    "access_changed",
    "child_environment",
    "configure_guard",
    "current_guard",
    "network_policy_context",
    "process_guard_bypass_context",
    "process_guard_context",
    "process_guard_context_from_env",
    "recent_denials",
]


def __getattr__(name: str) -> Any:
    """Load the guard when one of its names is asked for."""
    from importlib import import_module  # noqa: PLC0415 - see above

    if name in __all__:
        return getattr(import_module(".guard", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
