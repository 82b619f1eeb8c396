"""Common part of buses to other processes: threads and reconnection."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from democrai_sandbox.access.threads import Worker

from .ear import Ear
from .message import Event, checked_channel, decoded, new_node
from .mouth import Mouth
from .outage import Backoff, Outage

if TYPE_CHECKING:
    from collections.abc import Callable

_LISTENING = "listening"
_INTERRUPT_AGAIN = 0.05


class LinkLost(Exception):  # noqa: N818 - it says what happened
    """Connection that ended or could not be opened."""


class LinkedBus(ABC):
    """Bus with a connection that may be lost. It reconnects, and the node is notified of a gap each time.

    Three threads: one connects and listens, one sends, one notifies the node. A forked child has none of them: there a
    bus does nothing, and the child opens another one.
    """

    def __init__(self, *, kind: str, channel: str, longest_wait: float) -> None:
        self.node = new_node()
        self._channel = checked_channel(channel)
        self._name = f"events-{kind}-{channel}"
        self._process = os.getpid()
        self._outage = Outage(self._name)
        self._ear = Ear(name=self._name)
        self._mouth = Mouth(self._say, self._outage, name=self._name)
        self._backoff = Backoff(first=0.02, longest=longest_wait)
        self._joined = threading.Event()
        self._stopping = threading.Event()
        self._life = threading.Lock()
        self._used = False
        self._worker: Worker | None = None

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
            self._worker = Worker(self._name, self._run)
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
