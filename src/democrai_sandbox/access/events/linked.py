"""What the buses that reach other processes have in common: their threads, and how they come back after a loss."""

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
    """The connection ended, or could not be had."""


class LinkedBus(ABC):
    """A bus with a connection that may be lost. It is had again by itself, and each time the node is told of a gap.

    Three threads: one connects and listens, one sends, one tells the node. A forked child has none of them: there a
    bus does nothing, and the child opens its own.
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
        """Whether there is a connection, and the last thing sent went through."""
        return self._joined.is_set() and not self._outage.on

    def publish(self, generation: int) -> None:
        """Have the others told. Nothing happens before the start and after the stop."""
        if self._worker is not None and os.getpid() == self._process:
            self._mouth.say(generation)

    def start(self, heard: Callable[[int | None], None]) -> None:
        """Begin to connect and listen, in the background; a bus is started once."""
        with self._life:
            if self._used:
                raise RuntimeError("a bus is started once: open another")
            self._used = True
            self._ear.start(heard)
            self._mouth.start()
            self._worker = Worker(self._name, self._run)
            self._worker.start()

    def stop(self) -> None:
        """Send what is to be sent, if that is possible now, and let everything go. May be called twice."""
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
            # Again, because it may have begun to wait after it was woken.
            self._interrupt()
            worker.join(_INTERRUPT_AGAIN)
        self._let_go()
        self._ear.stop()

    # ---- what each kind does its own way

    @abstractmethod
    def _listen(self) -> None:
        """Connect, call ``_has_joined`` once nothing can be missed any more, and hear events until the connection ends.

        Ends with an error, of whatever kind, unless the bus is being stopped.
        """

    @abstractmethod
    def _send(self, event: bytes) -> None:
        """Send an event; raises whatever it likes when that fails."""

    @abstractmethod
    def _interrupt(self) -> None:
        """Wake a ``_listen`` that waits; the bus is being stopped."""

    @abstractmethod
    def _let_go(self) -> None:
        """Close what outlives a connection; nothing else runs any more."""

    # ---- what they call

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
            except Exception as error:  # noqa: BLE001 - whatever ended it, it is tried again
                self._mouth.close()
                self._joined.clear()
                if not self._stopping.is_set():
                    self._outage.failed(_LISTENING, error)
            self._stopping.wait(self._backoff.next())
        self._joined.clear()

    def _say(self, generation: int) -> None:
        self._send(Event(self.node, generation, self._channel).encoded())
