"""Common part of buses: the event format, an inbox of events for the node, and a connection that is restored."""

from __future__ import annotations

import json
import logging
import os
import random
import re
import secrets
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from democrai_sandbox._util.worker_thread import WorkerThread
from democrai_sandbox.policy import InvalidInputError
from democrai_sandbox.policy.config_section import described

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VERSION = 1
LONGEST_MESSAGE = 4096
"""Maximum size in bytes. Longer messages are rejected."""

_GENERATIONS = 2**63
_CHANNEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NOT_IN_A_HOST = re.compile(r"[^A-Za-z0-9.-]")
_LONGEST_HOST = 64


@dataclass(frozen=True, slots=True)
class Event:
    """Announcement of one node that the decisions have reached a generation. Contains no decision."""

    node: str
    generation: int
    channel: str

    def encoded(self) -> bytes:
        """Return the event as JSON."""
        fields = {"v": VERSION, "node": self.node, "generation": self.generation, "channel": self.channel}
        return json.dumps(fields, separators=(",", ":")).encode()


def decoded(data: bytes) -> Event | None:
    """Decode an event; return None for anything else, such as an event of a later version."""
    fields = json_object(data)
    if fields is None or type(fields.get("v")) is not int or fields["v"] != VERSION:
        return None
    node, generation, channel = fields.get("node"), fields.get("generation"), fields.get("channel")
    if not isinstance(node, str) or not isinstance(channel, str):
        return None
    if type(generation) is not int or not 0 <= generation < _GENERATIONS:
        return None
    return Event(node, generation, channel)


def json_object(data: bytes) -> dict[str, object] | None:
    """Decode a JSON object; return None for anything else."""
    if len(data) > LONGEST_MESSAGE:
        return None
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        # ValueError covers bytes that are not text, text that is not JSON, and numbers with too many digits.
        return None
    return fields if isinstance(fields, dict) else None


def new_node() -> str:
    """Return a globally unique node id: host, process, time and 64 random bits."""
    host = _NOT_IN_A_HOST.sub("-", socket.gethostname())[:_LONGEST_HOST]
    return f"{host}:{os.getpid()}:{time.time_ns():x}:{secrets.token_hex(8)}"


def checked_channel(channel: object) -> str:
    """Return a valid channel name; it becomes part of a file name or Redis key."""
    if not isinstance(channel, str) or not _CHANNEL.fullmatch(channel):
        message = f"expected a name of up to 64 letters, digits, '.', '_' and '-', got {described(channel)}"
        raise InvalidInputError.of(message, pointer="/channel")
    return channel


CHECKS: Mapping[str, Callable[[object], Any]] = MappingProxyType({"channel": checked_channel})
"""Validator of each setting that all kinds have."""

_LOG = logging.getLogger(__name__)
_SPREAD = random.Random()  # noqa: S311 - spreads load, keeps no secret; the shared one is the application's
_BRIEF = 1.0
"""Seconds. Shorter outages, such as a change of the hub, are normal and not reported."""


class Backoff:
    """Exponential delays up to a maximum, with jitter, so that nodes that lost the same peer do not retry together."""

    def __init__(self, *, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._delay = first

    def next(self) -> float:
        """Return the number of seconds to wait now."""
        delay, self._delay = self._delay, min(self._delay * 2, self._longest)
        return delay * _SPREAD.uniform(0.5, 1)

    def reset(self) -> None:
        """Restart with the shortest delay."""
        self._delay = self._first


_REST = 0.01
"""Seconds between two calls: a node gets at most a hundred calls a second."""


class EventInbox:
    """Received events that wait for the node: the highest generation, and whether there was a gap.

    A thread delivers them. No attribute leads to the node, because other buses of the process hold inboxes.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._gap = False
        self._highest: int | None = None
        self._closed = False
        self._worker: WorkerThread | None = None

    def hear(self, generation: int) -> None:
        """Store a generation that another node announced."""
        with self._changed:
            self._highest = _higher(generation, self._highest)
            self._changed.notify_all()

    def miss(self) -> None:
        """Store that events may have been missed."""
        with self._changed:
            self._gap = True
            self._changed.notify_all()

    def take(self) -> list[int | None]:
        """Wait for events and return them: None for a gap, then the generation; an empty list once it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._gap or self._highest is not None)
            if self._closed:
                return []
            news: list[int | None] = [None] if self._gap else []
            if self._highest is not None:
                news.append(self._highest)
            self._gap, self._highest = False, None
            return news

    def start(self, name: str, heard: Callable[[int | None], None]) -> None:
        """Start to call ``heard`` in a thread."""
        self._worker = WorkerThread(name, lambda: self._deliver(heard))
        self._worker.start()

    def stop(self) -> None:
        """Stop delivering and wait for the last call, unless this is called from it."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._worker is not None and self._worker is not threading.current_thread():
            self._worker.join()

    def _deliver(self, heard: Callable[[int | None], None]) -> None:
        while news := self.take():
            for generation in news:
                if self._closed:
                    return
                try:
                    heard(generation)
                except Exception:  # noqa: BLE001 - the next event is still delivered
                    _LOG.exception("handling an event failed; still listening")
            with self._changed:
                self._changed.wait_for(lambda: self._closed, timeout=_REST)


def _higher(generation: int, other: int | None) -> int:
    return generation if other is None else max(generation, other)


class Bus(ABC):
    """Notification of other nodes about changed decisions.

    Events only say that something changed: a lost, repeated or forged event grants nothing and at most makes a node
    read the database. A node that may have missed events is notified of the gap and reads the database.

    A forked child has none of the threads: there a bus does nothing, and the child opens another one.
    """

    def __init__(self, kind: str, channel: str) -> None:
        self.node = new_node()
        """Unique id of this node."""
        self._channel = checked_channel(channel)
        self._name = f"events-{kind}-{channel}"
        self._process = os.getpid()
        self._inbox = EventInbox()
        self._used = False

    def _use(self) -> None:
        """Refuse a second start. The caller holds a lock."""
        if self._used:
            raise RuntimeError("a bus can be started only once; open another one")
        self._used = True

    @property
    @abstractmethod
    def connected(self) -> bool:
        """Whether events are delivered at the moment, as far as this node knows."""

    @abstractmethod
    def publish(self, generation: int) -> None:
        """Announce a generation to the other nodes. Does nothing before ``start`` and after ``stop``; never blocks."""

    @abstractmethod
    def start(self, heard: Callable[[int | None], None]) -> None:
        """Start listening, only once. ``heard`` gets a generation that another node announced, or None after a gap."""

    @abstractmethod
    def stop(self) -> None:
        """Stop listening and release all resources. May be called twice."""


_memory_lock = threading.Lock()
_listening: defaultdict[str, dict[str, EventInbox]] = defaultdict(dict)
"""Inboxes by channel and node."""


class MemoryBus(Bus):
    """Bus between the started buses of the same channel in this process."""

    def __init__(self, *, channel: str = "access") -> None:
        super().__init__("memory", channel)

    @property
    def connected(self) -> bool:
        """Whether it is started and not stopped."""
        return self.node in _listening.get(self._channel, ())

    def publish(self, generation: int) -> None:
        """Notify the other buses of the channel."""
        if os.getpid() != self._process:
            return
        with _memory_lock:
            inboxes = dict(_listening[self._channel])
        if inboxes.pop(self.node, None) is not None:
            for inbox in inboxes.values():
                inbox.hear(generation)

    def start(self, heard: Callable[[int | None], None]) -> None:
        """Start listening."""
        with _memory_lock:
            self._use()
            self._inbox.start(self._name, heard)
            _listening[self._channel][self.node] = self._inbox
        self._inbox.miss()

    def stop(self) -> None:
        """Stop listening."""
        if os.getpid() != self._process:
            return
        with _memory_lock:
            self._used = True
            _listening[self._channel].pop(self.node, None)
        self._inbox.stop()


_LISTENING = "listening"
_SENDING = "sending"
_INTERRUPT_AGAIN = 0.05


class ConnectionLost(Exception):  # noqa: N818 - it says what happened
    """Connection that ended or could not be opened."""


class ConnectedBus(Bus):
    """Bus with a connection that may be lost. It reconnects, and the node is notified of a gap each time.

    Three threads: one connects and listens, one sends, one notifies the node. Of the generations to send only the
    highest is kept, because a node that receives it reads all changes up to it.
    """

    def __init__(self, *, kind: str, channel: str, longest_wait: float) -> None:
        super().__init__(kind, channel)
        self._connect_backoff = Backoff(first=0.02, longest=longest_wait)
        self._send_backoff = Backoff(first=0.05, longest=2)
        self._life = threading.Lock()
        self._threads: tuple[WorkerThread, WorkerThread] | None = None
        self._stopping = threading.Event()
        """Set when the listener is to end, after the last attempt to send."""
        self._changed = threading.Condition()  # of all that follows
        self._joined = False
        self._unsent: int | None = None
        self._retry_now = False
        self._is_last_attempt = False
        self._broken: set[str] = set()
        self._broken_since = 0.0
        self._warned = False

    @property
    def connected(self) -> bool:
        """Whether a connection exists and the last send succeeded."""
        return self._joined and not self._broken

    def publish(self, generation: int) -> None:
        """Announce a generation. Does nothing before ``start`` and after ``stop``; never blocks."""
        if self._threads is not None and os.getpid() == self._process:
            with self._changed:
                self._unsent = _higher(generation, self._unsent)
                self._changed.notify_all()

    def start(self, heard: Callable[[int | None], None]) -> None:
        """Connect and listen in the background; a bus can be started only once."""
        with self._life:
            self._use()
            self._inbox.start(f"{self._name}-inbox", heard)
            sender = WorkerThread(f"{self._name}-sender", self._send_all)
            listener = WorkerThread(self._name, self._listen_always)
            self._threads = sender, listener
            sender.start()
            listener.start()

    def stop(self) -> None:
        """Send the waiting event, if possible, and release all resources. May be called twice."""
        if os.getpid() != self._process:
            return
        with self._life:
            self._used = True
            threads, self._threads = self._threads, None
        if threads is None:
            return
        sender, listener = threads
        with self._changed:
            self._is_last_attempt = True
            self._changed.notify_all()
        sender.join()
        self._stopping.set()
        while listener.is_alive():
            # Repeated, because the thread may have started to wait after the last interrupt.
            self._interrupt()
            listener.join(_INTERRUPT_AGAIN)
        self._let_go()
        self._inbox.stop()

    # ---- implemented by each kind

    @abstractmethod
    def _listen(self) -> None:
        """Connect, call ``_has_joined`` once no event can be missed, and receive until the connection ends.

        Ends with any exception, unless the bus is being stopped.
        """

    @abstractmethod
    def _send(self, event: bytes) -> None:
        """Send an event; raises any exception on failure."""

    @abstractmethod
    def _interrupt(self) -> None:
        """Wake a waiting ``_listen``, because the bus is being stopped."""

    @abstractmethod
    def _let_go(self) -> None:
        """Close the resources that outlive a connection; the listening thread has ended."""

    # ---- called by each kind

    def _has_joined(self) -> None:
        self._connect_backoff.reset()
        self._worked(_LISTENING)
        with self._changed:
            self._joined = self._retry_now = True
            self._changed.notify_all()
        self._inbox.miss()

    def _hear(self, data: bytes) -> None:
        event = decoded(data)
        if event is not None and event.channel == self._channel and event.node != self.node:
            self._inbox.hear(event.generation)

    # ---- the threads

    def _listen_always(self) -> None:
        while not self._stopping.is_set():
            try:
                self._listen()
            except Exception as error:  # noqa: BLE001 - every error is retried
                self._joined = False
                if not self._stopping.is_set():
                    self._failed(_LISTENING, error)
            self._stopping.wait(self._connect_backoff.next())
        self._joined = False

    def _send_all(self) -> None:
        while (generation := self._next()) is not None:
            try:
                self._send(Event(self.node, generation, self._channel).encoded())
            except Exception as error:  # noqa: BLE001 - every error is retried
                self._failed(_SENDING, error)
                if not self._waits_to_retry(generation):
                    return
            else:
                self._worked(_SENDING)
                self._send_backoff.reset()

    def _next(self) -> int | None:
        """Wait for a generation and a connection; None when the bus stops and there is nothing to send."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_last_attempt or (self._joined and self._unsent is not None))
            if not self._joined:
                return None
            generation, self._unsent = self._unsent, None
            self._retry_now = False
            return generation

    def _waits_to_retry(self, generation: int) -> bool:
        """Keep a generation that could not be sent, and wait; return False if the bus stops."""
        with self._changed:
            if self._is_last_attempt:
                return False
            self._unsent = _higher(generation, self._unsent)
            pause = self._send_backoff.next()
            self._changed.wait_for(lambda: self._is_last_attempt or self._retry_now, timeout=pause)
            return True

    # ---- state of delivery

    def _failed(self, direction: str, error: BaseException) -> None:
        """Record a failed attempt; warn once if delivery fails for longer than a moment."""
        with self._changed:
            if not self._broken:
                self._broken_since = time.monotonic()
            self._broken.add(direction)
            if self._warned or time.monotonic() - self._broken_since < _BRIEF:
                return
            self._warned = True
        # The error text may come from the peer, so it is logged quoted and truncated.
        _LOG.warning(
            "%s: events are not delivered (%s: %.200r); decisions are polled from the database meanwhile",
            self._name,
            type(error).__name__,
            str(error),
        )

    def _worked(self, direction: str) -> None:
        """Record a successful attempt."""
        with self._changed:
            self._broken.discard(direction)
            if self._broken or not self._warned:
                return
            self._warned = False
        _LOG.warning("%s: events are delivered again", self._name)
