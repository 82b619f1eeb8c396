"""Boundary of a guard: copies of plain data, doors to functions of the host, entrances to a subject, served users."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from . import _core
from ._core import Door, Entrance, read_frame
from .contexts import policy_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType

__all__ = ["Door", "Entrance", "door", "entrance", "own_code", "own_process", "plain", "read_frame"]


def plain(value: Any, *, lists: bool = False) -> Any:
    """Return a copy of plain data: None, bool, int, float, str, bytes, and lists, tuples and dicts of these.

    Only exact types are accepted, so no code of the value's creator runs where the copy is used. Other values raise
    ``InvalidInputError`` with their JSON pointer. With ``lists``, tuples become lists, as in JSON.
    """
    return _core.plain(value, lists)


def door(function: Callable[..., Any]) -> Door:
    """Return a callable through which guarded code calls a function of the host; refused inside a guard.

    The function runs unguarded, as ``function(view, *arguments)``: the view describes the caller (None for unguarded
    code), and the arguments are plain copies. Python functions are passed unchanged; store them, but do not call them
    there. The return value is passed back unchanged: plain data, or a future of plain data.
    """
    return _core.door(function)


def entrance(
    function: Callable[..., Any],
    *,
    exact: bool = False,
    whose: Callable[..., Any] | None = None,
    **declarations: Any,
) -> Entrance:
    """Return a callable that runs a function as the subject of these declarations; refused inside a guard.

    Any caller runs this function and no other under them. The identity and, unless ``exact``, the rights of the caller
    are added. The declarations are those of ``process_guard_context``. ``whose`` is the function of an extension that
    is finally called: its code runs under the rights in force there, also in the guard of another extension.
    """
    return _core.entrance(policy_of(**declarations), function, exact, whose)


def own_code(code: CodeType) -> None:
    """Mark the code of a module as owned by the guarded subject; without a guard, as owned by no subject.

    If it is called later without a guard, or where the host works unguarded, it runs with that subject's declarations
    and without a user. The same applies to code that the subject compiles from then on.
    """
    _core.own_code(code)


def own_process(*, confined: bool = False) -> None:
    """Give the standard streams of this process to its subjects; called by a process that runs a single subject.

    ``confined`` says that the kernel restricts the process to the subject's files and addresses. All installed packages
    may use ctypes and cffi there.
    """
    _core.own_process(confined)


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
