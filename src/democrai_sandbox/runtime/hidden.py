"""Protection for functions of the host that guarded code can find: callbacks of the loop, of tasks, of threads.

The loop lists its timers, a task its callbacks, ``threading`` its threads. A bound method found there exposes its
object and a closure its variables, and so the runtime itself. A ``Door`` exposes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import TamperDenied
from democrai_sandbox.guard import Door, door

if TYPE_CHECKING:
    from collections.abc import Callable


def hidden(function: Callable[..., Any]) -> Door:
    """Wrap a function so that guarded code can neither inspect nor call it."""

    def serve(view: object, *args: Any) -> Any:
        if view is not None:
            raise TamperDenied("runtime")
        return function(*args)

    return door(serve)
