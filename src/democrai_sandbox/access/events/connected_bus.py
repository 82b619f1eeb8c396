"""Common part of buses to other processes: a receiver, a sender, and reconnection."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from democrai_sandbox._util.worker_thread import WorkerThread

from .message import Event, checked_channel, decoded, new_node

if TYPE_CHECKING:
    from collections.abc import Callable

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


class DeliveryState:
    """State of event delivery in both directions; warns once when it fails for longer than a moment."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._broken: set[str] = set()
        self._since = 0.0
        self._told = False

    @property
    def on(self) -> bool:
        """Whether the outage continues."""
        return bool(self._broken)

    def failed(self, direction: str, error: BaseException) -> None:
        """Record a failed attempt."""
        with self._lock:
            if not self._broken:
                self._since = time.monotonic()
            self._broken.add(direction)
            if self._told or time.monotonic() - self._since < _BRIEF:
                return
            self._told = True
        # The error text may come from the peer, so it is logged quoted and truncated.
        _LOG.warning(
            "%s: events are not delivered (%s: %.200r); decisions are polled from the database meanwhile",
            self._name,
            type(error).__name__,
            str(error),
        )

    def worked(self, direction: str) -> None:
        """Record a successful attempt."""
        with self._lock:
            self._broken.discard(direction)
            if self._broken or not self._told:
                return
            self._told = False
        _LOG.warning("%s: events are delivered again", self._name)


if TYPE_CHECKING:
    Heard = Callable[[int | None], None]

_REST = 0.01
"""Seconds between two calls: a node gets at most a hundred calls a second."""


class EventInbox:
    """Received events that wait for the node: the highest generation, and whether there was a gap.

    Has no reference to the node, because other buses of the process hold inboxes.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._gap = False
        self._highest: int | None = None
        self._closed = False

    def hear(self, generation: int) -> None:
        """Store a generation that another node announced."""
        with self._changed:
            if self._highest is None or generation > self._highest:
                self._highest = generation
            self._changed.notify_all()

    def miss(self) -> None:
        """Store that events may have been missed."""
        with self._changed:
            self._gap = True
            self._changed.notify_all()

    def close(self) -> None:
        """Deliver nothing anymore."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._closed

    def take(self) -> list[int | None]:
        """Wait for events and return them: None for a gap, then the generation.

        Returns an empty list once it is closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._gap or self._highest is not None)
            if self._closed:
                return []
            news: list[int | None] = [None] if self._gap else []
            if self._highest is not None:
                news.append(self._highest)
            self._gap, self._highest = False, None
            return news

    def rest(self, seconds: float) -> None:
        """Wait for a time, or until it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, timeout=seconds)


class EventReceiver:
    """Inbox with the thread that delivers its events to the node. No attribute leads to the node."""

    def __init__(self, *, name: str) -> None:
        self.inbox = EventInbox()
        self._name = f"{name}-ear"
        self._worker: WorkerThread | None = None

    def start(self, heard: Heard) -> None:
        """Start to call ``heard``."""
        inbox = self.inbox
        self._worker = WorkerThread(self._name, lambda: _tell_all(inbox, heard))
        self._worker.start()

    def stop(self) -> None:
        """Stop delivering and wait for the last call, unless this is called from it."""
        self.inbox.close()
        if self._worker is not None and self._worker is not threading.current_thread():
            self._worker.join()


def _tell_all(inbox: EventInbox, heard: Heard) -> None:
    while news := inbox.take():
        for generation in news:
            if inbox.closed:
                return
            try:
                heard(generation)
            except Exception:  # noqa: BLE001 - the next event is still delivered
                _LOG.exception("handling an event failed; still listening")
        inbox.rest(_REST)


_SENDING = "sending"


class EventSender:
    """Queue of one: the highest unsent generation, sent as soon as a connection exists.

    One number is enough, because a node that receives it reads all changes up to it.
    """

    def __init__(self, send: Callable[[int], None], outage: DeliveryState, *, name: str) -> None:
        self._send = send
        self._outage = outage
        self._backoff = Backoff(first=0.05, longest=2)
        self._changed = threading.Condition()
        self._highest: int | None = None
        self._open = False
        self._retry_now = False
        self._stopping = False
        self._name = f"{name}-mouth"
        self._worker: WorkerThread | None = None

    def start(self) -> None:
        """Start the sending thread."""
        self._worker = WorkerThread(self._name, self._run)
        self._worker.start()

    def say(self, generation: int) -> None:
        """Queue a generation. Never blocks."""
        with self._changed:
            self._keep(generation)
            self._changed.notify_all()

    def open(self) -> None:
        """Start sending, because a connection exists."""
        with self._changed:
            self._open = self._retry_now = True
            self._changed.notify_all()

    def close(self) -> None:
        """Pause sending, because the connection is lost."""
        with self._changed:
            self._open = False

    def stop(self) -> None:
        """Make one attempt to send the waiting generation if a connection exists, and stop the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._worker is not None:
            self._worker.join()

    def _run(self) -> None:
        while (generation := self._next()) is not None:
            try:
                self._send(generation)
            except Exception as error:  # noqa: BLE001 - every error is retried
                self._outage.failed(_SENDING, error)
                self._wait_with(generation)
            else:
                self._outage.worked(_SENDING)
                self._backoff.reset()

    def _next(self) -> int | None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or (self._open and self._highest is not None))
            if not self._open:
                return None
            generation, self._highest = self._highest, None
            self._retry_now = False
            return generation

    def _wait_with(self, generation: int) -> None:
        with self._changed:
            if self._stopping:
                self._open = False
                return
            self._keep(generation)
            self._changed.wait_for(lambda: self._stopping or self._retry_now, timeout=self._backoff.next())

    def _keep(self, generation: int) -> None:
        if self._highest is None or generation > self._highest:
            self._highest = generation


_LISTENING = "listening"
_INTERRUPT_AGAIN = 0.05


class ConnectionLost(Exception):  # noqa: N818 - it says what happened
    """Connection that ended or could not be opened."""


class ConnectedBus(ABC):
    """Bus with a connection that may be lost. It reconnects, and the node is notified of a gap each time.

    Three threads: one connects and listens, one sends, one notifies the node. A forked child has none of them: there a
    bus does nothing, and the child opens another one.
    """

    def __init__(self, *, kind: str, channel: str, longest_wait: float) -> None:
        self.node = new_node()
        self._channel = checked_channel(channel)
        self._name = f"events-{kind}-{channel}"
        self._process = os.getpid()
        self._outage = DeliveryState(self._name)
        self._ear = EventReceiver(name=self._name)
        self._mouth = EventSender(self._say, self._outage, name=self._name)
        self._backoff = Backoff(first=0.02, longest=longest_wait)
        self._joined = threading.Event()
        self._stopping = threading.Event()
        self._life = threading.Lock()
        self._used = False
        self._worker: WorkerThread | None = None

    @property
    def connected(self) -> bool:
        """Whether a connection exists and the last send succeeded."""
        return self._joined.is_set() and not self._outage.on

    def publish(self, generation: int) -> None:
        """Announce a generation. Does nothing before ``start`` and after ``stop``."""
        if self._worker is not None and os.getpid() == self._process:
            self._mouth.say(generation)

    def start(self, heard: Callable[[int | None], None]) -> None:
        """Connect and listen in the background; a bus can be started only once."""
        with self._life:
            if self._used:
                raise RuntimeError("a bus can be started only once; open another one")
            self._used = True
            self._ear.start(heard)
            self._mouth.start()
            self._worker = WorkerThread(self._name, self._run)
            self._worker.start()

    def stop(self) -> None:
        """Send the waiting event, if possible, and release all resources. May be called twice."""
        if os.getpid() != self._process:
            return
        with self._life:
            self._used = True
            worker, self._worker = self._worker, None
        if worker is None:
            return
        self._mouth.stop()
        self._stopping.set()
        while worker.is_alive():
            # Repeated, because the thread may have started to wait after the last interrupt.
            self._interrupt()
            worker.join(_INTERRUPT_AGAIN)
        self._let_go()
        self._ear.stop()

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
        self._backoff.reset()
        self._outage.worked(_LISTENING)
        self._joined.set()
        self._ear.inbox.miss()
        self._mouth.open()

    def _hear(self, data: bytes) -> None:
        event = decoded(data)
        if event is not None and event.channel == self._channel and event.node != self.node:
            self._ear.inbox.hear(event.generation)

    # ---- the threads

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._listen()
            except Exception as error:  # noqa: BLE001 - every error is retried
                self._mouth.close()
                self._joined.clear()
                if not self._stopping.is_set():
                    self._outage.failed(_LISTENING, error)
            self._stopping.wait(self._backoff.next())
        self._joined.clear()

    def _say(self, generation: int) -> None:
        self._send(Event(self.node, generation, self._channel).encoded())
