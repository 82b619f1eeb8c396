"""Web server of the tests: an echo, and responses that clients must handle.

The last segment of the path selects the behavior, so that every behavior exists below any prefix of a rule:
`/allowed/redirect?to=...`, `/upload`, `/allowed/gzip`. Everything else is echoed.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
from collections import Counter
from typing import TYPE_CHECKING

from aiohttp import WSMsgType, web

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.guard.network.servers.journal import Journal

LONGEST_PAUSE = 10


class Site:
    """Handlers of one server; arrivals are recorded under its name."""

    def __init__(self, name: str, journal: Journal) -> None:
        self._name = name
        self._journal = journal
        self._asked: Counter[str] = Counter()
        self._special: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
            "redirect": self._redirect,
            "gzip": self._gzip,
            "cookies": self._cookies,
            "chunked": self._chunked,
            "slow": self._slow,
            "upload": self._upload,
            "flaky": self._flaky,
            "socket": self._socket,
            "xmlrpc": self._xmlrpc,
        }

    async def start(self) -> web.ServerRunner:
        """Return the running protocol factory; the caller listens."""
        runner = web.ServerRunner(web.Server(self._answer, keepalive_timeout=30))
        await runner.setup()
        return runner

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self._journal.note(
            self._name,
            "request",
            method=request.method,
            path=request.path,
            host=request.headers.get("Host"),
            peer=request.transport.get_extra_info("peername")[1] if request.transport else None,
            address=request.transport.get_extra_info("sockname")[0] if request.transport else None,
        )
        return await self._special.get(request.path.rpartition("/")[2], self._echo)(request)

    async def _echo(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        told = {
            "method": request.method,
            "path": request.path,
            "query": request.query_string,
            "headers": {name.lower(): value for name, value in request.headers.items()},
            "body": body.decode("latin-1"),
            "peer": request.transport.get_extra_info("peername")[1],
        }
        return web.json_response(told, headers={"X-Server": self._name})

    async def _redirect(self, request: web.BaseRequest) -> web.StreamResponse:
        status = int(request.query.get("status", "302"))
        return web.Response(status=status, headers={"Location": request.query["to"]})

    async def _gzip(self, request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=gzip.compress(b"squeezed " * 100), headers={"Content-Encoding": "gzip"})

    async def _cookies(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.json_response(dict(request.cookies))
        response.set_cookie("flavour", "oat", path="/")
        return response

    async def _chunked(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        for number in range(int(request.query.get("count", "5"))):
            await response.write(f"chunk {number}\n".encode())
            await asyncio.sleep(0)
        await response.write_eof()
        return response

    async def _slow(self, request: web.BaseRequest) -> web.StreamResponse:
        await asyncio.sleep(min(float(request.query.get("seconds", "1")), LONGEST_PAUSE))
        return web.Response(text="at last")

    async def _upload(self, request: web.BaseRequest) -> web.StreamResponse:
        digest, size = hashlib.sha256(), 0
        async for part in request.content.iter_any():
            digest.update(part)
            size += len(part)
        kind = request.headers.get("Content-Type", "").partition(";")[0]
        return web.json_response({"size": size, "sha256": digest.hexdigest(), "type": kind})

    async def _flaky(self, request: web.BaseRequest) -> web.StreamResponse:
        key = request.query_string
        self._asked[key] += 1
        return web.Response(status=503 if self._asked[key] == 1 else 200, text=str(self._asked[key]))

    async def _socket(self, request: web.BaseRequest) -> web.StreamResponse:
        socket = web.WebSocketResponse(timeout=1)
        await socket.prepare(request)
        if "greet" in request.query:
            await socket.send_str("hello")
        async for message in socket:
            self._journal.note(self._name, "message", data=str(message.data))
            if message.type is WSMsgType.TEXT:
                await socket.send_str(message.data[::-1])
            else:
                await socket.send_bytes(message.data)
        return socket

    async def _xmlrpc(self, request: web.BaseRequest) -> web.StreamResponse:
        import xmlrpc.client

        arguments, _ = xmlrpc.client.loads(await request.text())
        return web.Response(text=xmlrpc.client.dumps((sum(arguments),), methodresponse=True), content_type="text/xml")


async def control(journal: Journal) -> web.ServerRunner:
    """Answer every request with the arrivals so far, without being recorded."""

    async def answer(_: web.BaseRequest) -> web.StreamResponse:
        # Earlier data has been accepted, but perhaps not been read yet.
        await asyncio.sleep(0.005)
        return web.Response(text=json.dumps(journal.drain()), headers={"Connection": "close"})

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    return runner
