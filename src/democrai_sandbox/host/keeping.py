"""Keeping what is the host's out of sight of modules in its process.

A web framework holds on to what it serves, and its objects can be found: from the loop to a connection, from there to
the application. Functions of ours do not show guarded code what they close over, so that is where things are kept.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from democrai_sandbox.errors import TamperDenied
from democrai_sandbox.guard import current_guard, is_guarded

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

T = TypeVar("T")


def refuse_guarded(what: str) -> None:
    """Raise ``TamperDenied`` inside a guard, also when the host calls what guarded code left behind."""
    if not is_guarded():
        return
    guard = current_guard()
    if guard is None:
        raise TamperDenied(what)
    raise TamperDenied(
        what, subject=guard.subject, subject_kind=guard.subject_kind, chain=tuple(map(str, guard.subject_chain))
    )


def once(make: Callable[[], T], what: str) -> Callable[[], T]:
    """Return a function that makes something when it is first called, and gives it to the host alone."""
    made = cache(make)

    def given() -> T:
        refuse_guarded(what)
        return made()

    return given


def taken(what: str, *places: tuple[ModuleType, str]) -> Callable[[], tuple[Any, ...]]:
    """Take things out of the modules that define them; return a function that gives them to the host alone.

    A name in a module can be read by everybody in the process, and what it names be changed if it is a library's.
    """
    found = tuple(vars(module).pop(name) for module, name in places)
    return once(lambda: found, what)


def inside(what: str) -> Any:
    """Return an attribute for a class that can be read and set by the host alone. ``what`` names it in a denial."""
    values: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def read(owner: Any) -> Any:
        refuse_guarded(what)
        try:
            return values[owner]
        except KeyError:
            raise AttributeError(what) from None

    def write(owner: Any, value: Any) -> None:
        refuse_guarded(what)
        values[owner] = value

    return property(read, write)
