"""``uvloop``, whose loops connect, resolve and fork in C: guarded callers get asyncio's methods instead.

The loop is a native type, so the core replaces its methods, without running Python when the module is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from democrai_sandbox.guard import _core

if TYPE_CHECKING:
    from collections.abc import Callable

    from .patching import Method

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


def _row(name: str, function: Method | None, keyword: str | None = None, owner: str = "Loop") -> Row:
    if function is not None:
        function.__name__ = name
        function.__qualname__ = f"{owner}.{name}"
    return ("uvloop.loop", owner, name, function, keyword)


DIVERTED: tuple[Row, ...] = (
    *(_row(name, _checked(name)) for name in _NETWORK),
    *(_row(name, _in_context(name, at), "context") for name, at in _SCHEDULING.items()),
    *(_row(name, None) for name in _KEEPING),
    _row("_monitor_fs", _refused),
    *(("uvloop.loop", owner, name, _foreign, None) for owner, names in _TRANSPORTS.items() for name in names),
)
"""Module, type, method; the replacement for guarded callers (None: the original, with its functions bound to the
caller); a keyword without which the original can be used."""
