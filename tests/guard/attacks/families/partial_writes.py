"""Partial writes of checked bytes, and two threads that write at once."""

from __future__ import annotations

import socket
import threading

from tests.guard.attacks.families.write_races import SENDS, STOPPED, hidden, rounds, sending
from tests.guard.attacks.kit import Ground
from tests.guard.attacks.network import (
    LIMIT,
    guarded,
    network_attack,
    network_attacks_of,
    open_connection,
    request,
    web,
)

SWITCH_INTERVAL = 1e-6
"""Threads take turns as often as they can; the host sets it, see runner.py."""


def two_writers(ground: Ground) -> None:
    """One thread sends a head, the other its body; on the wire they may come the other way round."""
    head = request(ground, "/allowed", "POST", f"Content-Length: {len(hidden(ground))}\r\n")
    if not guarded(ground):
        open_connection(ground).sock.send(hidden(ground))  # without a guard nothing depends on the moment
        return
    for _ in rounds():
        sock = open_connection(ground).sock
        barrier = threading.Barrier(2)

        def write(data: bytes) -> None:
            barrier.wait()
            try:
                sock.send(data)
            except (PermissionError, ValueError) as error:
                ground.errors[:] = [error]

        threads = [threading.Thread(target=write, args=(data,)) for data in (head, hidden(ground))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


network_attack(
    "two threads write to one connection at once",
    expect=STOPPED.quietly,
    rules=sending,
    reading=SENDS,
    name="two_writers",
)(two_writers)


def slow_connection(ground: Ground):
    """A connection to a server that does not read until it is asked to; its buffers are small."""
    import http.client

    connection = http.client.HTTPConnection(*web(ground), timeout=LIMIT)
    connection.connect()
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
    connection.request("GET", "/allowed/slow")
    open_connection(ground)  # the answer to this comes after the server has read what was sent before
    return connection


def smuggle_behind(ground: Ground, send) -> None:
    """Only part of a body is taken by the kernel; the guard must not believe that all of it has gone."""
    ground.held.connection = slow_connection(ground)
    sock = ground.held.connection.sock
    size = 1_000_000
    sock.sendall(request(ground, "/allowed", "POST", f"Content-Length: {size}\r\n"))
    rest = size - send(sock, size)
    second = request(ground, "/allowed", "POST", "Content-Length: 00000000\r\n")
    body = b"y" * (rest - len(second)) + hidden(ground)
    open_connection(ground, "/allowed/wake")
    sock.settimeout(LIMIT)
    sock.sendall(second.replace(b"00000000", b"%08d" % len(body)) + body)


def not_blocking(sock: socket.socket, size: int) -> int:
    sock.setblocking(False)
    return sock.send(b"x" * size)


def not_blocking_message(sock: socket.socket, size: int) -> int:
    sock.setblocking(False)
    return sock.sendmsg([b"x" * size])


def with_flag(sock: socket.socket, size: int) -> int:
    return sock.send(b"x" * size, socket.MSG_DONTWAIT)


def written(sock: socket.socket) -> int:
    """How many bytes the kernel has taken so far, by its own account."""
    import struct

    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232)
    return struct.unpack_from("=Q", info, 200)[0] + struct.unpack_from("=I", info, 144)[0]


def timing_out(sock: socket.socket, size: int) -> int:
    """How much has gone when the time was up, only the kernel knows."""
    before = written(sock)
    sock.settimeout(0.05)
    try:
        sock.sendall(b"x" * size)
    except TimeoutError:
        pass
    return written(sock) - before


def interrupted(sock: socket.socket, size: int) -> int:
    """A signal ends the sending half-way."""
    import signal

    def stop(*_: object) -> None:
        raise InterruptedError

    before = written(sock)
    sock.settimeout(None)
    signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        sock.sendall(b"x" * size)
    except InterruptedError:
        pass
    return written(sock) - before


network_attacks_of(
    {
        name: lambda ground, send=send: smuggle_behind(ground, send)
        for name, send in {
            "send": not_blocking,
            "sendmsg": not_blocking_message,
            "flag": with_flag,
            "time_limit": timing_out,
            "signal": interrupted,
        }.items()
    },
    "the kernel takes only part of a body: {}",
    expect=STOPPED.quietly,
    rules=sending,
    reading=SENDS,
    group="partial_",
)
