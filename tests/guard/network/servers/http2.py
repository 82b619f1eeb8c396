"""Server that supports only HTTP/2 over TLS."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import h2.config
import h2.connection
import h2.events

if TYPE_CHECKING:
    from tests.guard.network.servers.journal import Journal

# Window of all streams of a connection together; each stream still has a window of 64 kB. If several streams wait for a
# shared window, httpcore2 2.16 can stall until the read times out: a waiter of the connection's read lock keeps
# reading, even if its data was in the previous read (pydantic/httpx2, issue 1133).
SHARED_WINDOW = 1 << 24


class Http2(asyncio.Protocol):
    """Protocol that echoes each request as JSON when its stream has ended."""

    def __init__(self, name: str, journal: Journal) -> None:
        self._name = name
        self._journal = journal
        self._engine = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        self._heads: dict[int, dict[str, str]] = {}
        self._bodies: dict[int, bytes] = {}
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the server's preface together with a window that no test fills."""
        self.transport = transport
        self._engine.initiate_connection()
        self._engine.increment_flow_control_window(SHARED_WINDOW)
        self._flush()

    def data_received(self, data: bytes) -> None:
        """Process frames; close the connection if the client uses another protocol."""
        try:
            for event in self._engine.receive_data(data):
                self._take(event)
        except h2.exceptions.ProtocolError:
            self._journal.note(self._name, "bytes", data=data.decode("latin-1"))
            self.transport.close()
        self._flush()

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            head = {_text(name): _text(value) for name, value in event.headers}
            self._heads[event.stream_id], self._bodies[event.stream_id] = head, b""
            self._journal.note(
                self._name, "request", method=head[":method"], path=head[":path"], host=head.get(":authority")
            )
        elif isinstance(event, h2.events.DataReceived):
            self._bodies[event.stream_id] += event.data
            self._engine.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self._answer(event.stream_id)

    def _answer(self, stream: int) -> None:
        head, body = self._heads.pop(stream), self._bodies.pop(stream)
        path, _, query = head[":path"].partition("?")
        if path.endswith("/redirect"):
            self._engine.send_headers(stream, [(":status", "302"), ("location", query.partition("to=")[2])], True)
            return
        # The echo fits into one frame and any window.
        told = {"method": head[":method"], "path": path, "body": body[:1000].decode("latin-1"), "size": len(body)}
        self._engine.send_headers(stream, [(":status", "200"), ("content-type", "application/json")])
        self._engine.send_data(stream, json.dumps(told).encode(), end_stream=True)

    def _flush(self) -> None:
        self.transport.write(self._engine.data_to_send())


def _text(value: bytes | str) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
