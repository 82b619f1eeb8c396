"""Server of the console and the API: one socket, one event loop, a timeout for headers, and an orderly shutdown."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from democrai_sandbox.errors import AddressTaken, HostRefused
from democrai_sandbox.host.directories import ADDRESS_FILE, announce_node_address, await_database

from .application import create_app
from .not_ready import told_not_ready

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from starlette.types import ASGIApp, Receive, Scope, Send
    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

    from democrai_sandbox.host.accounts.tables import Credentials
    from democrai_sandbox.host.sandbox import Sandbox
    from democrai_sandbox.host.settings import HostSettings, ServerSettings

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


PATIENCE = 10
"""Seconds that running HTTP requests get when the server stops."""
_KEPT = 65
"""Seconds that an idle connection stays open: longer than browsers and proxies keep theirs, so that they close first.
An HTTP request sent to a connection that the server just closed would be lost."""
_FOR_THE_SERVER = frozenset({b"connection"})
"""Request headers that the web server reads."""
_MORE_TIME = 60
"""Seconds by which each attempt to reach the database extends the start timeout of the service manager."""
_BACKLOG = 128
"""Backlog of connections. If descriptors run out, the event loop logs as many warnings at once."""
_log = logging.getLogger(__name__)
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def bind(settings: ServerSettings) -> socket.socket:
    """Bind the address, or report who uses it. Clients cannot connect before the server is ready."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # With an explicit protocol the event loop disables Nagle's algorithm; otherwise each answer is delayed by 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise AddressTaken(
            f"cannot listen at {settings.host}:{settings.port}: {error.strerror}",
            fix="stop the other program, or set server.port to another port (0 for any free port)",
        ) from None
    return listener


def await_services(settings: HostSettings) -> None:
    """Wait until the address is free and the database answers.

    Until then health checks report that this node is not ready, and the service manager gets the reason.
    """
    is_waiting = False
    with bind(settings.server) as door, ExitStack() as waiting:

        def still_waiting() -> None:
            nonlocal is_waiting
            notify(f"STATUS=waiting for the database\nEXTEND_TIMEOUT_USEC={_MORE_TIME * 1_000_000}")
            if not is_waiting and settings.server.port:  # a port chosen by the system is not known yet
                waiting.enter_context(told_not_ready(door))
            is_waiting = True

        await_database(settings, still_waiting)
    if is_waiting:
        notify("STATUS=")


def address_of(settings: ServerSettings, listener: socket.socket) -> str:
    """Return the address for browsers."""
    if settings.public_url:
        return settings.public_url
    return _plain_address(*listener.getsockname()[:2])


def nearby_address_of(settings: ServerSettings, listener: socket.socket) -> str:
    """Return the address for commands on this machine, without a proxy if possible."""
    host, port = listener.getsockname()[:2]
    found = ip_address(host)
    if found.is_unspecified:
        return _plain_address("::1" if found.version == 6 else "127.0.0.1", port)  # noqa: PLR2004 - of the protocol
    return _plain_address(host, port) if found.is_loopback else address_of(settings, listener)


def _plain_address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(sandbox: Sandbox, listener: socket.socket, tell: Callable[[str], None]) -> str:
    """Start the sandbox, serve it until a signal, and stop it.

    ``tell`` gets the first login, once, and the address. The server also ends when a process has died that only a
    restart can replace; it returns the name of that process, or an empty text.
    """
    supervisor = sandbox.kernel.supervisor
    server = _WebServer(
        uvicorn.Config(
            behind_curtain(create_app(sandbox)),
            log_config=None,
            access_log=False,
            loop="asyncio",
            http=PatientProtocol,
            backlog=_BACKLOG,
            lifespan="off",
            ws="none",
            proxy_headers=False,  # the console reads them itself, from trusted proxies only
            server_header=False,
            timeout_keep_alive=_KEPT,
            timeout_graceful_shutdown=PATIENCE,
        )
    )
    with server.until_signalled(sandbox), ExitStack() as until_the_end:
        try:
            await sandbox.start()
            if supervisor is not None:
                supervisor.on_lost(partial(asyncio.get_running_loop().call_soon_threadsafe, server.end, sandbox))
            await _first_login(sandbox, tell)
            address = address_of(sandbox.settings.server, listener)
            nearby = nearby_address_of(sandbox.settings.server, listener)

            def ready() -> None:
                _announce(until_the_end, sandbox.settings.state_dir, nearby)
                _say_ready(tell, f"democrai-sandbox is ready at {address}")

            server.ready = ready
            if not server.should_exit:
                await server.serve(sockets=[listener])
        finally:
            until_the_end.close()
            notify("STOPPING=1")
            await sandbox.stop()
    return "" if supervisor is None else supervisor.lost


def behind_curtain(app: ASGIApp) -> ASGIApp:
    """Return a wrapper of the application for the web server, whose connections modules can find through the loop.

    The wrapper leads neither to the application nor to the cookie or token of a user.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        own = {**scope}
        if scope["type"] == "http":
            own["headers"] = [*scope["headers"]]
            scope["headers"][:] = [header for header in own["headers"] if header[0] in _FOR_THE_SERVER]
        await app(own, receive, send)

    return answer


async def _first_login(sandbox: Sandbox, tell: Callable[[str], None]) -> None:
    """Create an administrator if no user exists, and print the password once."""

    def say(first: Credentials) -> None:
        try:
            tell(f"first login: {first.name}, password: {first.password}")
        except OSError as error:
            raise HostRefused(
                f"the first login could not be printed to standard output: {error.strerror or error}",
                fix="start the server once with an open standard output; no user was created",
            ) from None

    if sandbox.accounts is not None:
        await asyncio.to_thread(sandbox.accounts.first_administrator, say)


def _announce(until_the_end: ExitStack, folder: str, url: str) -> None:
    """Write the address file, by which commands on this machine find this node without ``--url``."""
    try:
        until_the_end.enter_context(announce_node_address(folder, url))
    except OSError as error:
        _log.warning("%s cannot be written in %s: %s", ADDRESS_FILE, folder, error.strerror)


def _say_ready(tell: Callable[[str], None], line: str) -> None:
    """Print the address, or log it if standard output is closed."""
    try:
        tell(line)
    except OSError:
        _log.warning("%s (standard output is closed)", line)


class _WebServer(uvicorn.Server):
    """Web server without signal handlers, because signals end more than the server."""

    ready: Callable[[], None]

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, then report it."""
        await super().startup(sockets)
        if self.started:
            notify("READY=1")
            self.ready()

    def end(self, sandbox: Sandbox) -> None:
        """Shut down in order."""
        self.should_exit = True
        sandbox.closing.set()

    @contextmanager
    def until_signalled(self, sandbox: Sandbox) -> Iterator[None]:
        """Let the first signal shut down in order, the second stop waiting, and the third have its default effect."""
        loop = asyncio.get_running_loop()

        def end() -> None:
            if self.should_exit:
                self.force_exit = True
                forget()
            self.end(sandbox)

        def forget() -> None:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

        for number in _SIGNALS:
            loop.add_signal_handler(number, end)
        try:
            yield
        finally:
            forget()


def notify(state: str) -> None:
    """Notify the service manager, if there is one."""
    place = os.environ.get("NOTIFY_SOCKET", "")
    if place:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as teller:
            teller.sendto(state.encode(), "\0" + place[1:] if place.startswith("@") else place)
