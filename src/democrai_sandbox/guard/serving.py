"""Identity of the user that the host serves, stored in the core: changes by guarded code end with its guard."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from . import _core

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def serve(value: object) -> Iterator[None]:
    """Set the served value for this task and all tasks it starts; refused inside a guard. It must be immutable."""
    token = _core.serve(value)
    try:
        yield
    finally:
        _core.unserve(token)


def served() -> Any:
    """Return the current value, or None."""
    return _core.served()
