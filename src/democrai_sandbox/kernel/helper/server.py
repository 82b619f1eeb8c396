"""Serve the helper's socket, until the application ends. Each client is identified before any of its bytes are read."""

from __future__ import annotations

import array
import os
import resource
import select
import signal
import socket
import threading
import time
import traceback
from collections import deque
from contextlib import suppress
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple

from .protocol import LONGEST_LINE, RequestRefused, encode_answer, parse_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from .actions import ActionResult, Actions
    from .main import HelperLog
    from .processes import Handle, ProcessFamily

_LOOK_AGAIN = 1.0
"""Seconds between two checks of the application on kernels without process descriptors."""
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class HelperEvent(Enum):
    """Event that ended the wait."""

    CONNECTION = auto()
    PARENT_GONE = auto()
    ASKED_TO_END = auto()


class EventWait:
    """Wait for several events; the application's end has priority."""

    def __init__(self, parent: Handle, listener: socket.socket) -> None:
        self._parent = parent
        self._listener = listener
        self._looked = time.monotonic()
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)
        if parent.descriptor is not None:
            self._poll.register(parent.descriptor, select.POLLIN)

    def heed_signals(self) -> None:
        """Treat SIGTERM and SIGINT as a stop request. Call from the main thread only."""
        for number in _ENDING:
            signal.signal(number, lambda *_: self.wake())

    def wake(self) -> None:
        """End the wait with a stop request, from any thread or signal handler."""
        with suppress(BlockingIOError):  # already woken
            os.write(self._waker, b"\0")

    def next(self) -> HelperEvent:
        """Wait for the next event and return it."""
        patience = None if self._parent.descriptor is not None else _LOOK_AGAIN * 1000
        while True:
            ready = {descriptor for descriptor, _ in self._poll.poll(patience)}
            if self._parent.descriptor in ready or self._seen_dead():
                return HelperEvent.PARENT_GONE
            if self._woken in ready:
                return HelperEvent.ASKED_TO_END
            if ready:
                return HelperEvent.CONNECTION

    def parent_ends_within(self, seconds: float) -> bool:
        """Wait for the application's end, if both were stopped together. Another stop request ends the wait."""
        self._poll.unregister(self._listener)
        with suppress(BlockingIOError):
            os.read(self._woken, 64)
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            ready = {descriptor for descriptor, _ in self._poll.poll(min(left, _LOOK_AGAIN / 4) * 1000)}
            if not self._parent.alive():
                return True
            if self._woken in ready:
                break
        return False

    def _seen_dead(self) -> bool:
        """Check the application periodically, even if connections arrive without a pause."""
        if self._parent.descriptor is not None or time.monotonic() - self._looked < _LOOK_AGAIN:
            return False
        self._looked = time.monotonic()
        return not self._parent.alive()


_READ_WITHIN = 2.0
_SEND_WITHIN = 2.0
_DRAIN_WITHIN = 0.5
_ONE_READ = 16 * 1024
_MOST_WAITING = 512
_KEPT_DESCRIPTORS = 384
"""Descriptors reserved for other connections and for the work itself."""
_AFTER_EXHAUSTION = 0.05
_BUSY = RequestRefused("busy", "too many requests at the same time", "wait for answers before you send more")


class ClientConnection(NamedTuple):
    """Connection with its client, or with the reason for refusing it unread."""

    connection: socket.socket
    client: Handle | None = None
    refused: RequestRefused | None = None


class ConnectionQueue:
    """Queue of connections with a limit, served by a few threads, which end when it is empty."""

    def __init__(self, name: str, serve: Callable[[ClientConnection], None], *, threads: int, waiting: int) -> None:
        self._name = name
        self._serve = serve
        self._threads = threads
        self._most_waiting = waiting
        self._running = 0
        self._waiting: deque[ClientConnection] = deque()
        self._lock = threading.Lock()

    def take(self, incoming: ClientConnection) -> bool:
        """Queue a connection; return whether the queue has room."""
        with self._lock:
            if self._running >= self._threads:
                if len(self._waiting) >= self._most_waiting:
                    return False
                self._waiting.append(incoming)
                return True
            thread = threading.Thread(target=self._run, args=(incoming,), name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the thread limit is reached
                return False
            self._running += 1
            return True

    def _run(self, incoming: ClientConnection | None) -> None:
        while incoming is not None:
            self._serve(incoming)
            with self._lock:
                incoming = self._waiting.popleft() if self._waiting else None
                if incoming is None:
                    self._running -= 1


class HelperServer:
    """Server that accepts connections until the helper must end.

    The application has a separate queue, which other clients cannot fill. Refused clients get an answer without
    blocking the others.
    """

    def __init__(
        self, listener: socket.socket, family: ProcessFamily, actions: Actions, watch: EventWait, log: HelperLog
    ) -> None:
        self._listener = listener
        self._listener.settimeout(0)
        self._family = family
        self._actions = actions
        self._watch = watch
        self._log = log
        self._parents = ConnectionQueue("parent", self._serve, threads=16, waiting=_room())
        self._others = ConnectionQueue("others", self._serve, threads=8, waiting=32)
        self._refusals = ConnectionQueue("refusals", self._serve, threads=2, waiting=16)

    def run(self) -> HelperEvent:
        """Serve until an event ends it; return that event."""
        while (event := self._watch.next()) is HelperEvent.CONNECTION:
            self._accept()
        return event

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError, InterruptedError):
            return
        except OSError as error:  # for example, no free descriptor
            self._log.say(f"a connection could not be accepted: {error}")
            time.sleep(_AFTER_EXHAUSTION)
            return
        try:
            client = self._family.client(connection)
        except RequestRefused as refused:
            self._refuse(ClientConnection(connection, refused=refused))
            return
        except (OSError, ValueError) as error:
            self._refuse(
                ClientConnection(
                    connection, refused=RequestRefused("failed", f"the client could not be identified: {error}")
                )
            )
            return
        queue = self._parents if self._family.is_parent(client) else self._others
        if not queue.take(ClientConnection(connection, client)):
            client.close()
            self._refuse(ClientConnection(connection, refused=_BUSY))

    def _refuse(self, incoming: ClientConnection) -> None:
        if self._refusals.take(incoming):
            return
        with incoming.connection as connection, suppress(OSError):
            connection.settimeout(0)
            connection.sendall(encode_answer((incoming.refused or _BUSY).answer()))

    def _serve(self, incoming: ClientConnection) -> None:
        try:
            with incoming.connection:
                if incoming.client is None:
                    self._turn_away(incoming.connection, incoming.refused or _BUSY)
                    return
                with incoming.client:
                    self._hear(incoming.connection, incoming.client)
        except OSError as error:
            self._log.flow("connection.lost", error=str(error))
        except Exception:  # noqa: BLE001 - one request must never stop the helper
            self._log.say(f"a request failed: {traceback.format_exc()}")

    def _hear(self, connection: socket.socket, client: Handle) -> None:
        try:
            line = _receive(connection)
            if not line:
                return  # closed without a request
            request = parse_request(line)
        except RequestRefused as refused:
            self._turn_away(connection, refused)
            return
        self._log.flow("request", action=request.action, client=client.pid)
        try:
            outcome = self._actions.answer(request, client)
        except RequestRefused as refused:
            self._log.say(f"{request.action[:40]!a} for process {client.pid} refused: {refused}")
            self._turn_away(connection, refused)
        except Exception as error:  # noqa: BLE001 - report it to the client and continue
            self._log.say(f"{request.action} failed: {traceback.format_exc()}")
            self._turn_away(
                connection, RequestRefused("failed", f"{type(error).__name__}: {error}", "see the helper's log")
            )
        else:
            self._deliver(connection, outcome)

    def _deliver(self, connection: socket.socket, outcome: ActionResult) -> None:
        try:
            connection.settimeout(_SEND_WITHIN)
            line = encode_answer({"ok": True, **outcome.fields})
            rights = array.array("i", [outcome.descriptor] if outcome.descriptor >= 0 else [])
            control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else []
            sent = connection.sendmsg([line], control)
            if sent < len(line):  # send no more than needed: a client that has read its line may have closed
                connection.sendall(line[sent:])
        except BaseException:
            self._actions.undo(outcome)
            raise
        finally:
            if outcome.ends:
                self._watch.wake()
        if outcome.descriptor >= 0:
            os.close(outcome.descriptor)

    def _turn_away(self, connection: socket.socket, refused: RequestRefused) -> None:
        """Answer before reading everything, then discard the remaining input, so that the client gets the answer."""
        self._log.flow("refused", reason=refused.reason, error=refused.error)
        connection.settimeout(_DRAIN_WITHIN)
        connection.sendall(encode_answer(refused.answer()))
        connection.shutdown(socket.SHUT_WR)
        until = time.monotonic() + _DRAIN_WITHIN
        with suppress(OSError):
            while (left := until - time.monotonic()) > 0:
                connection.settimeout(left)
                if not connection.recv(_ONE_READ):
                    return


def _room() -> int:
    """Return the queue limit for the application. Each connection needs two descriptors.

    Some descriptors stay reserved, so that the helper can always clean up after the application.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return _MOST_WAITING
    return max(0, min(_MOST_WAITING, (limit - _KEPT_DESCRIPTORS) // 2))


def _receive(connection: socket.socket) -> bytes:
    """Read one line, or until the end of input, within a fixed deadline."""
    until = time.monotonic() + _READ_WITHIN
    line = b""
    while b"\n" not in line:
        left = until - time.monotonic()
        if left <= 0:
            raise RequestRefused(
                "bad_request", f"the request is incomplete after {_READ_WITHIN:g} seconds", "send it as a whole"
            )
        connection.settimeout(left)
        try:
            part = connection.recv(_ONE_READ)
        except TimeoutError:
            continue
        if not part:
            break
        line += part
        if len(line) > LONGEST_LINE:
            raise RequestRefused(
                "bad_request", f"the request is longer than {LONGEST_LINE} bytes", "send a shorter request"
            )
    return line.partition(b"\n")[0]
