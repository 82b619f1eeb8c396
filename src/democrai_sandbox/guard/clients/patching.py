"""Replacement of a client's methods by wrappers: once, for any version, with a warning if a method is missing."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.guard import _core

from .checks import raise_denial

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    Method = Callable[..., Any]
    Install = Callable[[ModuleType], bool]

_MARK = "_democrai_sandbox_adapter"
_EVERYONE = "for_everyone"
_PAST = "past"
_CHECK = "check"
_LOOKS = ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__")
_CALLING = ("__code__", "__defaults__", "__kwdefaults__")
_told: set[str] = set()


class _Point(NamedTuple):
    """Method to be replaced."""

    owner: Any
    name: str
    original: Any
    make: Callable[[Method], Method]


def adapter(*points: tuple[str, str, Callable[[Method], Method]]) -> Install:
    """Return an installer for methods: class (dotted, from the module), name of the method, factory of the wrapper.

    All methods are looked up first: a package that fails during the lookup, because it is broken or partly installed,
    is left unchanged.
    """

    def install(module: ModuleType) -> bool:
        if is_loading(module):
            return False
        try:
            found = [_point(module, *point) for point in points]
        except Exception as error:  # noqa: BLE001 - attributes of a module can be code, and do anything
            unexpected(f"{_name_of(module)} ({type(error).__name__} during the lookup)")
            return False
        for point in found:
            if point is not None:
                _replace(point)
        return True

    return install


def is_loading(module: ModuleType) -> bool:
    """Return whether a module is still being imported, so that its classes may be missing."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def replace(module: ModuleType, path: str, name: str, make: Callable[[Method], Method]) -> None:
    """Replace one method by ``make(method)``, which keeps its name, docstring and signature.

    The wrapper is called only under a guard: a gate of the core passes other callers to the original method.
    """
    point = _point(module, path, name, make)
    if point is not None:
        _replace(point)


def _point(module: ModuleType, path: str, name: str, make: Callable[[Method], Method]) -> _Point | None:
    owner: Any = module
    for part in path.split("."):
        owner = getattr(owner, part, None)
    original = getattr(owner, name, None)
    if not callable(original):
        unexpected(f"{_name_of(module)}.{path}.{name}")
        return None
    return None if is_wrapped(original) else _Point(owner, name, original, make)


def _replace(point: _Point) -> None:
    setattr(point.owner, point.name, wrapped(point.original, point.make))


def wrapped(original: Any, make: Callable[[Method], Method]) -> Any:
    """Return ``make(original)``, behind a gate of the core unless it also serves unguarded callers."""
    wrapper = None if make is raises_denials else make(original)
    if hasattr(make, _EVERYONE):
        return _like(original, wrapper)
    lets_out = raise_denial if hasattr(make, _CHECK) else None
    return _core.gate(original, wrapper, _attributes(original), getattr(make, _PAST, None), lets_out)


def is_wrapped(method: object) -> bool:
    """Return whether ``wrapped`` returned a method."""
    return bool(getattr(method, _MARK, False))


def _name_of(module: ModuleType) -> str:
    return str(vars(module).get("__name__", "")) if type(module) is type(sys) else type(module).__name__


def for_everyone(make: Callable[[Method], Method]) -> Callable[[Method], Method]:
    """Mark a wrapper that also runs for unguarded callers, because they return connections that subjects used."""
    setattr(make, _EVERYONE, True)
    return make


def past(attribute: str) -> Callable[[Callable[[Method], Method]], Callable[[Method], Method]]:
    """Mark a wrapper that is skipped for objects with this attribute."""

    def mark(make: Callable[[Method], Method]) -> Callable[[Method], Method]:
        setattr(make, _PAST, attribute)
        return make

    return mark


def check(make: Callable[[Method], Method]) -> Callable[[Method], Method]:
    """Mark a wrapper that only checks the call and returns its permit, or None; the core then calls the method.

    The core holds the permit during the call, and raises the denial that the client has wrapped in its own error,
    also from a coroutine. It calls the method with the arguments as they are, which is faster than a wrapper.
    A coroutine runs after the call, so its check returns None.
    """
    setattr(make, _CHECK, True)
    return make


@check
def raises_denials(original: Method) -> Method:
    """Check nothing; the core raises the denials that the method has wrapped in other errors."""
    return original


def _attributes(original: Any) -> dict[str, Any]:
    """Return the attributes that make ``inspect`` treat a gate like the function it replaces."""
    found = {name: getattr(original, name) for name in (*_LOOKS, *_CALLING) if hasattr(original, name)}
    return found | {"__wrapped__": original, _MARK: True}  # the core checks the callers of the original, too


def _like(original: Any, wrapper: Any) -> Any:
    for attribute in _LOOKS:
        if hasattr(original, attribute):
            setattr(wrapper, attribute, getattr(original, attribute))
    wrapper.__wrapped__ = original  # for the signature in inspect; the core checks its callers too
    setattr(wrapper, _MARK, True)
    return wrapper


def unexpected(what: str) -> None:
    """Log once that a client has an unexpected structure. Its sockets are still checked."""
    if what in _told:
        return
    _told.add(what)
    # Not imported, because an import here would call the adapters again. Code that makes requests has loaded it.
    logging = sys.modules.get("logging")
    if logging is None:
        return
    logging.getLogger("democrai_sandbox.guard").warning(
        "%s is missing: the guard does not know this version of the client and checks only its connections", what
    )
