"""Networking of asyncio on a uvloop loop, for guarded callers.

Their bytes then pass through Python's sockets, pipes and processes, where the core checks them. Callbacks, timers and
waiting for descriptors stay with the loop.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from asyncio import unix_events
from contextlib import suppress
from typing import Any, NoReturn

_OUTER = (
    *("call_soon", "call_soon_threadsafe", "call_later", "call_at", "time", "get_debug", "is_running", "is_closed"),
    *("create_future", "create_task", "run_in_executor", "call_exception_handler", "default_exception_handler"),
    *("add_reader", "remove_reader", "add_writer", "remove_writer"),
)
"""Methods that the loop provides."""
_DESCRIPTORS = ("add_reader", "remove_reader", "add_writer", "remove_writer")


class CheckedNetwork(asyncio.SelectorEventLoop):
    """Networking half of asyncio's loop on top of another loop. It is never run and needs no closing."""

    def __init__(self, loop: Any) -> None:
        # Without the base's constructor, which would open a selector and a pair of sockets.
        self._outer = loop
        self._transports: Any = weakref.WeakValueDictionary()
        self._unix_server_sockets: Any = {}
        self._debug = loop.get_debug()
        for name in _OUTER:
            setattr(self, name, getattr(loop, name))
        for name in _DESCRIPTORS:
            setattr(self, f"_{name}", getattr(loop, name))

    def __del__(self) -> None:
        """Skip the base's finalizer."""

    def __repr__(self) -> str:
        return f"<networking of asyncio on {self._outer!r}>"

    def _check_closed(self) -> None:
        if self._outer.is_closed():
            raise RuntimeError("Event loop is closed")

    def _monitor_fs(self, *args: Any) -> NoReturn:
        raise NotImplementedError("uvloop cannot watch files for guarded code")

    async def _make_subprocess_transport(self, protocol: Any, *args: Any, **kwargs: Any) -> Any:
        """Start a child as asyncio does, without its child watchers, which other policies do not have."""
        waiter = self.create_future()
        transport: Any = unix_events._UnixSubprocessTransport(  # type: ignore[attr-defined] # noqa: SLF001
            self, protocol, *args, waiter=waiter, **kwargs
        )
        threading.Thread(target=_wait_for_end, args=(transport, self._outer), daemon=True).start()
        try:
            await waiter
        except Exception:
            transport.close()
            await transport._wait()  # noqa: SLF001
            raise
        return transport


def _wait_for_end(transport: Any, loop: Any) -> None:
    code = transport.get_extra_info("subprocess").wait()
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(transport._process_exited, code)  # noqa: SLF001
