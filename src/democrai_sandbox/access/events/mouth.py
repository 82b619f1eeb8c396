"""Sending of events in a separate thread, so that a decision does not wait for the network."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from democrai_sandbox.access.threads import Worker

from .outage import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from .outage import Outage

_SENDING = "sending"


class Mouth:
    """Queue of one: the highest unsent generation, sent as soon as a connection exists.

    One number is enough, because a node that receives it reads all changes up to it.
    """

    def __init__(self, send: Callable[[int], None], outage: Outage, *, name: str) -> None:
        self._send = send
        self._outage = outage
        self._backoff = Backoff(first=0.05, longest=2)
        self._changed = threading.Condition()
        self._highest: int | None = None
        self._open = False
        self._retry_now = False
        self._stopping = False
        self._name = f"{name}-mouth"
        self._worker: Worker | None = None

    def start(self) -> None:
        """Start the sending thread."""
        self._worker = Worker(self._name, self._run)
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
