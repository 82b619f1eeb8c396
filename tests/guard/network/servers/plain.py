"""Servers without HTTP: echoes over TCP, UDP and unix sockets, and a sink that keeps the very bytes it was sent."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.guard.network.servers.journal import Journal

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Stream(asyncio.Protocol):
    """A server of byte streams: notes connections and what they bring."""

    def __init__(self, name: str, journal: Journal) -> None:
        self._name = name
        self._journal = journal
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the connection, also when nothing will be sent on it."""
        self.transport = transport
        self._journal.note(self._name, "connect")

    def data_received(self, data: bytes) -> None:
        """Send back what came."""
        self._journal.note(self._name, "bytes", data=data.decode("latin-1"))
        self.transport.write(data)


class Sink(Stream):
    """Takes anything for HTTP and answers each blank line, so that a test sees what was really on the wire."""

    def data_received(self, data: bytes) -> None:
        """Answer once for every head that may have ended in this piece."""
        self._journal.note(self._name, "bytes", data=data.decode("latin-1"))
        self.transport.write(ANSWER * data.count(b"\r\n\r\n"))


class Datagrams(asyncio.DatagramProtocol):
    """Sends every datagram back, where there is somewhere to send it."""

    def __init__(self, name: str, journal: Journal) -> None:
        self._name = name
        self._journal = journal
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way out."""
        self.transport = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        """Note it and return it."""
        self._journal.note(self._name, "datagram", data=data.decode("latin-1"))
        if address:
            self.transport.sendto(data, address)
