"""Forward proxy: absolute-form requests and CONNECT tunnels."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from tests.guard.network.servers.journal import Journal

PATIENCE = 15


class Proxy:
    """One client connection; requests are recorded before they are forwarded."""

    def __init__(self, name: str, journal: Journal) -> None:
        self._name = name
        self._journal = journal

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one request or one tunnel, then close."""
        self._journal.note(self._name, "connect")
        try:
            async with asyncio.timeout(PATIENCE):
                await self._serve(reader, writer)
        except (TimeoutError, OSError, EOFError, ValueError):
            pass
        finally:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        line, _, rest = head.decode("latin-1").partition("\r\n")
        method, target, _ = line.split(" ")
        self._journal.note(self._name, "request", method=method, target=target)
        if method == "CONNECT":
            host, _, port = target.rpartition(":")
            there, out = await asyncio.open_connection(host.strip("[]"), int(port))
            writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
        else:
            parts = urlsplit(target)
            there, out = await asyncio.open_connection(parts.hostname, parts.port or 80)
            path = parts.path or "/"
            path += f"?{parts.query}" if parts.query else ""
            kept = [one for one in rest.split("\r\n") if one and not one.lower().startswith(("connection:", "proxy-"))]
            out.write("\r\n".join([f"{method} {path} HTTP/1.1", *kept, "Connection: close", "", ""]).encode("latin-1"))
        try:
            await asyncio.gather(_pump(reader, out), _pump(there, writer))
        finally:
            out.close()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()
    if sink.can_write_eof():
        sink.write_eof()
