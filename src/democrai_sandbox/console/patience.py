"""Timeout for the headers of an HTTP request, so that idle clients cannot hold connections forever."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

    from uvicorn.protocols.http.h11_impl import RequestResponseCycle


_RESERVED = 256
"""Descriptors reserved for files, the database, processes, and connections that are accepted to be closed."""


def most_connections() -> int:
    """Return the maximum number of connections, which leaves descriptors for answering them."""
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(descriptors // 4, descriptors - _RESERVED)


class PatientProtocol(H11Protocol):
    """HTTP/1.1 protocol with a timeout and a size limit for the headers."""

    head_seconds = 20.0
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout for the first HTTP request."""
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            transport.abort()
        else:
            self._expect()

    def data_received(self, data: bytes) -> None:
        """Receive a part of an HTTP request."""
        super().data_received(data)
        self._expect()

    def on_response_complete(self) -> None:
        """Start the timeout for a pipelined HTTP request that is incomplete."""
        super().on_response_complete()
        if self.conn.trailing_data[0]:
            self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timeout."""
        self._forget()
        super().connection_lost(exc)

    @property
    def _waits(self) -> bool:
        """Return whether no HTTP request is running."""
        cycle: RequestResponseCycle | None = self.cycle  # missing before the first one
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
