"""Hub of the nodes on one host: forwards the messages of each node to all others."""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from democrai_sandbox.access.threads import Worker

from .frames import FrameError, Frames, framed
from .message import VERSION, json_object

if TYPE_CHECKING:
    from .rendezvous import Folder

_LOG = logging.getLogger(__name__)
_MOST_NODES = 512
_MOST_WAITING = 256 * 1024
"""Maximum number of unread bytes per node. A node above it is disconnected; it reconnects and reads what it missed."""
_ONE_READ = 64 * 1024
_LOOK_AROUND = 1.0
"""Seconds between two checks that the lock and the socket still have their names."""
_AFTER_REFUSAL = 0.05

HELLO = framed(b'{"v":%d,"hub":true}' % VERSION)
"""First message of the hub: from now on, no event is missed."""

no_fork = threading.Lock()
"""Held while descriptors of a hub are opened or closed, and around a fork: a child inherits all of them, or none."""


@dataclass(eq=False, slots=True)
class _Node:
    link: socket.socket
    frames: Frames = field(default_factory=Frames)
    waiting: bytearray = field(default_factory=bytearray)


class Hub:
    """Hub in a thread of the node that holds the lock. Serves only processes of the folder's owner and root."""

    def __init__(self, folder: Folder, lock: int, *, lock_name: str, socket_name: str) -> None:
        """Take over a held lock, which is released when the hub stops or fails to start."""
        self._folder = folder.again()
        self._lock, self._lock_name, self._socket_name = lock, lock_name, socket_name
        self._nodes: dict[socket.socket, _Node] = {}
        self._stopping = self._closed = False
        try:
            self._listener, self._listens_at = self._folder.bind(socket_name)
        except OSError:
            os.close(lock)
            self._folder.close()
            raise
        self._listener.settimeout(0)
        self._awake, self._wake = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._awake, selectors.EVENT_READ)
        self._worker = Worker(f"events-hub-{socket_name}", self._run)
        self._worker.start()

    def stop(self) -> None:
        """Disconnect all nodes, so that another one becomes the hub. Called once."""
        self._stopping = True
        with suppress(OSError):  # the hub may have ended already
            self._wake.send(b"x")
        self._worker.join()
        self._wake.close()

    def forget(self) -> None:
        """Close everything silently in a forked child, which would otherwise keep the lock and the connections."""
        if self._closed:
            return
        self._closed = True
        for link in (*self._nodes, self._listener, self._awake, self._wake):
            link.close()
        self._nodes.clear()
        self._selector.close()
        self._folder.close()
        os.close(self._lock)

    def _run(self) -> None:
        try:
            next_look = time.monotonic() + _LOOK_AROUND
            while not self._stopping:
                for key, events in self._selector.select(_LOOK_AROUND):
                    self._serve(key.fileobj, events)
                if time.monotonic() >= next_look:
                    if not self._is_found():
                        _LOG.warning("the lock or socket of the event hub was removed; another hub takes over")
                        return
                    next_look = time.monotonic() + _LOOK_AROUND
        except Exception:  # noqa: BLE001 - the nodes must be released in any case
            _LOG.exception("the event hub failed; another hub takes over")
        finally:
            if self._folder.has(self._socket_name, self._listens_at):
                os.unlink(self._socket_name, dir_fd=self._folder.number)
            with no_fork:
                self.forget()

    def _is_found(self) -> bool:
        return self._folder.has(self._lock_name, os.fstat(self._lock)) and self._folder.has(
            self._socket_name, self._listens_at
        )

    def _serve(self, link: object, events: int) -> None:
        if link is self._listener:
            self._admit()
            return
        node = self._nodes.get(link)  # type: ignore[call-overload]
        if node is None:
            return
        if events & selectors.EVENT_READ:
            self._pass_on(node)
        if events & selectors.EVENT_WRITE and node.link in self._nodes:
            self._flush(node)

    def _admit(self) -> None:
        try:
            link, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            # For example, no free descriptor: the node stays in the queue, and this loop must not spin.
            time.sleep(_AFTER_REFUSAL)
            return
        link.settimeout(0)
        if len(self._nodes) >= _MOST_NODES or not self._folder.trusts(link):
            _LOG.warning("the event hub refused a connection: it belongs to another user, or too many are open")
            link.close()
            return
        node = _Node(link)
        self._nodes[link] = node
        self._selector.register(link, selectors.EVENT_READ)
        self._tell(node, HELLO)

    def _pass_on(self, node: _Node) -> None:
        try:
            data = node.link.recv(_ONE_READ)
            said = b"".join(framed(message) for message in node.frames.feed(data) if _is_said(message))
        except BlockingIOError:
            return
        except (OSError, FrameError):
            self._drop(node)
            return
        if said:
            for other in [other for other in self._nodes.values() if other is not node]:
                self._tell(other, said)
        if not data:
            self._drop(node)

    def _tell(self, node: _Node, data: bytes) -> None:
        node.waiting += data
        self._flush(node)
        if len(node.waiting) > _MOST_WAITING:
            self._drop(node)

    def _flush(self, node: _Node) -> None:
        try:
            del node.waiting[: node.link.send(node.waiting)]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(node)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if node.waiting else 0)
        self._selector.modify(node.link, events)

    def _drop(self, node: _Node) -> None:
        if self._nodes.pop(node.link, None) is not None:
            self._selector.unregister(node.link)
            node.link.close()


def _is_said(message: bytes) -> bool:
    if json_object(message) is None:
        raise FrameError("the message is not a JSON object")
    return True
