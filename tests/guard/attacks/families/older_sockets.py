"""Sockets that the host opened before the guard."""

from __future__ import annotations

import os
import socket

from tests.guard.attacks.kit import SANDBOX, Ground
from tests.guard.attacks.network import INVALID, LIMIT, NETWORK_OR_FD, network_attacks_of, other

REQUEST = b"GET /secret HTTP/1.1\r\n\r\n"
STOPPED = NETWORK_OR_FD | SANDBOX | INVALID


def hold(ground: Ground) -> None:
    """Connections of the host: one where an answer waits, one where nothing was asked yet, and so on."""
    held = ground.held
    held.sock, held.silent = socket.create_connection(other(ground)), socket.create_connection(other(ground))
    held.sock.settimeout(LIMIT)
    held.sock.sendall(REQUEST)
    held.number = held.sock.fileno()
    held.datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    held.connected_datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    held.connected_datagram.connect(other(ground))
    held.pair, held.pair_end = socket.socketpair()
    held.pair_end.sendall(ground.SECRET.encode())
    held.listener = socket.create_server(("127.0.0.1", 0))
    held.visitor = socket.create_connection(held.listener.getsockname())
    held.visitor.sendall(ground.SECRET.encode())


def into(method: str):
    def act(ground: Ground) -> object:
        buffer = bytearray(999)
        wrapped = [buffer] if method == "recvmsg_into" else buffer
        getattr(ground.held.sock, method)(wrapped)
        return buffer

    return act


def raw(method: str):
    import _socket

    return lambda ground: getattr(_socket.socket, method)(ground.held.sock, 999)


def read_copy(number: int) -> bytes:
    with socket.socket(fileno=number) as sock:
        return sock.recv(999)


def by_dup2(ground: Ground) -> object:
    spare, _ = socket.socketpair()
    os.dup2(ground.held.number, spare.fileno())
    return spare.recv(999)


def by_init(ground: Ground) -> object:
    """A socket object of the subject is made anew with the host's number."""
    mine = socket.socket()
    mine.close()
    mine.__init__(2, 1, 0, ground.held.number)
    return mine.recv(999)


def by_guessing(ground: Ground) -> object:
    for number in range(3, 64):
        try:
            data = socket.socket(fileno=number).recv(999, socket.MSG_DONTWAIT)
        except (OSError, ValueError) as error:
            ground.errors.append(error)
            continue
        if ground.SECRET.encode() in data:
            ground.errors.clear()
            return data
    return None


async def by_loop(ground: Ground) -> object:
    import asyncio

    ground.held.sock.setblocking(False)
    return await asyncio.get_running_loop().sock_recv(ground.held.sock, 999)


async def by_transport(ground: Ground) -> object:
    import asyncio

    ground.held.sock.setblocking(False)
    reader, _ = await asyncio.open_connection(sock=ground.held.sock)
    return await reader.read(999)


network_attacks_of(
    {
        "recv": lambda ground: ground.held.sock.recv(999),
        "recvfrom": lambda ground: ground.held.sock.recvfrom(999)[0],
        "recvmsg": lambda ground: ground.held.sock.recvmsg(999)[0],
        "peek": lambda ground: ground.held.sock.recv(999, socket.MSG_PEEK),
        "recv_into": into("recv_into"),
        "recvfrom_into": into("recvfrom_into"),
        "recvmsg_into": into("recvmsg_into"),
        "C_recv": raw("recv"),
        "makefile": lambda ground: ground.held.sock.makefile("rb", buffering=0).read(999),
        "SocketIO": lambda ground: socket.SocketIO(ground.held.sock, "r").read(999),
        "os_read": lambda ground: os.read(ground.held.number, 999),
        "open": lambda ground: open(ground.held.number, "rb", 0, closefd=False).read(999),
        "fileno": lambda ground: read_copy(ground.held.number),
        "fromfd": lambda ground: socket.fromfd(ground.held.number, 2, 1).recv(999),
        "dup": lambda ground: ground.held.sock.dup().recv(999),
        "os_dup": lambda ground: read_copy(os.dup(ground.held.number)),
        "dup2": by_dup2,
        "detach": lambda ground: read_copy(ground.held.sock.detach()),
        "init": by_init,
        "guessed": by_guessing,
        "sock_recv": by_loop,
        "transport": by_transport,
        "pair": lambda ground: ground.held.pair.recv(999),
        "pair_number": lambda ground: os.read(ground.held.pair.fileno(), 999),
    },
    "an answer to the host is read off its connection: {}",
    expect=STOPPED,
    group="read_",
    prepare=hold,
)
network_attacks_of(
    {
        "recv": lambda ground: ground.held.sock.recv(999),
        "fileno": lambda ground: read_copy(ground.held.number),
        "pair": lambda ground: ground.held.pair.recv(999),
    },
    "the same on sockets that are older than the guard's installation: {}",
    expect=STOPPED,
    group="early_",
    before=hold,
    prepare=lambda ground: None,
)
SENDS = {
    "send": lambda ground: ground.held.silent.send(REQUEST),
    "sendall": lambda ground: ground.held.silent.sendall(REQUEST),
    "sendmsg": lambda ground: ground.held.silent.sendmsg([REQUEST]),
    "makefile": lambda ground: ground.held.silent.makefile("wb", buffering=0).write(REQUEST),
    "os_write": lambda ground: os.write(ground.held.silent.fileno(), REQUEST),
    "C_send": lambda ground: __import__("_socket").socket.send(ground.held.silent, REQUEST),
    "dup": lambda ground: ground.held.silent.dup().sendall(REQUEST),
    "fileno": lambda ground: socket.socket(fileno=ground.held.silent.fileno()).sendall(REQUEST),
}
network_attacks_of(
    SENDS,
    "something is sent on a connection of the host: {}",
    expect=STOPPED,
    group="write_",
    prepare=hold,
)
network_attacks_of(
    {
        "sendto": lambda ground: ground.held.datagram.sendto(b"x", other(ground)) and None,
        "connect": lambda ground: (ground.held.datagram.connect(other(ground)), ground.held.datagram.send(b"x"))[0],
        "connected": lambda ground: ground.held.connected_datagram.send(b"x") and None,
        "connected_sendto": lambda ground: ground.held.connected_datagram.sendto(b"x", other(ground)) and None,
    },
    "a datagram is sent from a socket of the host: {}",
    expect=STOPPED,
    group="datagram_",
    servers=("udp",),
    prepare=hold,
)
