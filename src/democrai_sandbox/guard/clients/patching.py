"""Putting a wrapper in the place of a client's method: once, whatever the version, and aloud when it is not there."""

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
    """A method that is to be replaced, where the module has it."""

    owner: Any
    name: str
    original: Any
    make: Callable[[Method], Method]


def adapter(*points: tuple[str, str, Callable[[Method], Method]]) -> Install:
    """Return what installs an adapter: class (dotted, from the module), name of the method, maker of the wrapper.

    All methods are looked up first: a package that fails while it is looked at, because it is broken or installed by
    half, is left as it is.
    """

    def install(module: ModuleType) -> bool:
        if is_loading(module):
            return False
        try:
            found = [_point(module, *point) for point in points]
        except Exception as error:  # noqa: BLE001 - attributes of a module can be code, and do anything
            unexpected(f"{_name_of(module)} ({type(error).__name__} while it was looked at)")
            return False
        for point in found:
            if point is not None:
                _replace(point)
        return True

    return install


def is_loading(module: ModuleType) -> bool:
    """Tell whether the import of a module has not come to its end yet: its classes may still be missing."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def replace(module: ModuleType, path: str, name: str, make: Callable[[Method], Method]) -> None:
    """Exchange one method for ``make(method)``, which keeps its name, text and signature.

    The wrapper is called only where something is guarded: a gate of the core leads all others to the method itself.
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
    """Return ``make(original)``, behind a gate of the core unless it has something to do for everyone."""
    wrapper = _like(original, make(original))
    way = getattr(wrapper, _USUAL, None)
    if way is None and hasattr(make, _EVERYONE):
        return wrapper
    return _core.gate(original, wrapper, _attributes(wrapper), getattr(make, _PAST, None), way)


def is_wrapped(method: object) -> bool:
    """Tell whether a method is one that ``wrapped`` returned."""
    return bool(getattr(method, _MARK, False))


def _name_of(module: ModuleType) -> str:
    return str(vars(module).get("__name__", "")) if type(module) is type(sys) else type(module).__name__


def for_everyone(make: Callable[[Method], Method]) -> Callable[[Method], Method]:
    """Mark a wrapper that has something to do for unguarded callers too: they give back what subjects used."""
    setattr(make, _EVERYONE, True)
    return make


def past(attribute: str) -> Callable[[Callable[[Method], Method]], Callable[[Method], Method]]:
    """Mark a wrapper that has nothing to do for objects that have this attribute."""

    def mark(make: Callable[[Method], Method]) -> Callable[[Method], Method]:
        setattr(make, _PAST, attribute)
        return make

    return mark


def usual(way: str, wrapper: Method, *objects: object) -> Method:
    """Have the core do by itself, in this way, what the wrapper does in the usual case; others stay the wrapper's."""
    setattr(wrapper, _USUAL, (way, *objects))
    return wrapper


def _attributes(wrapper: Any) -> dict[str, Any]:
    """Return the attributes by which ``inspect`` takes a gate for the function it stands for."""
    return {name: getattr(wrapper, name) for name in (*_LOOKS, *_CALLING, _MARK)}


def _like(original: Any, wrapper: Any) -> Any:
    for attribute in _LOOKS:
        if hasattr(original, attribute):
            setattr(wrapper, attribute, getattr(original, attribute))
    wrapper.__wrapped__ = original  # tells inspect the signature; whoever calls it is checked in the core all the same
    setattr(wrapper, _MARK, True)
    return wrapper


def unexpected(what: str) -> None:
    """Say, once, that a client does not look as expected. Nothing opens by that: its sockets are checked as ever."""
    if what in _told:
        return
    _told.add(what)
    # Not imported: an import in here would call the adapters again. Whatever has requests to make has loaded it.
    logging = sys.modules.get("logging")
    if logging is None:
        return
    logging.getLogger("democrai_sandbox.guard").warning(
        "%s is not there: this version of the client is unknown to the guard, which checks only its connections", what
    )
