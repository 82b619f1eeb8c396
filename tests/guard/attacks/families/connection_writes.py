"""All ways to write to a checked connection without the parser."""

from __future__ import annotations

import os
import socket

from tests.guard.attacks.kit import FD, Ground
from tests.guard.attacks.network import REFUSED, here, network_attacks_of, open_connection, request, web

LOADED = ("asyncio", "http.client")
"""What the host has loaded since it installed the guard; see runner.py."""

STOPPED = REFUSED | FD


def hidden(ground: Ground) -> bytes:
    return request(ground, "/secret")


def copied(number: int) -> socket.socket:
    return socket.socket(fileno=number)


def claiming(sock: socket.socket, family: int = 38) -> socket.socket:
    """The same connection under an object that says it is of another family: kernel crypto has a method of its own."""
    return socket.socket(family, socket.SOCK_STREAM, 0, os.dup(sock.fileno()))


def by_makefile(ground: Ground, sock: socket.socket) -> None:
    with sock.makefile("wb", buffering=0) as file:
        file.write(hidden(ground))


def by_text_file(ground: Ground, sock: socket.socket) -> None:
    with sock.makefile("w", newline="") as file:
        file.write(hidden(ground).decode())


def by_buffered(ground: Ground, sock: socket.socket) -> None:
    import io

    io.BufferedWriter(socket.SocketIO(sock, "rw")).write(hidden(ground) * 400)


def by_urgent(ground: Ground, sock: socket.socket) -> None:
    """An urgent byte is not part of what the server reads: here it is the one that made the path a permitted one."""
    first, _, second = here(ground, "GET /allowed*secret HTTP/1.1\r\nHost: HERE\r\n\r\n").partition(b"*")
    sock.sendall(first)
    sock.send(b"/", socket.MSG_OOB)
    sock.sendall(second)


def by_urgent_message(ground: Ground, sock: socket.socket) -> None:
    first, _, second = here(ground, "GET /allowed*secret HTTP/1.1\r\nHost: HERE\r\n\r\n").partition(b"*")
    sock.sendall(first)
    sock.sendmsg([b"/"], [], socket.MSG_OOB)
    sock.sendall(second)


async def by_loop(ground: Ground, sock: socket.socket) -> None:
    import asyncio

    sock.setblocking(False)
    await asyncio.get_running_loop().sock_sendall(sock, hidden(ground))


async def by_transport(ground: Ground, sock: socket.socket) -> None:
    import asyncio

    sock.setblocking(False)
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=sock)
    transport.write(hidden(ground))
    await asyncio.sleep(0)


async def by_write_pipe(ground: Ground, sock: socket.socket) -> None:
    import asyncio

    transport, _ = await asyncio.get_running_loop().connect_write_pipe(asyncio.BaseProtocol, sock)
    transport.write(hidden(ground))


async def by_streams(ground: Ground, sock: socket.socket) -> None:
    import asyncio

    sock.setblocking(False)
    _, writer = await asyncio.open_connection(sock=sock)
    writer.writelines([hidden(ground)[:9], hidden(ground)[9:]])
    await writer.drain()


BY_SOCKET = {
    "send": lambda ground, sock: sock.send(hidden(ground)),
    "sendall": lambda ground, sock: sock.sendall(hidden(ground)),
    "sendmsg": lambda ground, sock: sock.sendmsg([hidden(ground)[:5], hidden(ground)[5:]]),
    "sendmsg_extra": lambda ground, sock: sock.sendmsg([hidden(ground)], [], 0),
    "sendto": lambda ground, sock: sock.sendto(hidden(ground), web(ground)),
    "C_send": lambda ground, sock: __import__("_socket").socket.send(sock, hidden(ground)),
    "super_send": lambda ground, sock: super(socket.socket, sock).send(hidden(ground)),
    "captured_send": lambda ground, sock: ground.held.send(sock, hidden(ground)),
    "dup": lambda ground, sock: sock.dup().sendall(hidden(ground)),
    "detach": lambda ground, sock: copied(sock.detach()).sendall(hidden(ground)),
    "makefile": by_makefile,
    "text_file": by_text_file,
    "SocketIO": by_buffered,
    "urgent": by_urgent,
    "urgent_message": by_urgent_message,
    "encrypting": lambda ground, sock: claiming(sock).sendmsg_afalg([hidden(ground)], op=socket.ALG_OP_ENCRYPT),
    "more": lambda ground, sock: sock.send(hidden(ground), socket.MSG_MORE) and sock.send(b"\r\n"),
}
ASYNC = {
    "sock_sendall": by_loop,
    "transport": by_transport,
    "write_pipe": by_write_pipe,
    "streams": by_streams,
}


def hold_send(ground: Ground) -> None:
    import _socket

    ground.held.send = _socket.socket.send


def on_socket(write):
    return lambda ground: write(ground, open_connection(ground).sock)


def on_socket_async(write):
    async def act(ground: Ground) -> None:
        await write(ground, open_connection(ground).sock)

    return act


network_attacks_of(
    {name: on_socket(write) for name, write in BY_SOCKET.items()},
    "the socket of a connection is written to: {}",
    expect=STOPPED,
    before=hold_send,
    group="socket_",
)
network_attacks_of(
    {name: on_socket_async(write) for name, write in ASYNC.items()},
    "the socket of a connection is written to over the host's loop, which may keep the error to itself: {}",
    expect=STOPPED.quietly.or_raises("ConnectionResetError"),
    group="socket_",
)


def by_connection(write):
    return lambda ground: write(ground, open_connection(ground))


def put_buffer(ground: Ground, connection) -> None:
    connection._buffer.append(hidden(ground)[:-4])
    connection._send_output()


def with_file_body(ground: Ground, connection) -> None:
    import io

    connection.request("GET", "/allowed", body=io.BytesIO(hidden(ground)), headers={"Content-Length": "0"})


def with_header(ground: Ground, connection) -> None:
    """The library refuses line ends in headers by an expression that can be replaced."""
    import http.client

    http.client._is_illegal_header_value = lambda value: None
    value = "y\r\n\r\n" + hidden(ground).decode().rstrip()
    connection.request("GET", "/allowed", headers={"X": value})


network_attacks_of(
    {
        "send": by_connection(lambda ground, connection: connection.send(hidden(ground))),
        "send_iterable": by_connection(lambda ground, connection: connection.send([hidden(ground)])),
        "buffer": by_connection(put_buffer),
        "body": by_connection(with_file_body),
        "header": by_connection(with_header),
        "request": by_connection(lambda ground, connection: connection.request("GET", "/secret")),
        "post": by_connection(lambda ground, connection: connection.request("POST", "/allowed", b"x")),
    },
    "a connection of http.client is given another request: {}",
    expect=STOPPED,
    group="connection_",
)
