"""Connections and servers of asyncio: raise a denial instead of the error that wraps it. Sockets do the checks.

Retry a connection while the packet filter is being opened for it, without blocking the loop.
"""

from __future__ import annotations

import socket
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import ExternalAccessCheckFailed, HelperOpening
from democrai_sandbox.policy import SandboxError

from .patching import adapter

if TYPE_CHECKING:
    from .patching import Method

_denials: ContextVar[list[SandboxError] | None] = ContextVar("_denials", default=None)
"""Denials of one connection attempt, from all tasks it uses."""


_PAUSE = 0.02
"""Seconds between two attempts at a connection for which the packet filter is being opened."""


def _sock_connect(original: Method) -> Method:
    async def sock_connect(self: Any, *args: Any, **kwargs: Any) -> Any:
        while True:
            try:
                return await original(self, *args, **kwargs)
            except ExternalAccessCheckFailed as error:
                if not isinstance(error.__cause__, HelperOpening):
                    raise
            await _pause()

    return sock_connect


async def _pause() -> None:
    from asyncio import sleep  # not before there is a loop

    await sleep(_PAUSE)


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


def _create_server(original: Method) -> Method:
    async def create_server(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            server = await original(self, *args, **kwargs)
        except OSError as error:
            # asyncio replaces a denial at bind() by another error.
            if isinstance(error, SandboxError) or not isinstance(error.__context__, SandboxError):
                raise
            denial = error.__context__
        else:
            if not server.sockets:
                # asyncio continues with the next address if a socket cannot be created. Raise the denial here.
                socket.socket().close()
            return server
        raise denial

    return create_server


install = adapter(
    ("BaseEventLoop", "_connect_sock", _connect_sock),
    ("BaseEventLoop", "create_connection", _create_connection),
    ("BaseEventLoop", "create_server", _create_server),
)
install_selector = adapter(("BaseSelectorEventLoop", "sock_connect", _sock_connect))
