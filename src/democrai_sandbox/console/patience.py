"""How long a connection may take to say what it wants. Whoever says nothing would hold it for ever."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

    from uvicorn.protocols.http.h11_impl import RequestResponseCycle


_RESERVED = 256
"""Descriptors that are not for connections: files, the database, processes, and those that are taken to be closed."""


def most_connections() -> int:
    """Return how many are kept at a time. Without descriptors for anything else nothing could be answered on them."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(descriptors // 4, descriptors - _RESERVED)


class PatientProtocol(H11Protocol):
    """HTTP/1.1, in which the head of a request has to be there after a while. Its size is bounded, too."""

    head_seconds = 20.0
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            transport.abort()
        else:
            self._expect()

    def data_received(self, data: bytes) -> None:
        """Take a piece of a request."""
        super().data_received(data)
        self._expect()

    def on_response_complete(self) -> None:
        """Begin to wait for the rest of a request that was begun before the last one was answered."""
        super().on_response_complete()
        if self.conn.trailing_data[0]:
            self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._forget()
        super().connection_lost(exc)

    @property
    def _waits(self) -> bool:
        """Whether no request is under way."""
        cycle: RequestResponseCycle | None = self.cycle  # there is none before the first one
        return cycle is None or cycle.response_complete

    def _expect(self) -> None:
        if not self._waits:
            self._forget()
        elif self._late is None:
            self._late = self.loop.call_later(self.head_seconds, self._give_up)

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self) -> None:
        self._late = None
        if self._waits and not self.transport.is_closing():
            self.transport.close()
