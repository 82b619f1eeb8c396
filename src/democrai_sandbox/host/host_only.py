"""Restrict objects and actions to the host: hidden attributes, refusal of guarded code, and a check for administrators.

A web framework holds references to its application, and guarded code can follow references from the event loop to them.
Guarded code cannot read closures of our functions, so the objects are stored there.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from democrai_sandbox.errors import ExternalAccessAdminRequired, TamperDenied
from democrai_sandbox.guard import current_guard, is_guarded

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from democrai_sandbox.access.caller import Caller

T = TypeVar("T")


def refuse_guarded(what: str) -> None:
    """Raise ``TamperDenied`` inside a guard, also when the host calls a function that guarded code registered."""
    if not is_guarded():
        return
    guard = current_guard()
    if guard is None:
        raise TamperDenied(what)
    raise TamperDenied(
        what, subject=guard.subject, subject_kind=guard.subject_kind, chain=tuple(map(str, guard.subject_chain))
    )


def once(make: Callable[[], T], what: str) -> Callable[[], T]:
    """Return a function that creates an object on its first call, and returns it to the host only."""
    made = cache(make)

    def given() -> T:
        refuse_guarded(what)
        return made()

    return given


def taken(what: str, *places: tuple[ModuleType, str]) -> Callable[[], tuple[Any, ...]]:
    """Remove attributes from their modules; return a function that returns them to the host only.

    All code in the process can read names in a module, and change the objects of a library.
    """
    found = tuple(vars(module).pop(name) for module, name in places)
    return once(lambda: found, what)


def inside(what: str) -> Any:
    """Return a class attribute that only the host can read and set. ``what`` names it in a denial."""
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


def require_administrator(caller: Caller, what: str) -> None:
    """Raise for guarded code and for users who may not decide. ``what`` names the action in a denial."""
    refuse_guarded(what)
    if not caller.may_decide:
        raise ExternalAccessAdminRequired("only administrators may do this: the super role, and no organization")
