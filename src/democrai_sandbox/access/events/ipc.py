"""Events between the processes of one user on one host, over a Unix socket.

The first node that gets the lock becomes the hub; all nodes connect to it, including itself. When it exits, the kernel
releases the lock and the next node takes over.
"""

from __future__ import annotations

import os
import socket
import threading
import weakref
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .frames import Frames, framed
from .hub import Hub, no_fork
from .linked import LinkedBus, LinkLost
from .message import json_object
from .rendezvous import Folder, checked_folder, folder_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

CHECKS: Mapping[str, Callable[[object], Any]] = MappingProxyType({"folder": folder_path})
"""Validator of each setting except the channel."""

_LONGEST_WAIT = 0.5
_HELLO_WITHIN = 2.0
_ONE_READ = 64 * 1024


class IpcBus(LinkedBus):
    """Bus between nodes with the same folder and channel, which must run as the folder's owner or root."""

    def __init__(self, *, folder: str | os.PathLike[str], channel: str = "access") -> None:
        super().__init__(kind="ipc", channel=channel, longest_wait=_LONGEST_WAIT)
        self._path = checked_folder(folder)
        self._sockets = threading.Lock()
        self._link: socket.socket | None = None
        self._hub: Hub | None = None
        os.register_at_fork(after_in_child=_forgetter(weakref.ref(self)))

    def forget(self) -> None:
        """Close everything silently in a forked child."""
        if self._link is not None:
            self._link.close()
        if self._hub is not None:
            self._hub.forget()

    def _listen(self) -> None:
        with Folder.open(self._path) as folder:
            link = self._connect(folder)
        with link:
            with self._sockets:
                self._link = link
                if self._stopping.is_set():
                    return
            try:
                self._hear_all(link)
            finally:
                with self._sockets:
                    self._link = None

    def _hear_all(self, link: socket.socket) -> None:
        messages = _messages(link)
        hello = json_object(next(messages))
        if hello is None or hello.get("hub") is not True:
            raise LinkLost("the listener is not an event hub")
        link.settimeout(None)
        self._has_joined()
        for message in messages:
            self._hear(message)

    def _connect(self, folder: Folder) -> socket.socket:
        socket_name, lock_name = f"{self._channel}.sock", f"{self._channel}.lock"
        try:
            return folder.connect(socket_name, timeout=_HELLO_WITHIN)
        except (FileNotFoundError, ConnectionRefusedError, PermissionError):
            # The socket has no listener or an untrusted one. The lock shows whether a hub exists.
            self._let_go()
        with no_fork:
            lock = folder.lock(lock_name)
            if lock is None:
                raise LinkLost("no hub is running")
            self._hub = Hub(folder, lock, lock_name=lock_name, socket_name=socket_name)
        return folder.connect(socket_name, timeout=_HELLO_WITHIN)

    def _send(self, event: bytes) -> None:
        data = framed(event)
        with self._sockets:
            if self._link is None:
                raise LinkLost("not connected")
            # Never waits: a hub that does not read counts as lost.
            if self._link.send(data, socket.MSG_DONTWAIT) < len(data):
                self._link.shutdown(socket.SHUT_RDWR)
                raise LinkLost("only a part was sent")

    def _interrupt(self) -> None:
        with self._sockets:
            if self._link is not None:
                with suppress(OSError):  # the connection may have ended already
                    self._link.shutdown(socket.SHUT_RDWR)

    def _let_go(self) -> None:
        hub, self._hub = self._hub, None
        if hub is not None:
            hub.stop()


def _messages(link: socket.socket) -> Iterator[bytes]:
    frames = Frames()
    while data := link.recv(_ONE_READ):
        yield from frames.feed(data)
    raise LinkLost("the hub closed the connection")


def _forgetter(reference: weakref.ref[IpcBus]) -> Callable[[], None]:
    def forget() -> None:
        bus = reference()
        if bus is not None:
            bus.forget()

    return forget


os.register_at_fork(before=no_fork.acquire, after_in_parent=no_fork.release, after_in_child=no_fork.release)
