"""The ``mcp`` library, which is an extra: imported when it is first needed, by the host, outside every guard.

What is imported inside the guard of a server is imported as that server: by its rules, at its cost, in its time. So all
that a conversation uses is loaded before; among it ``_cffi_backend``, which no subject may import by itself.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from democrai_sandbox.errors import GuardUsageError
from democrai_sandbox.guard import is_guarded

from .errors import McpMissing

if TYPE_CHECKING:
    from types import ModuleType

# What the library and its client import only when a conversation is under way.
LATE: Final = (
    "anyio._backends._asyncio",
    "encodings.idna",
    "httpcore2",
    "httpcore2._backends.anyio",
    "httpcore2._backends.auto",
)
_MODELS: Final = frozenset({"mcp", "mcp_types"})
_LOGGERS: Final = ("mcp", "client")  # the second is the name that its sessions log under


def conversations(server: str) -> ModuleType:
    """Return the module that speaks MCP, and load it when nobody has yet (about a second)."""
    if is_guarded():
        raise GuardUsageError("the MCP runtime is the host's: guarded code asks for it through the SDK")
    try:
        return _load()
    except ModuleNotFoundError as error:
        raise McpMissing(server, f"install democrai-sandbox[mcp]: there is no module {error.name}") from None


@cache
def _load() -> ModuleType:
    import_module("mcp.client")
    for name in LATE:
        import_module(name)
    _complete(import_module("pydantic").BaseModel)
    for name in _LOGGERS:
        # It logs what it also raises; without a handler anywhere that would end on the standard error.
        logging.getLogger(name).addHandler(logging.NullHandler())
    return import_module(f"{__package__}.conversation")


def _complete(base: Any) -> None:
    """Have the library's models made that wait for their first use.

    Whoever uses one first has its variables looked at, as a place where types may be defined. Inside a guard that is
    refused for frames of ours.
    """
    for model in base.__subclasses__():
        if model.__module__.partition(".")[0] in _MODELS and not model.__pydantic_complete__:
            model.model_rebuild(raise_errors=False)
        _complete(model)
