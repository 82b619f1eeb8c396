"""asyncio's own connections, which are checked at the socket: a denial is not lost in an error about all addresses."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from democrai_sandbox.policy import SandboxError

from .patching import adapter

if TYPE_CHECKING:
    from .patching import Method

_denials: ContextVar[list[SandboxError] | None] = ContextVar("_denials", default=None)
"""What was denied while one connection is being made, in whichever tasks its attempts run."""


def _connect_sock(original: Method) -> Method:
    async def _connect_sock(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return await original(self, *args, **kwargs)
        except SandboxError as denial:
            kept = _denials.get()
            if kept is not None:
                kept.append(denial)
            raise

    return _connect_sock


def _create_connection(original: Method) -> Method:
    async def create_connection(self: Any, *args: Any, **kwargs: Any) -> Any:
        kept: list[SandboxError] = []
        token = _denials.set(kept)
        try:
            return await original(self, *args, **kwargs)
        except OSError as error:
            if not kept or isinstance(error, SandboxError):
                raise
            denial = kept[0]
        finally:
            _denials.reset(token)
            kept.clear()
        raise denial

    return create_connection


install = adapter(
    ("BaseEventLoop", "_connect_sock", _connect_sock),
    ("BaseEventLoop", "create_connection", _create_connection),
)
