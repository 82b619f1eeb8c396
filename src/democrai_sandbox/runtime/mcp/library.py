"""The optional ``mcp`` library: imported on first use, by the host, outside every guard.

An import inside the guard of a server would run as that server, under its rules and its timeout. So everything a
conversation uses is loaded before, including ``_cffi_backend``, which no subject may import.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from democrai_sandbox.errors import GuardUsageError
from democrai_sandbox.errors.mcp import McpMissing
from democrai_sandbox.guard import is_guarded

if TYPE_CHECKING:
    from types import ModuleType

# Modules that the library and its client would otherwise import during a conversation.
LATE: Final = (
    "anyio._backends._asyncio",
    "encodings.idna",
    "httpcore2",
    "httpcore2._backends.anyio",
    "httpcore2._backends.auto",
)
_MODELS: Final = frozenset({"mcp", "mcp_types"})
_LOGGERS: Final = ("mcp", "client")  # its sessions log under the second name


def conversations(server: str) -> ModuleType:
    """Return the module that implements conversations; the first call loads it (about a second)."""
    if is_guarded():
        raise GuardUsageError("guarded code cannot use the MCP runtime directly: use sdk.mcp")
    try:
        return _load()
    except ModuleNotFoundError as error:
        raise McpMissing(server, f"install democrai-sandbox[mcp]: the module {error.name} is missing") from None


@cache
def _load() -> ModuleType:
    import_module("mcp.client")
    for name in LATE:
        import_module(name)
    _complete(import_module("pydantic").BaseModel)
    for name in _LOGGERS:
        # It logs the errors that it also raises; without a handler they would go to standard error.
        logging.getLogger(name).addHandler(logging.NullHandler())
    return import_module(f"{__package__}.conversation")


def _complete(base: Any) -> None:
    """Complete the library's models that are otherwise built on first use.

    Building one inspects the variables of its first user for type definitions. Inside a guard that is refused for our
    frames.
    """
    for model in base.__subclasses__():
        if model.__module__.partition(".")[0] in _MODELS and not model.__pydantic_complete__:
            model.model_rebuild(raise_errors=False)
        _complete(model)
