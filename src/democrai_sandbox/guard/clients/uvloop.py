"""``uvloop``, whose loops dial, resolve and fork in C: for guarded callers asyncio's own methods take their place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from democrai_sandbox.guard import _core

from .patching import is_loading, replace, unexpected

if TYPE_CHECKING:
    from types import ModuleType

    from .patching import Method

_COROUTINES = (
    *("getaddrinfo", "getnameinfo", "sock_connect"),
    *("create_connection", "create_server", "create_datagram_endpoint", "start_tls", "connect_accepted_socket"),
    *("create_unix_connection", "create_unix_server", "connect_read_pipe", "connect_write_pipe"),
    *("subprocess_exec", "subprocess_shell"),
)
_SCHEDULING = ("call_soon", "call_soon_threadsafe", "call_later", "call_at")
_KEPT = ("set_exception_handler", "set_task_factory")


def install(module: ModuleType) -> bool:
    """Adapt the loops: the native class, which guarded code can name as well as the one that is derived from it."""
    if is_loading(module):
        return False
    native: Any = getattr(getattr(module, "loop", None), "Loop", None)
    for name in _COROUTINES:
        _divert(native, name, _checked(name))
    _divert(native, "_monitor_fs", _refused)
    for name in _SCHEDULING:
        _divert(native, name, _in_context(name), "context")
    for name in _KEPT:
        replace(module, "Loop", name, _bound)
    return True


def _divert(native: Any, name: str, guarded: Method, *keyword: str) -> None:
    """Have guarded callers of a method get another one; the original is out of their reach."""
    guarded.__name__ = name
    guarded.__qualname__ = f"Loop.{name}"
    if not isinstance(native, type) or not _core.divert(native, name, guarded, *keyword):
        unexpected(f"uvloop.loop.Loop.{name}")


def _checked(name: str) -> Method:
    async def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Not before there is a loop: it needs asyncio.
        from .uvloop_network import CheckedNetwork

        return await getattr(CheckedNetwork(self), name)(*args, **kwargs)

    return method


def _refused(self: Any, *args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("uvloop cannot watch files for guarded code")


def _in_context(name: str) -> Method:
    """Schedule a callback that is to run in another context: entered by Python, it is entered under the guard."""

    def method(self: Any, *args: Any, context: Any = None) -> Any:
        at = 1 if name in ("call_later", "call_at") else 0
        if context is not None:
            args = (*args[:at], context.run, *args[at:])
        return getattr(self, name)(*args)

    return method


def _bound(original: Method) -> Method:
    """Keep a function for later, as one of its giver's."""

    def method(self: Any, function: Any) -> Any:
        # Not a context at all, so the core takes it for a foreign one and binds the function.
        return original(self, _core.bind_foreign(function, self) if callable(function) else function)

    return method
