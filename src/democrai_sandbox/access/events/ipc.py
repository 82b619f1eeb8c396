"""Events between the processes of one user on one host, over a Unix socket."""

from __future__ import annotations

import fcntl
import logging
import os
import selectors
import socket
import stat
import struct
import threading
import time
import weakref
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from democrai_sandbox._util.worker_thread import WorkerThread
from democrai_sandbox.policy import InvalidInputError
from democrai_sandbox.policy.text import shown

from .bus import LONGEST_MESSAGE, VERSION, ConnectedBus, ConnectionLost, json_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_CREDENTIALS = struct.Struct("iII")
_ROOT = 0
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class HubFolder:
    """Folder that only its owner can enter. It is held open, so that the checked folder is the one in use."""

    def __init__(self, number: int, owner: int) -> None:
        self.number = number
        self.owner = owner

    @classmethod
    def open(cls, path: Path) -> HubFolder:
        """Open the folder, creating it if it is missing; raises ``PermissionError`` if others can enter it."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = os.open(path, _OPEN_FOLDER)
        status = os.fstat(number)
        wrong = _what_is_wrong(status)
        if wrong:
            os.close(number)
            raise PermissionError(wrong)
        return cls(number, status.st_uid)

    def close(self) -> None:
        """Close the folder."""
        os.close(self.number)

    def again(self) -> HubFolder:
        """Return a second descriptor of the same folder."""
        return HubFolder(os.dup(self.number), self.owner)

    def address(self, name: str) -> str:
        """Return a socket address in the folder that is short, however deep the folder is."""
        return f"/proc/self/fd/{self.number}/{name}"

    def trusts(self, link: socket.socket) -> bool:
        """Return whether the peer process belongs to the folder's owner or root."""
        data = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, user, _ = _CREDENTIALS.unpack(data)
        return user in (self.owner, _ROOT)

    def lock(self, name: str) -> int | None:
        """Lock the file of this name and return its descriptor, which unlocks it when closed, or None if it is taken.

        Root does not take the lock in another user's folder, because that user's nodes could not connect to its hub.
        """
        if os.geteuid() != self.owner:
            return None
        number = os.open(name, _OPEN_LOCK, 0o600, dir_fd=self.number)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(number)
            return None
        if not self.has(name, os.fstat(number)):
            # The file was removed between opening and locking, so other nodes lock a new file of this name.
            os.close(number)
            return None
        return number

    def bind(self, name: str) -> tuple[socket.socket, os.stat_result]:
        """Return a listening socket of this name, replacing an older one, and its file status. Requires the lock."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.number)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Before the name exists, so that other users can never connect.
            os.fchmod(listener.fileno(), 0o600)
            listener.bind(self.address(name))
            listener.listen(128)
            return listener, os.stat(name, dir_fd=self.number, follow_symlinks=False)
        except OSError:
            listener.close()
            raise

    def connect(self, name: str, *, timeout: float) -> socket.socket:
        """Connect to the socket of this name if its listener is trusted; the timeout stays set."""
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.settimeout(timeout)
            link.connect(self.address(name))
            if not self.trusts(link):
                raise PermissionError("the socket of the hub belongs to another user")
        except OSError:
            link.close()
            raise
        return link

    def has(self, name: str, status: os.stat_result) -> bool:
        """Return whether the name still refers to this file."""
        try:
            return os.path.samestat(os.stat(name, dir_fd=self.number, follow_symlinks=False), status)
        except FileNotFoundError:
            return False


def folder_path(path: object) -> Path:
    """Return the absolute path of a folder, which does not need to exist."""
    if not isinstance(path, (str, os.PathLike)) or not str(path):
        raise InvalidInputError.of(f"expected a path, got {shown(path)}", pointer="/folder")
    return Path(path).absolute()


def checked_folder(path: object) -> Path:
    """Return the absolute path of a folder after creating it if necessary and checking its owner and mode."""
    absolute = folder_path(path)
    try:
        HubFolder.open(absolute).close()
    except OSError as error:
        raise InvalidInputError.of(f"{shown(str(path))}: {error.strerror or error}", pointer="/folder") from error
    return absolute


def _what_is_wrong(folder: os.stat_result) -> str:
    user = os.geteuid()
    if user not in (folder.st_uid, _ROOT):
        return "the folder belongs to another user"
    if stat.S_IMODE(folder.st_mode) & 0o077:
        return "other users can enter the folder; run chmod 700 on it"
    return ""


_LENGTH = 4


class StreamError(ValueError):
    """Data that violates this protocol."""


def to_frame(message: bytes) -> bytes:
    """Return the message with its length prefix."""
    return len(message).to_bytes(_LENGTH) + message


class FrameAssembler:
    """Assembler of received bytes into messages. Buffers at most one incomplete message."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the complete messages; raises ``StreamError`` for an invalid length."""
        self._data += data
        start = 0
        try:
            while len(self._data) - start >= _LENGTH:
                length = int.from_bytes(self._data[start : start + _LENGTH])
                if not 0 < length <= LONGEST_MESSAGE:
                    raise StreamError(f"invalid message length of {length} bytes")
                end = start + _LENGTH + length
                if end > len(self._data):
                    return
                yield bytes(self._data[start + _LENGTH : end])
                start = end
        finally:
            del self._data[:start]


_LOG = logging.getLogger(__name__)
_MOST_NODES = 512
_MOST_WAITING = 256 * 1024
"""Maximum number of unread bytes per node. A node above it is disconnected; it reconnects and reads what it missed."""
_ONE_READ = 64 * 1024
_LOOK_AROUND = 1.0
"""Seconds between two checks that the lock and the socket still have their names."""
_AFTER_REFUSAL = 0.05

HELLO = to_frame(b'{"v":%d,"hub":true}' % VERSION)
"""First message of the hub: from now on, no event is missed."""

no_fork = threading.Lock()
"""Held while descriptors of a hub are opened or closed, and around a fork: a child inherits all of them, or none."""


@dataclass(eq=False, slots=True)
class _HubPeer:
    link: socket.socket
    frames: FrameAssembler = field(default_factory=FrameAssembler)
    waiting: bytearray = field(default_factory=bytearray)


class Hub:
    """Hub in a thread of the node that holds the lock. Serves only processes of the folder's owner and root.

    The first node that gets the lock becomes the hub; all nodes connect to it, including itself. When it exits, the
    kernel releases the lock and the next node takes over.
    """

    def __init__(self, folder: HubFolder, lock: int, *, lock_name: str, socket_name: str) -> None:
        """Take over a held lock, which is released when the hub stops or fails to start."""
        self._folder = folder.again()
        self._lock, self._lock_name, self._socket_name = lock, lock_name, socket_name
        self._nodes: dict[socket.socket, _HubPeer] = {}
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
        self._worker = WorkerThread(f"events-hub-{socket_name}", self._run)
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
                    if not (
                        self._folder.has(self._lock_name, os.fstat(self._lock))
                        and self._folder.has(self._socket_name, self._listens_at)
                    ):
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
        node = _HubPeer(link)
        self._nodes[link] = node
        self._selector.register(link, selectors.EVENT_READ)
        self._tell(node, HELLO)

    def _pass_on(self, node: _HubPeer) -> None:
        try:
            data = node.link.recv(_ONE_READ)
            said = b"".join(to_frame(message) for message in node.frames.feed(data) if _is_said(message))
        except BlockingIOError:
            return
        except (OSError, StreamError):
            self._drop(node)
            return
        if said:
            for other in [other for other in self._nodes.values() if other is not node]:
                self._tell(other, said)
        if not data:
            self._drop(node)

    def _tell(self, node: _HubPeer, data: bytes) -> None:
        node.waiting += data
        self._flush(node)
        if len(node.waiting) > _MOST_WAITING:
            self._drop(node)

    def _flush(self, node: _HubPeer) -> None:
        try:
            del node.waiting[: node.link.send(node.waiting)]
        except BlockingIOError:
            pass
        except OSError:
            self._drop(node)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if node.waiting else 0)
        self._selector.modify(node.link, events)

    def _drop(self, node: _HubPeer) -> None:
        if self._nodes.pop(node.link, None) is not None:
            self._selector.unregister(node.link)
            node.link.close()


def _is_said(message: bytes) -> bool:
    if json_object(message) is None:
        raise StreamError("the message is not a JSON object")
    return True


CHECKS: Mapping[str, Callable[[object], Any]] = MappingProxyType({"folder": folder_path})
"""Validator of each setting except the channel."""

_LONGEST_WAIT = 0.5
_HELLO_WITHIN = 2.0


class IpcBus(ConnectedBus):
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
        with closing(HubFolder.open(self._path)) as folder:
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
            raise ConnectionLost("the listener is not an event hub")
        link.settimeout(None)
        self._has_joined()
        for message in messages:
            self._hear(message)

    def _connect(self, folder: HubFolder) -> socket.socket:
        socket_name, lock_name = f"{self._channel}.sock", f"{self._channel}.lock"
        try:
            return folder.connect(socket_name, timeout=_HELLO_WITHIN)
        except (FileNotFoundError, ConnectionRefusedError, PermissionError):
            # The socket has no listener or an untrusted one. The lock shows whether a hub exists.
            self._let_go()
        with no_fork:
            lock = folder.lock(lock_name)
            if lock is None:
                raise ConnectionLost("no hub is running")
            self._hub = Hub(folder, lock, lock_name=lock_name, socket_name=socket_name)
        return folder.connect(socket_name, timeout=_HELLO_WITHIN)

    def _send(self, event: bytes) -> None:
        data = to_frame(event)
        with self._sockets:
            if self._link is None:
                raise ConnectionLost("not connected")
            # Never waits: a hub that does not read counts as lost.
            if self._link.send(data, socket.MSG_DONTWAIT) < len(data):
                self._link.shutdown(socket.SHUT_RDWR)
                raise ConnectionLost("only a part was sent")

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
    frames = FrameAssembler()
    while data := link.recv(_ONE_READ):
        yield from frames.feed(data)
    raise ConnectionLost("the hub closed the connection")


def _forgetter(reference: weakref.ref[IpcBus]) -> Callable[[], None]:
    def forget() -> None:
        bus = reference()
        if bus is not None:
            bus.forget()

    return forget


os.register_at_fork(before=no_fork.acquire, after_in_parent=no_fork.release, after_in_child=no_fork.release)
