"""The helper's socket: connections are told apart by who made them before any of their bytes is waited for."""

from __future__ import annotations

import array
import os
import resource
import socket
import threading
import time
import traceback
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from .answers import LONGEST_LINE, Refused, encode_answer, parse_request
from .watching import Happened

if TYPE_CHECKING:
    from collections.abc import Callable

    from .actions import Actions, Outcome
    from .journal import Journal
    from .peers import Family
    from .processes import Handle
    from .watching import Watch

_READ_WITHIN = 2.0
_SEND_WITHIN = 2.0
_DRAIN_WITHIN = 0.5
_ONE_READ = 16 * 1024
_MOST_WAITING = 512
_KEPT_DESCRIPTORS = 384
"""For the lanes' other visits, and for the work itself."""
_AFTER_EXHAUSTION = 0.05
_BUSY = Refused("busy", "too many requests at once", "wait for answers before asking more")


class Visit(NamedTuple):
    """One connection: by whom, or why it is refused before anything is read."""

    connection: socket.socket
    client: Handle | None = None
    refused: Refused | None = None


class Lane:
    """Serves visits in a few threads, which end when nobody waits; more visits wait their turn, up to a number."""

    def __init__(self, name: str, serve: Callable[[Visit], None], *, threads: int, waiting: int) -> None:
        self._name = name
        self._serve = serve
        self._threads = threads
        self._most_waiting = waiting
        self._running = 0
        self._waiting: deque[Visit] = deque()
        self._lock = threading.Lock()

    def take(self, visit: Visit) -> bool:
        """Serve it soon; return whether there is room for it."""
        with self._lock:
            if self._running >= self._threads:
                if len(self._waiting) >= self._most_waiting:
                    return False
                self._waiting.append(visit)
                return True
            thread = threading.Thread(target=self._run, args=(visit,), name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no more threads are to be had
                return False
            self._running += 1
            return True

    def _run(self, visit: Visit | None) -> None:
        while visit is not None:
            self._serve(visit)
            with self._lock:
                visit = self._waiting.popleft() if self._waiting else None
                if visit is None:
                    self._running -= 1


class Server:
    """Accepts connections until there is a reason to end.

    The application has a lane of its own, which nobody else can fill. Whoever is refused gets the answer without being
    waited for.
    """

    def __init__(
        self, listener: socket.socket, family: Family, actions: Actions, watch: Watch, journal: Journal
    ) -> None:
        self._listener = listener
        self._listener.settimeout(0)
        self._family = family
        self._actions = actions
        self._watch = watch
        self._journal = journal
        self._parents = Lane("parent", self._serve, threads=16, waiting=_room())
        self._others = Lane("others", self._serve, threads=8, waiting=32)
        self._refusals = Lane("refusals", self._serve, threads=2, waiting=16)

    def run(self) -> Happened:
        """Serve; return why that ended."""
        while (happened := self._watch.next()) is Happened.CONNECTION:
            self._accept()
        return happened

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionError, InterruptedError):
            return
        except OSError as error:  # no more descriptors, for instance
            self._journal.say(f"a connection could not be accepted: {error}")
            time.sleep(_AFTER_EXHAUSTION)
            return
        try:
            client = self._family.client(connection)
        except Refused as refused:
            self._refuse(Visit(connection, refused=refused))
            return
        except (OSError, ValueError) as error:
            self._refuse(Visit(connection, refused=Refused("failed", f"the client could not be looked at: {error}")))
            return
        lane = self._parents if self._family.is_parent(client) else self._others
        if not lane.take(Visit(connection, client)):
            client.close()
            self._refuse(Visit(connection, refused=_BUSY))

    def _refuse(self, visit: Visit) -> None:
        if self._refusals.take(visit):
            return
        with visit.connection as connection, suppress(OSError):
            connection.settimeout(0)
            connection.sendall(encode_answer((visit.refused or _BUSY).answer()))

    def _serve(self, visit: Visit) -> None:
        """Serve one connection; whatever goes wrong with it is over with it."""
        try:
            with visit.connection:
                if visit.client is None:
                    self._turn_away(visit.connection, visit.refused or _BUSY)
                    return
                with visit.client:
                    self._hear(visit.connection, visit.client)
        except OSError as error:
            self._journal.flow("connection.lost", error=str(error))
        except Exception:  # noqa: BLE001 - one request must never be the end of the helper
            self._journal.say(f"a request failed: {traceback.format_exc()}")

    def _hear(self, connection: socket.socket, client: Handle) -> None:
        try:
            line = _receive(connection)
            if not line:
                return  # nobody asked anything
            request = parse_request(line)
        except Refused as refused:
            self._turn_away(connection, refused)
            return
        self._journal.flow("request", action=request.action, client=client.pid)
        try:
            outcome = self._actions.answer(request, client)
        except Refused as refused:
            self._journal.say(f"{request.action[:40]!a} for process {client.pid} refused: {refused}")
            self._turn_away(connection, refused)
        except Exception as error:  # noqa: BLE001 - the client is told, and the helper goes on
            self._journal.say(f"{request.action} failed: {traceback.format_exc()}")
            self._turn_away(connection, Refused("failed", f"{type(error).__name__}: {error}", "see the helper's log"))
        else:
            self._deliver(connection, outcome)

    def _deliver(self, connection: socket.socket, outcome: Outcome) -> None:
        try:
            connection.settimeout(_SEND_WITHIN)
            line = encode_answer({"ok": True, **outcome.fields})
            rights = array.array("i", [outcome.descriptor] if outcome.descriptor >= 0 else [])
            control = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)] if rights else []
            sent = connection.sendmsg([line], control)
            if sent < len(line):  # a client that has read its line may be gone: nothing more is sent without need
                connection.sendall(line[sent:])
        except BaseException:
            self._actions.undo(outcome)
            raise
        finally:
            if outcome.ends:
                self._watch.wake()
        if outcome.descriptor >= 0:
            os.close(outcome.descriptor)

    def _turn_away(self, connection: socket.socket, refused: Refused) -> None:
        """Answer without having read all; what the client still sends is thrown away, so that it sees the answer."""
        self._journal.flow("refused", reason=refused.reason, error=refused.error)
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
    """Return how many visits of the application may wait. Each takes two descriptors.

    Some must be left, or a full house would keep the helper from ending what the application leaves behind.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return _MOST_WAITING
    return max(0, min(_MOST_WAITING, (limit - _KEPT_DESCRIPTORS) // 2))


def _receive(connection: socket.socket) -> bytes:
    """Read up to the end of the line or of what is sent, within a time that sending slowly does not lengthen."""
    until = time.monotonic() + _READ_WITHIN
    line = b""
    while b"\n" not in line:
        left = until - time.monotonic()
        if left <= 0:
            raise Refused("bad_request", f"no whole line came within {_READ_WITHIN:g} seconds", "send it at once")
        connection.settimeout(left)
        try:
            part = connection.recv(_ONE_READ)
        except TimeoutError:
            continue
        if not part:
            break
        line += part
        if len(line) > LONGEST_LINE:
            raise Refused("bad_request", f"the request is longer than {LONGEST_LINE} bytes", "send less at once")
    return line.partition(b"\n")[0]
