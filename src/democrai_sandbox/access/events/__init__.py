"""How nodes learn that decisions changed: within a process, on one host, or through Redis.

Events say that something changed, never what: a lost, repeated or forged one grants nothing, it makes a node look at
the database at most. A node that cannot be sure to have heard everything is told so, and looks.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from democrai_sandbox.policy import InvalidInputError, Problem, nearest
from democrai_sandbox.policy.text import shown

if TYPE_CHECKING:
    from democrai_sandbox.access.interface import Bus

__all__ = ["open_bus"]

_KINDS: dict[str, tuple[str, str, frozenset[str], frozenset[str]]] = {
    # kind: module, class, settings that it must have, settings that it may have
    "memory": ("memory", "MemoryBus", frozenset(), frozenset({"channel"})),
    "ipc": ("ipc", "IpcBus", frozenset({"folder"}), frozenset({"channel"})),
    "redis": ("streams", "RedisBus", frozenset({"url"}), frozenset({"channel", "longest"})),
}


def open_bus(kind: str, **settings: Any) -> Bus:
    """Return the bus that ``network.stream.type`` names; it does nothing until it is started.

    All kinds take ``channel``: buses of different channels do not hear each other. ``ipc`` needs ``folder``, one that
    only its owner can enter. ``redis`` needs ``url`` (``redis://``, ``rediss://`` or ``unix://``), and takes
    ``longest``, about how many events the stream keeps.

    Raises ``InvalidInputError`` for a kind or a setting that does not exist, and for ``redis`` without its package.
    """
    if kind not in _KINDS:
        message = f"unknown kind of event stream {shown(kind)}; one of: {', '.join(_KINDS)}"
        raise InvalidInputError.of(message, pointer="/type", suggestion=nearest(str(kind), _KINDS))
    module, name, needed, optional = _KINDS[kind]
    problems = [Problem(f"/{missing}", f"{kind} events need it") for missing in sorted(needed - settings.keys())]
    for setting in settings.keys() - needed - optional:
        suggestion = nearest(setting, (needed | optional) - settings.keys())
        problems.append(Problem(f"/{setting}", f"no setting of {kind} events", suggestion))
    if problems:
        raise InvalidInputError(problems)
    bus: Bus = getattr(import_module(f".{module}", __name__), name)(**settings)
    return bus
