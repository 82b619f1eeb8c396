"""Serve requests at the helper's socket until the application ends; identify each client before reading its bytes."""

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
from contextlib import contextmanager, suppress
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

from .cgroups import JoinSockets
from .policy import read_policy, requested_endpoints
from .protocol import LONGEST_LINE, VERSION, HelperRequest, RequestRefused, encode_answer, parse_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .enforcer import Enforcer
    from .main import Arguments, HelperLog
    from .processes import Handle, ProcessFamily
    from .user_files import UserFiles

_LONGEST_WAIT = 60.0


class ActionResult(NamedTuple):
    """Answer to a request."""

    fields: dict[str, Any]
    descriptor: int = -1
    """Descriptor to send with the answer."""
    child: int | None = None
    """Child to release when the answer does not arrive, because no other process knows it."""
    ends: bool = False
    """Whether the helper ends after the answer is sent."""


class Actions:
    """Handlers of all requests, one at a time."""

    def __init__(
        self, enforcer: Enforcer, family: ProcessFamily, arguments: Arguments, user_files: UserFiles, log: HelperLog
    ) -> None:
        self._enforcer = enforcer
        self._family = family
        self._arguments = arguments
        self._user_files = user_files
        self._log = log
        self._lock = threading.Lock()
        self._join_sockets = JoinSockets(family, log)
        self._applied = False
        self.in_force = True
        """Whether rules may exist, including those of a predecessor; false after they are cleared."""
        self._refresh: dict[str, Any] = {"at": None, "error": ""}
        self._table: dict[str, tuple[Callable[[HelperRequest, Handle], ActionResult], frozenset[str]]] = {
            "ping": (self._ping, frozenset()),
            "apply": (self._apply, frozenset({"pid"})),
            "join": (self._join, frozenset({"pid"})),
            "child": (self._child, frozenset({"endpoints"})),
            "release": (self._release, frozenset({"child"})),
            "status": (self._status, frozenset()),
            "clear": (self._clear, frozenset({"exit"})),
        }

    def answer(self, request: HelperRequest, client: Handle) -> ActionResult:
        """Serve or refuse a request. Check the client before and after, because process ids are reused."""
        act, known = self._table.get(request.action, (None, frozenset()))
        if act is None:
            error = f"unknown action {request.action[:40]!a}"
            raise RequestRefused("unknown_action", error, f"use one of {', '.join(self._table)}")
        if unknown := request.fields.keys() - known:
            error = f"{request.action} does not accept {', '.join(sorted(map(ascii, unknown)))[:200]}"
            raise RequestRefused("bad_request", error, f"it accepts {', '.join(sorted(known)) or 'no fields'}")
        client.check()
        outcome = act(request, client)
        try:
            client.check()
        except RequestRefused:
            self.undo(outcome)
            raise
        return outcome

    def undo(self, outcome: ActionResult) -> None:
        """Release a child whose number did not reach the client."""
        if outcome.descriptor >= 0:
            os.close(outcome.descriptor)
        if outcome.child is not None:
            try:
                with self._alone():
                    self._enforcer.release(outcome.child)
            except RequestRefused as refused:
                self._log.say(f"child {outcome.child} could not be released: {refused}")

    def resume(self) -> None:
        """Continue after a killed predecessor: apply the current policy file for the whole application."""
        with self._alone():
            if not self._applied:
                self._put_in_force(self._family.parent)

    def refresh(self) -> None:
        """Renew applied rules. On failure, keep the old rules and store the error for the status."""
        with self._alone():
            if not self._applied:
                return
            try:
                found, error = self._enforcer.refresh(), ""
            except RequestRefused as refused:
                found, error = {}, str(refused)
            if error and error != self._refresh["error"]:
                self._log.say(f"the refresh failed; the rules stay unchanged: {error}")
            self._refresh = {"at": time.time(), "error": error}
            self._log.flow("refresh", error=error, found=found)

    def repair(self) -> None:
        """Restore applied rules that another program has changed."""
        with self._alone():
            if self._applied and self._enforcer.repair():
                self._log.say("another program changed the packet filter; the rules were restored")

    def close(self, patience: float) -> bool:
        """Refuse all requests from now on; return whether the running request finished in time."""
        return self._lock.acquire(timeout=patience)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._lock.acquire(timeout=_LONGEST_WAIT):
            raise RequestRefused("busy", "the helper is busy with another request, or is stopping", "try again")
        try:
            yield
        finally:
            self._lock.release()

    def _put_in_force(self, target: Handle) -> dict[str, Any]:
        policy = read_policy(self._arguments.policy_file, self._user_files.user.uid, self._user_files.open_file)
        target.check()  # it may have ended during the wait
        fields = self._enforcer.apply(policy, target.pid)
        self._applied = self.in_force = True
        return {"digest": policy.digest, **fields}

    def _ping(self, _: HelperRequest, __: Handle) -> ActionResult:
        return ActionResult({"pid": os.getpid(), "version": VERSION, "privileged": True})

    def _apply(self, request: HelperRequest, _: Handle) -> ActionResult:
        with self._family.target(request.fields.get("pid", self._family.parent.pid)) as target, self._alone():
            return ActionResult(self._put_in_force(target))

    def _join(self, request: HelperRequest, _: Handle) -> ActionResult:
        with self._family.target(request.fields.get("pid")) as target, self._alone():
            target.check()
            return ActionResult(self._enforcer.join(target.pid))

    def _child(self, request: HelperRequest, _: Handle) -> ActionResult:
        endpoints = requested_endpoints(request.fields.get("endpoints"))
        with self._alone():
            fields, procs = self._enforcer.child(endpoints)
        try:
            descriptor = self._join_sockets.opened(procs)
        except OSError as error:
            self.undo(ActionResult(fields, child=fields["child"]))
            raise RequestRefused(
                "busy", f"the entry socket could not be created: {error.strerror}", "try again"
            ) from None
        return ActionResult(fields, descriptor, fields["child"])

    def _release(self, request: HelperRequest, _: Handle) -> ActionResult:
        child = request.fields.get("child")
        if type(child) is not int or child < 0:
            raise RequestRefused("bad_request", "child must be a number", "send the number from the answer of child")
        with self._alone():
            return ActionResult(self._enforcer.release(child))

    def _status(self, _: HelperRequest, __: Handle) -> ActionResult:
        with self._alone():
            found = self._enforcer.status()
        own = {
            "pid": os.getpid(),
            "version": VERSION,
            "parent_pid": self._family.parent.pid,
            "policy_file": self._arguments.policy_file,
            "refresh_seconds": self._arguments.refresh_seconds,
            "last_refresh": dict(self._refresh),
        }
        return ActionResult({**own, **found})

    def _clear(self, request: HelperRequest, client: Handle) -> ActionResult:
        ends = request.fields.get("exit", False)
        if type(ends) is not bool:
            raise RequestRefused("bad_request", "exit must be true or false", "send true to end the helper, or omit it")
        if not self._family.is_parent(client):
            error = f"only the application itself (process {self._family.parent.pid}) may remove its rules"
            raise RequestRefused("not_the_parent", error, "stop the kernel layer in the process of the application")
        with self._alone():
            fields = self._enforcer.clear()
            self._applied = self.in_force = False
        return ActionResult({**fields, "exiting": True} if ends else fields, ends=ends)


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
        refused = _BUSY
        try:
            client = self._family.client(connection)
        except RequestRefused as error:
            refused = error
        except (OSError, ValueError) as error:
            refused = RequestRefused("failed", f"the client could not be identified: {error}")
        else:
            queue = self._parents if self._family.is_parent(client) else self._others
            if queue.take(ClientConnection(connection, client)):
                return
            client.close()
        self._refuse(ClientConnection(connection, refused=refused))

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
    """Return the queue limit for the application, which leaves the descriptors for the final cleanup."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return _MOST_WAITING
    return max(0, min(_MOST_WAITING, (limit - _KEPT_DESCRIPTORS) // 2))  # each connection needs two descriptors


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
