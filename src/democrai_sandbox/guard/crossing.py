"""Crossing a guard: plain data, doors that lead out to the host, and entrances that lead into another subject."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import _core
from ._core import Door, Entrance, read_frame
from .contexts import policy_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

__all__ = ["Door", "Entrance", "door", "entrance", "own_code", "own_process", "plain", "read_frame"]


def plain(value: Any, *, lists: bool = False) -> Any:
    """Return a copy of plain data: None, bool, int, float, str, bytes, and lists, tuples and dicts of these.

    Only exact types count, so nothing of whoever made the value runs where the copy is used. What is something else
    raises ``InvalidInputError`` with its JSON pointer. With ``lists``, tuples become lists, as in JSON.
    """
    return _core.plain(value, lists)


def door(function: Callable[..., Any]) -> Door:
    """Return a callable by which guarded code reaches a function of the host's; refused inside a guard.

    The function runs outside the guard, as ``function(view, *arguments)``: the view says who called (None for code
    that nothing guards), and the arguments are plain copies; Python functions pass as they are, to be kept, not to be
    called there. What it returns goes back as it is: plain data, or a future of that.
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

    Whoever calls it, guarded or not, runs that function and no other under them. Identity and, unless ``exact``, the
    rights of the caller go along. The declarations are those of ``process_guard_context``. ``whose`` is the function of
    an extension that it leads to in the end: its code runs under the rights that are in force there, also in the guard
    of another extension.
    """
    return _core.entrance(policy_of(**declarations), function, exact, whose)


def own_code(code: CodeType) -> None:
    """Mark the code of a module, and all in it, as the subject's that is guarded here; without a guard, as nobody's.

    Wherever it is called later without a guard, or where the host works outside one, it runs with that subject's
    declarations and on behalf of nobody. So does what the subject compiles from then on.
    """
    _core.own_code(code)


def own_process(*, confined: bool = False) -> None:
    """Give the standard streams of this process to its subjects: a process that runs one of them alone calls it.

    ``confined`` says that the kernel holds the process to the subject's files and addresses. All installed packages may
    use ctypes and cffi there.
    """
    _core.own_process(confined)
