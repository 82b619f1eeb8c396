"""Replacement of a client's methods by wrappers: once, for any version, with a warning if a method is missing."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.guard import _core

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    Method = Callable[..., Any]
    Install = Callable[[ModuleType], bool]

_MARK = "_democrai_sandbox_adapter"
_EVERYONE = "for_everyone"
_PAST = "past"
_USUAL = "usual"
_LOOKS = ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__")
_CALLING = ("__code__", "__defaults__", "__kwdefaults__", "__wrapped__")
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
    wrapper = _like(original, make(original))
    way = getattr(wrapper, _USUAL, None)
    if way is None and hasattr(make, _EVERYONE):
        return wrapper
    return _core.gate(original, wrapper, _attributes(wrapper), getattr(make, _PAST, None), way)


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


def usual(way: str, wrapper: Method, *objects: object) -> Method:
    """Let the core handle the usual case of a wrapper natively, with the implementation ``way``."""
    setattr(wrapper, _USUAL, (way, *objects))
    return wrapper


def _attributes(wrapper: Any) -> dict[str, Any]:
    """Return the attributes that make ``inspect`` treat a gate like the function it replaces."""
    return {name: getattr(wrapper, name) for name in (*_LOOKS, *_CALLING, _MARK)}


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
