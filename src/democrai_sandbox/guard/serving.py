"""Whom the host serves, kept by the core: changes that guarded code makes do not outlive its guard."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from . import _core

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def serve(value: object) -> Iterator[None]:
    """Have a value in force in this task and all that it starts; refused inside a guard. It must be immutable."""
    token = _core.serve(value)
    try:
        yield
    finally:
        _core.unserve(token)


def served() -> Any:
    """Return the value in force; None when there is none."""
    return _core.served()
