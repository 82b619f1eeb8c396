"""Notification of nodes about changed decisions: within a process, on one host, or through Redis."""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from democrai_sandbox.policy import InvalidInputError, Problem, nearest, pointer_to
from democrai_sandbox.policy.config_section import described

from . import bus

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

__all__ = ["check_bus", "open_bus"]

_KINDS: Mapping[str, tuple[str, str, frozenset[str], frozenset[str]]] = MappingProxyType(
    {
        # kind: module, class, required settings, optional settings
        "memory": ("bus", "MemoryBus", frozenset(), frozenset({"channel"})),
        "ipc": ("ipc", "IpcBus", frozenset({"folder"}), frozenset({"channel"})),
        "redis": ("redis_stream", "RedisBus", frozenset({"url"}), frozenset({"channel", "longest"})),
    }
)


def open_bus(kind: str, **settings: Any) -> bus.Bus:
    """Return the bus that ``network.stream.type`` names; it does nothing until it is started.

    All kinds take ``channel``: buses of different channels do not receive each other's events. ``ipc`` needs
    ``folder``, which only its owner may enter. ``redis`` needs ``url`` (``redis://``, ``rediss://`` or ``unix://``),
    and takes ``longest``, the approximate number of events that the stream keeps.

    Raises ``InvalidInputError`` for an unknown kind or setting, and for ``redis`` without its package.
    """
    module = _module_of(kind, settings)
    made: bus.Bus = getattr(module, _KINDS[kind][1])(**settings)
    return made


def check_bus(kind: object, settings: Mapping[str, Any]) -> None:
    """Reject the settings that ``open_bus`` would reject, without side effects."""
    checks = {**bus.CHECKS, **_module_of(kind, settings).CHECKS}
    problems: list[Problem] = []
    for name, value in settings.items():
        try:
            checks[name](value)
        except InvalidInputError as error:
            problems += error.problems
    if problems:
        raise InvalidInputError(problems)


def _module_of(kind: object, settings: Mapping[str, Any]) -> ModuleType:
    """Return the module of a kind after validating the kind and the names of its settings."""
    if type(kind) is not str or kind not in _KINDS:
        message = f"unknown event stream type {described(kind)}; one of: {', '.join(_KINDS)}"
        raise InvalidInputError.of(message, pointer="/type", suggestion=nearest(str(kind), _KINDS))
    module, _, needed, optional = _KINDS[kind]
    problems = [Problem(f"/{missing}", f"required for {kind} events") for missing in sorted(needed - settings.keys())]
    for setting in sorted(settings.keys() - needed - optional):
        suggestion = nearest(setting, (needed | optional) - settings.keys())
        problems.append(Problem(pointer_to("", setting), f"unknown setting of {kind} events", suggestion))
    if problems:
        raise InvalidInputError(problems)
    return import_module(f".{module}", __name__)
