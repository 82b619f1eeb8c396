"""All servers of the network tests in one thread with a separate loop, and one journal for all of them.

Their number is fixed, every conversation has a time limit, and closing the bed closes every connection.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from tests.guard.network.servers.certificates import Certificates, make_certificates
from tests.guard.network.servers.http2 import Http2
from tests.guard.network.servers.journal import Journal
from tests.guard.network.servers.plain import Datagrams, Sink, Stream
from tests.guard.network.servers.proxy import Proxy
from tests.guard.network.servers.services import Files, Mail
from tests.guard.network.servers.web import Site, control

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from pathlib import Path

LOOPBACKS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
START_LIMIT = 20


class Bed:
    """Servers on loopback at system-assigned ports, until it is closed."""

    def __init__(self, directory: Path) -> None:
        self.journal = Journal()
        self.places: dict[str, Any] = {}
        self._directory = directory
        self._thread = threading.Thread(target=self._run, name="bed", daemon=True)
        self._ready = threading.Event()
        self._failure: BaseException | None = None
        self._closers: list[Callable[[], Any]] = []
        self._accepted: weakref.WeakSet[Any] = weakref.WeakSet()

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(START_LIMIT):
            raise TimeoutError("the servers did not start")
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_LIMIT)
        assert not self._thread.is_alive()

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call a server's method in the thread of the servers."""
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (function(*arguments), done.set()))
        assert done.wait(START_LIMIT)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._failure = error
            self._ready.set()

    async def _main(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            await self.start(make_certificates(self._directory))
            self._ready.set()
            await self._stop.wait()
        finally:
            for close in reversed(self._closers):
                await close()
            await self._hang_up()

    async def _hang_up(self) -> None:
        """Close the remaining connections and conversations."""
        for protocol in self._accepted:
            transport = getattr(protocol, "transport", None) or getattr(protocol, "_transport", None)
            if transport is not None:
                transport.abort()
        await asyncio.sleep(0.02)

    async def start(self, certificates: Certificates) -> None:
        """Start every server."""
        self.places["ca"] = str(certificates.bundle)
        tls = certificates.server_context("http/1.1")
        everywhere = LOOPBACKS + (("::1",) if _has_ipv6() else ())
        self.places["ipv6"] = _has_ipv6()
        await self.web("http", everywhere)
        await self.web("other", everywhere)
        await self.web("https", everywhere, tls=tls)
        await self.control()
        http2 = self.tracked(partial(Http2, "http2", self.journal))
        await self.listen("http2", http2, ("127.0.0.1",), tls=certificates.server_context("h2"), noted=True)
        await self.plain_servers(everywhere, certificates)
        tls_echo = self.tracked(partial(Stream, "tls", self.journal))
        await self.listen("tls", tls_echo, ("127.0.0.1",), tls=certificates.server_context())
        await self.unix_servers()

    def tracked(self, factory: Callable[[], Any]) -> Callable[[], Any]:
        """Return a factory whose protocols are closed at the end if their clients did not."""

        def made() -> Any:
            protocol = factory()
            self._accepted.add(protocol)
            return protocol

        return made

    async def control(self) -> None:
        """Start the server that reports the arrivals at the others."""
        runner = await control(self.journal)
        self._closers.append(runner.cleanup)
        await self.listen("control", runner.server, ("127.0.0.1",))

    async def web(
        self, name: str, addresses: tuple[str, ...], port: int = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        """Start a web server."""
        runner = await Site(name, self.journal).start()
        self._closers.append(runner.cleanup)
        await self.listen(name, runner.server, addresses, port, tls, noted=True)

    async def plain_servers(self, everywhere: tuple[str, ...], certificates: Certificates) -> None:
        """Start the servers without HTTP."""
        one = ("127.0.0.1",)
        await self.listen("tcp", self.tracked(partial(Stream, "tcp", self.journal)), everywhere)
        await self.listen("sink", self.tracked(partial(Sink, "sink", self.journal)), one)
        mail = partial(Mail, certificates.server_context())
        for name, service in (("proxy", Proxy), ("mail", mail), ("files", Files)):
            await self.listen(name, self.tracked(partial(_conversation, service, name, self.journal)), one)
        transport, _ = await self._loop.create_datagram_endpoint(
            partial(Datagrams, "udp", self.journal), local_addr=("127.0.0.1", 0)
        )
        self.places["udp"] = list(transport.get_extra_info("sockname")[:2])
        self._closers.append(_closing(transport))

    async def unix_servers(self) -> None:
        """Start the echo servers on Unix sockets: by path, abstract, and for datagrams."""
        stream, datagrams = str(self._directory / "stream.sock"), str(self._directory / "dgram.sock")
        abstract = f"democrai-test-{id(self):x}-{self.places['http'][1]}"
        for name, address in (("unix", stream), ("abstract", f"\0{abstract}")):
            factory = self.tracked(partial(Stream, name, self.journal))
            server = await self._loop.create_unix_server(factory, address)
            self._closers.append(_closing(server))
        receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        receiver.bind(datagrams)
        receiver.setblocking(False)
        transport, _ = await self._loop.create_datagram_endpoint(
            partial(Datagrams, "unix datagram", self.journal), sock=receiver
        )
        self._closers.append(_closing(transport))
        self.places |= {"unix": stream, "unix datagram": datagrams, "abstract": f"@{abstract}"}

    async def listen(
        self,
        name: str,
        factory: Callable[[], Any],
        addresses: tuple[str, ...],
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        *,
        noted: bool = False,
    ) -> None:
        """Listen on one port of several addresses; `noted` if the protocol does not record connections itself."""

        def accepted() -> Any:
            if noted:
                self.journal.note(name, "connect")
            return factory()

        for listener in _listeners(addresses, port):
            server = await self._loop.create_server(accepted, sock=listener, ssl=tls)
            self._closers.append(_closing(server))
            self.places.setdefault(name, list(listener.getsockname()[:2]))


def _has_ipv6() -> bool:
    try:
        _listener("::1", 0).close()
    except OSError:
        return False
    return True


def _conversation(service: Callable[..., Any], name: str, journal: Journal) -> asyncio.StreamReaderProtocol:
    return asyncio.StreamReaderProtocol(asyncio.StreamReader(), service(name, journal))


def _listeners(addresses: tuple[str, ...], port: int) -> list[socket.socket]:
    """Return sockets on the same port of every address; a system-assigned port may be taken on another address."""
    for _ in range(20):
        made: list[socket.socket] = []
        try:
            for address in addresses:
                made.append(_listener(address, made[0].getsockname()[1] if made else port))
        except OSError:
            for one in made:
                one.close()
            if port:
                raise
        else:
            return made
    raise OSError(f"no port is free on all of {addresses}")


def _listener(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    made = socket.socket(family)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family is socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    made.bind((address, port))
    made.setblocking(False)
    return made


def _closing(thing: Any) -> Callable[[], Any]:
    async def close() -> None:
        thing.close()

    return close
