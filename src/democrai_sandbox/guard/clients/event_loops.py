"""Event loops of asyncio and ``uvloop``: raise a denial instead of the error that wraps it. Sockets do the checks.

Retry a connection while the packet filter is being opened for it, without blocking the loop.

The loop is a native type, so the core replaces its methods, without running Python when the module is loaded.
"""

from __future__ import annotations

import socket
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import ExternalAccessCheckFailed, HelperOpening
from democrai_sandbox.guard import _core
from democrai_sandbox.policy import SandboxError

from .adapter import adapter

if TYPE_CHECKING:
    from collections.abc import Callable

    from .adapter import Method

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
            from asyncio import sleep  # not before there is a loop

            await sleep(_PAUSE)

    return sock_connect


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


if TYPE_CHECKING:
    Row = tuple[str, str, str, Callable[..., Any] | None, str | None]

_NETWORK = (
    *("getaddrinfo", "getnameinfo", "sock_connect"),
    *("create_connection", "create_server", "create_datagram_endpoint", "start_tls", "connect_accepted_socket"),
    *("create_unix_connection", "create_unix_server", "connect_read_pipe", "connect_write_pipe"),
    *("subprocess_exec", "subprocess_shell"),
)
_TRANSPORTS = {
    "UVStream": ("write", "writelines", "write_eof"),
    "UDPTransport": ("sendto",),
    "_SSLProtocolTransport": ("write", "writelines", "write_eof"),
}
"""Transports of the host: guarded code uses asyncio's transports."""
_SCHEDULING = {"call_soon": 0, "call_soon_threadsafe": 0, "call_later": 1, "call_at": 1}
"""Position of the callback among the arguments."""
_KEEPING = ("set_exception_handler", "set_task_factory")


def _checked(name: str) -> Method:
    async def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Imported late, because it needs asyncio.
        from .uvloop_network import CheckedNetwork

        return await getattr(CheckedNetwork(self), name)(*args, **kwargs)

    return method


def _in_context(name: str, at: int) -> Method:
    """Schedule a callback for another context; Python enters that context under the guard."""

    def method(self: Any, *args: Any, context: Any = None) -> Any:
        if context is not None:
            args = (*args[:at], context.run, *args[at:])
        return getattr(self, name)(*args)

    return method


def _refused(self: Any, *args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("uvloop cannot watch files for guarded code")


def _foreign(*_: Any, **__: Any) -> None:
    _core.deny_foreign()


def _row(name: str, function: Method | None, keyword: str | None = None) -> Row:
    if function is not None:
        function.__name__ = name
        function.__qualname__ = f"Loop.{name}"
    return ("uvloop.loop", "Loop", name, function, keyword)


DIVERTED: tuple[Row, ...] = (
    *(_row(name, _checked(name)) for name in _NETWORK),
    *(_row(name, _in_context(name, at), "context") for name, at in _SCHEDULING.items()),
    *(_row(name, None) for name in _KEEPING),
    _row("_monitor_fs", _refused),
    *(("uvloop.loop", owner, name, _foreign, None) for owner, names in _TRANSPORTS.items() for name in names),
)
"""Module, type, method; the replacement for guarded callers (None: the original, with its functions bound to the
caller); a keyword without which the original can be used."""
