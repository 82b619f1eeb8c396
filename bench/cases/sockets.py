"""Sockets and names on loopback, against the server of the run."""

from __future__ import annotations

import socket
from itertools import repeat
from time import perf_counter_ns
from typing import TYPE_CHECKING

from bench.discard_server import HOST
from bench.registry import SHORT_PARTS, case

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.fixture import Fixture
    from bench.registry import Access, Loop

LIMIT = 1.1
IDLE = 1.02
MESSAGE = b"A line of text.\n" * 4


def connecting(service: str) -> Callable[[Fixture], Access]:
    """Declare a connection to a service of the server."""
    return lambda bed: (("connect", f"{HOST}:{bed.ground.port(service)}"),)


def to_sink(bed: Fixture) -> Access:
    """Declare a connection to the worker's listener."""
    return (("connect", f"{HOST}:{bed.sink.port}"),)


@case("socket.connect+close, loopback", limit=LIMIT, idle=IDLE, access=to_sink, parts=SHORT_PARTS)
def connect_close(bed: Fixture) -> Loop:
    address = (HOST, bed.sink.port)

    def loop(turns: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            sock = socket.socket()
            sock.connect(address)
            sock.close()
        return perf_counter_ns() - start

    return loop


@case("create_connection+close, loopback", limit=LIMIT, idle=IDLE, access=to_sink, parts=SHORT_PARTS)
def create_connection(bed: Fixture) -> Loop:
    address = (HOST, bed.sink.port)

    def loop(turns: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            socket.create_connection(address).close()
        return perf_counter_ns() - start

    return loop


@case("send+recv of 64 bytes", access=connecting("echo"), parts=SHORT_PARTS, beside=True)
def send_receive(bed: Fixture) -> Loop:
    address = (HOST, bed.ground.port("echo"))
    sock: socket.socket | None = None

    def loop(turns: int) -> int:
        nonlocal sock
        sock = sock or _echoing(address)
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            sock.send(MESSAGE)
            sock.recv(128)
        return perf_counter_ns() - start

    return loop


def _echoing(address: tuple[str, int]) -> socket.socket:
    sock = socket.create_connection(address)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _sending(bed: Fixture) -> Access:
    """Declare both operations: a datagram is a connection in one product, and sent data in the other."""
    target = f"{HOST}:{bed.ground.port('datagrams')}"
    return (("connect", target), ("send", target))


@case("UDP sendto of 64 bytes", access=_sending)
def datagram(bed: Fixture) -> Loop:
    address = (HOST, bed.ground.port("datagrams"))
    sock: socket.socket | None = None

    def loop(turns: int) -> int:
        nonlocal sock
        sock = sock or socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            sock.sendto(MESSAGE, address)
        return perf_counter_ns() - start

    return loop


@case("UDP connect", access=connecting("datagrams"))
def datagram_connect(bed: Fixture) -> Loop:
    # Repeatedly on one socket, so that the kernel does little work.
    address = (HOST, bed.ground.port("datagrams"))
    sock: socket.socket | None = None

    def loop(turns: int) -> int:
        nonlocal sock
        sock = sock or socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            sock.connect(address)
        return perf_counter_ns() - start

    return loop


# The reference product queries its database for denied access, and a benchmark has none.
@case("denied connect (to ECONNREFUSED)", access=to_sink, parts=SHORT_PARTS, reference=False)
def denied_connect(bed: Fixture) -> Loop:
    # Without a guard, a port without a listener fails as cheaply.
    address = (HOST, bed.ground.port("echo" if bed.guarded else "closed"))

    def loop(turns: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            sock = socket.socket()
            try:
                sock.connect(address)
            except OSError:
                sock.close()
                continue
            raise AssertionError("a connect that must fail succeeded")
        return perf_counter_ns() - start

    return loop


@case("getaddrinfo of localhost")
def resolve_localhost(bed: Fixture) -> Loop:
    del bed

    def loop(turns: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            socket.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)
        return perf_counter_ns() - start

    return loop
