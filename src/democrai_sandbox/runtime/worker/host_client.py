"""Client of the host inside a worker: its sockets, access questions, and the services behind the SDK."""

from __future__ import annotations

import _socket
import asyncio
import itertools
import os
import selectors
import threading
from collections import deque
from contextvars import Context
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import ExternalAccessCheckFailed, ResultInvalid, SandboxDenied
from democrai_sandbox.policy import AccessDecision, DecisionCode, InvalidInputError, ResourceType
from democrai_sandbox.policy.subjects import CallIdentity
from democrai_sandbox.runtime.calls.outcome import describe, release
from democrai_sandbox.runtime.sdk_services import hidden

from .calls import WorkerCalls, present_number
from .codec import DESCRIPTOR, FrameReader, SharedMemory, encode_small, frame_of, unsent, write

if TYPE_CHECKING:
    from collections.abc import Callable

    from democrai_sandbox.guard import AccessQuestion, Door, ObservedEndpoint
    from democrai_sandbox.guard.interface import RawView


_CONTROL_ROOM = _socket.CMSG_SPACE(DESCRIPTOR.size)


class WorkerSocket:
    """One socket to the host."""

    def __init__(self, descriptor: int, largest: int, shared: SharedMemory | None = None) -> None:
        """Take over a connected socket. The guard refuses its descriptor to guarded code."""
        # Native, because guarded code cannot replace methods of its class.
        self._socket = _socket.socket(fileno=descriptor)
        self._socket.settimeout(None)
        self._largest = largest
        self._shared = shared
        self._inbox = FrameReader(largest=largest, shared=shared)
        self._fill: Callable[[memoryview], int] = self._socket.recv_into
        self._read: deque[Any] = deque()
        self._writing = threading.Lock()
        self.descriptors: deque[int] = deque()
        """Descriptors that have arrived, for the messages that announce them."""

    def fileno(self) -> int:
        """Return the descriptor, for an event loop."""
        return self._socket.fileno()

    def receive(self) -> Any:
        """Wait for the next message; None when the host is gone."""
        while not self._read:
            size = self._fill(self._inbox.room)
            if not size:
                return None
            messages = self._inbox.feed(size)
            if len(messages) == 1:
                return messages[0]
            self._read.extend(messages)
        return self._read.popleft()

    def accept_descriptors(self) -> None:
        """Keep the descriptors that arrive from now on."""
        self._fill = self._receive_all

    def _receive_all(self, room: memoryview) -> int:
        size, parts, _, _ = self._socket.recvmsg_into([room], _CONTROL_ROOM, _socket.MSG_CMSG_CLOEXEC)
        for _, _, data in parts:
            self.descriptors.extend(DESCRIPTOR.unpack(data))
        return size

    def receive_now(self) -> list[Any] | None:
        """Return the messages available without waiting; None when the host is gone."""
        try:
            size = self._socket.recv_into(self._inbox.room, 0, _socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        return self._inbox.feed(size) if size else None

    def send(self, message: Any) -> None:
        """Send a message. Raise ``InvalidInputError``, without sending, if it cannot be encoded."""
        made = encode_small(message, self._largest, self._shared)
        if isinstance(made, bytes):
            with self._writing:
                self._socket.sendall(made)
            return
        # Not under the lock: a garbage collection may run code of the subject, which may send a message, too.
        written = made or write(message, largest=self._largest)
        with self._writing:
            first, *parts = frame_of(written, self._shared)
            if not parts:
                self._socket.sendall(first)
                if self._shared is not None:
                    self._shared.write()
                return
            for rest in unsent((first, *parts), self._socket.sendmsg((first, *parts))):
                self._socket.sendall(rest)

    def reply(self, number: int, outcome: Any) -> None:
        """Send the outcome of a call; if it cannot be encoded, send that error instead."""
        try:
            self.send(["done", number, outcome])
        except InvalidInputError as error:
            self.send(["done", number, describe(ResultInvalid.of(error.problems))])


_PATIENCE = 60.0
_MOST_RECORDED = 200
_WINDOW = 10.0
_MOST_SEEN = 200
_SOON = 1.0


class _LaneSelector(selectors.EpollSelector):
    """Selector that reads the lane itself, and begins the tasks of new calls without another turn of the loop."""

    lane = -1
    read: Door
    ready: deque[asyncio.Handle]
    """Callbacks that the loop runs after the selection."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for events, and handle those of the lane."""
        if timeout is None:  # nothing else is due
            first = self._selector.poll(-1, 1)  # type: ignore[attr-defined] # the epoll object
            if first and first[0][0] == self.lane:
                self.read()
                for _ in range(len(self.ready)):
                    task = self.ready.popleft()
                    if not task.cancelled():
                        task._run()  # noqa: SLF001 - as the loop does
                return []
            timeout = 0
        ready = super().select(timeout)
        for event in ready:
            if event[0].fd == self.lane:
                self.read()
                return [other for other in ready if other is not event]
        return ready


class WorkerLoop(asyncio.SelectorEventLoop):
    """Event loop that serves the lane of a worker."""

    def __init__(self) -> None:
        self._lane_selector = _LaneSelector()
        super().__init__(self._lane_selector)
        self._lane_selector.ready = self._ready  # type: ignore[attr-defined] # of the base class

    def read_in_advance(self, descriptor: int, read: Door) -> None:
        """Call ``read`` whenever the lane is readable, before the other callbacks of a turn."""
        self._lane_selector.lane, self._lane_selector.read = descriptor, read
        self.add_reader(descriptor, read)


class _Waiting:
    """A question whose answer arrives on another thread."""

    __slots__ = ("answer", "here")

    def __init__(self) -> None:
        self.here = threading.Lock()
        self.here.acquire()
        self.answer: Any = None


class HostClient:
    """Sends questions over the control socket; the thread that reads the socket delivers the answers."""

    def __init__(self, line: WorkerSocket) -> None:
        """Use this control socket."""
        self.loop = WorkerLoop()
        """The loop that serves the lane, if the subject needs one; never a loop of the subject."""
        self._line = line
        self._numbers = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._promising = threading.Lock()
        self._promised: dict[int, _Waiting | asyncio.Future[Any]] = {}
        self._early: dict[int, Any] = {}

    def ask(self, kind: str, *facts: Any) -> tuple[int, Any]:
        """Send a question and wait for the answer."""
        number = next(self._numbers)
        waiting = self._waiting[number] = _Waiting()
        try:
            self._line.send([kind, number, *facts])
            if not waiting.here.acquire(timeout=_PATIENCE):
                raise ExternalAccessCheckFailed(f"the host did not answer within {_PATIENCE:g} s")
        finally:
            self._waiting.pop(number, None)
        return number, waiting.answer

    def answered(self, number: int, answer: Any) -> None:
        """Deliver the answer to a question."""
        waiting = self._waiting.get(number)
        if waiting is not None:
            waiting.answer = answer
            waiting.here.release()

    def opened(self, number: int) -> None:
        """Deliver the descriptor of a file that the host has opened."""
        descriptor = self._line.descriptors.popleft()
        if number in self._waiting:
            self.answered(number, descriptor)
        else:  # the caller has stopped waiting
            os.close(descriptor)

    def promise(self, number: int) -> asyncio.Future[Any]:
        """Return a future of an answer that the host sends later, or has sent meanwhile.

        The future belongs to the loop that serves the lane. Any other loop may be the subject's code and must not be
        called outside the guard: callers on it wait here, and get a completed future.
        """
        future = asyncio.Future[Any](loop=self.loop)
        # get_running_loop raises without a loop
        waiting = None if asyncio._get_running_loop() is self.loop else _Waiting()  # noqa: SLF001
        with self._promising:
            early = number in self._early
            outcome = self._early.pop(number, None)
            if not early:
                self._promised[number] = waiting or future
        if not early and waiting is None:
            # The loop exposes callbacks of futures, and a door exposes nothing.
            future.add_done_callback(hidden(partial(self._drop, number), "worker"), context=Context())
            return future
        if not early and waiting is not None:
            waiting.here.acquire()
            outcome = waiting.answer
        _settle(future, outcome)
        return future

    def _drop(self, number: int, future: asyncio.Future[Any]) -> None:
        """Tell the host that a canceled answer is no longer awaited."""
        if future.cancelled():
            self._line.send(["drop", number])

    def settled(self, number: int, outcome: Any) -> None:
        """Deliver the late answer of a promise."""
        with self._promising:
            waiting = self._promised.pop(number, None)
            if waiting is None:
                self._early[number] = outcome
                return
        if isinstance(waiting, _Waiting):
            waiting.answer = outcome
            waiting.here.release()
        else:
            self.loop.call_soon_threadsafe(_settle, waiting, outcome)


def _settle(future: asyncio.Future[Any], outcome: Any) -> None:
    if future.done():
        return
    try:
        future.set_result(release(outcome))
    except BaseException as error:  # noqa: BLE001 - the awaiting code gets it
        error.__traceback__ = None
        future.set_exception(error)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class RemoteDecider:
    """Forwards questions to the host's access-policy service. A transport error is a failed check, never a denial."""

    def __init__(self, host: HostClient) -> None:
        self._host = host

    def decide(self, question: AccessQuestion) -> bool | AccessDecision:
        """Ask about one operation."""
        if question.subject_kind == "core":  # a guard of this process itself, under which nothing is allowed
            return False
        if not _is_unicode(question.target):  # as in the host: no rule, decision or request can contain it
            return False
        _, answer = self._host.ask("ask", list(question), present_number())
        if type(answer) is bool:
            return answer
        if type(answer) is not list:
            error = ExternalAccessCheckFailed("the host could not decide")
            error.is_logged = True  # by the host
            raise error
        allowed, code, *rest = answer
        return AccessDecision(allowed, DecisionCode(code), *rest)


class RemoteOpener:
    """Lets the host open files that exist, or were approved, only since the kernel confined this process."""

    def __init__(self, host: HostClient) -> None:
        self._host = host

    def __call__(self, question: AccessQuestion, flags: int, mode: int) -> int:
        """Return a descriptor, or a negative error number."""
        _, answer = self._host.ask("open", list(question), present_number(), flags, mode)
        if type(answer) is not int:
            error = ExternalAccessCheckFailed("the host could not open the file")
            error.is_logged = True  # by the host
            raise error
        return answer


class RemoteObserver:
    """Worker side: asks the host to permit a connection, and waits for it."""

    def __init__(self, host: HostClient) -> None:
        self._host = host

    def observe(self, endpoint: ObservedEndpoint) -> None:
        """Report one connection; an error on the way is a failed check, never a denial."""
        subject, kind, host, _, port = endpoint
        _, answer = self._host.ask("observe", [subject, kind, host, port])
        if answer is not True:
            raise ExternalAccessCheckFailed("the host could not permit the connection")


class RemoteRecorder:
    """Reports denials to the host, rate-limited, because a subject controls how often it is denied."""

    def __init__(self, line: WorkerSocket) -> None:
        self._line = line
        self._told = 0
        self._since = 0.0

    def record(self, denial: SandboxDenied) -> None:
        """Report a denial."""
        now = monotonic()
        if now - self._since > _WINDOW:
            self._told, self._since = 0, now
        self._told += 1
        if self._told <= _MOST_RECORDED:
            self._line.send(["denied", describe(denial)])


class RemoteWatcher:
    """Reports differences to a candidate to the host, in batches, because a subject controls how often it asks."""

    def __init__(self, line: WorkerSocket) -> None:
        self._line = line
        self._counting = threading.Lock()
        self._seen: dict[tuple[Any, bool], int] = {}
        self._since = 0.0

    def saw(self, question: AccessQuestion, allowed: bool) -> None:  # noqa: FBT001 - as the guard calls it
        """Count a check."""
        about = (tuple(question), allowed)
        # With a timeout: a finalizer of the subject may run on the very thread that holds the lock.
        if not self._counting.acquire(timeout=_SOON):
            return
        self._seen[about] = self._seen.get(about, 0) + 1
        due = len(self._seen) >= _MOST_SEEN or monotonic() - self._since > _SOON
        self._counting.release()
        if due:
            self.flush()

    def flush(self) -> None:
        """Send the counts; also at the end of a call, while the host still knows its caller."""
        if not self._seen:
            return
        fresh: dict[tuple[Any, bool], int] = {}
        with self._counting:
            seen, self._seen = self._seen, fresh
            self._since = monotonic()
        told = [[list(question), allowed, times] for (question, allowed), times in seen.items()]
        if told:
            self._line.send(["saw", told])


class UseTeller:
    """Reports allowed accesses to the host, for a subject that is compared with a candidate without rules."""

    def __init__(self, host: HostClient) -> None:
        """Report with an acknowledgment, because a test reads the reports when the call has ended."""
        self._host = host
        self._told: set[tuple[Any, ...]] = set()

    def saw(self, question: AccessQuestion, allowed: bool) -> None:  # noqa: FBT001 - as the guard calls it
        """Report a check, each only once."""
        about = tuple(question)
        if allowed and question.resource_type in tuple(ResourceType) and about not in self._told:
            self._host.ask("used", list(question))
            self._told.add(about)

    def program(self, view: RawView | None, operation: Any, target: Any) -> None:
        """Report a declared program, because the core of the guard has no rules about programs."""
        if view is None:
            return
        kind, name = view.actor
        about = (ResourceType.SYSTEM_DEPENDENCY.value, operation, target, False)
        self._host.ask("used", [name, kind, list(view.labels), *about, *view.identity, "", None])

    def flush(self) -> None:
        """Do nothing, because every check is reported immediately."""


class RemoteServices:
    """Services of the host as functions of this process, and the few that the worker provides itself."""

    def __init__(self, host: HostClient, calls: WorkerCalls, places: tuple[str, str]) -> None:
        """Ask the host on behalf of the running calls; ``places`` are the subject's data and code folders."""
        self._host = host
        self._calls = calls
        self._places = places

    def table(self, names: list[str]) -> dict[str, Callable[..., Any]]:
        """Return all services by name."""
        return {
            **{name: self._forward(name) for name in names},
            "request": self._request,
            "places": lambda _view: list(self._places),
            "cancelled": self._cancelled,
        }

    def _forward(self, name: str) -> Callable[..., Any]:
        def ask_host(view: RawView | None, *args: Any) -> Any:
            who = None
            if view is not None:  # as the guard knows it, with the declarations of inner subjects
                who = [list(view.labels), *view.identity, [list(link) for link in view.links[1:]]]
            call = self._calls.present(view)
            number, answer = self._host.ask("door", name, 0 if call is None else call.number, who, list(args))
            return self._host.promise(number) if answer == ["promise"] else release(answer)

        return ask_host

    def _request(self, view: RawView | None) -> list[str]:
        """Return the caller of the running code: the guard knows the identity, the call knows the role."""
        call = self._calls.present(view)
        if call is not None:
            return list(call.caller)
        if view is None:
            return list(CallIdentity())
        return list(CallIdentity(*(part or "" for part in view.identity)))

    def _cancelled(self, view: RawView | None) -> bool:
        call = self._calls.present(view)
        return call is not None and call.cancelled
