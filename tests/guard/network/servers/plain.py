"""Servers without HTTP: echoes over TCP, UDP and Unix sockets, and a sink that records raw bytes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.guard.network.servers.journal import Journal

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Stream(asyncio.Protocol):
    """Stream server that records connections and their data."""

    def __init__(self, name: str, journal: Journal) -> None:
        self._name = name
        self._journal = journal
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Record the connection, even if nothing is sent on it."""
        self.transport = transport
        self._journal.note(self._name, "connect")

    def data_received(self, data: bytes) -> None:
        """Send the data back."""
        self._journal.note(self._name, "bytes", data=data.decode("latin-1"))
        self.transport.write(data)


class Sink(Stream):
    """Server that accepts anything as HTTP and answers each blank line, so that a test sees the raw bytes."""

    def data_received(self, data: bytes) -> None:
        """Answer once for every request head that may have ended in this data."""
        self._journal.note(self._name, "bytes", data=data.decode("latin-1"))
        self.transport.write(ANSWER * data.count(b"\r\n\r\n"))


class Datagrams(asyncio.DatagramProtocol):
    """Server that sends every datagram back, if it has a return address."""

    def __init__(self, name: str, journal: Journal) -> None:
        self._name = name
        self._journal = journal
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self.transport = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        """Record it and send it back."""
        self._journal.note(self._name, "datagram", data=data.decode("latin-1"))
        if address:
            self.transport.sendto(data, address)
