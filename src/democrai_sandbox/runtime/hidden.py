"""Functions of the host's that lie where guarded code can find them: callbacks of the loop, of tasks, of threads.

The loop lists its timers, a task its callbacks, ``threading`` its threads. A bound method found there leads to its
object, a closure to its variables, and so to the runtime itself. A door leads nowhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import TamperDenied
from democrai_sandbox.guard import Door, door

if TYPE_CHECKING:
    from collections.abc import Callable


def hidden(function: Callable[..., Any]) -> Door:
    """Return a callable that does the same for the host, shows nothing, and is shut to guarded code that calls it."""

    def serve(view: object, *args: Any) -> Any:
        if view is not None:
            raise TamperDenied("runtime")
        return function(*args)

    return door(serve)
