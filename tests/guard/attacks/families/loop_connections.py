"""Connections of event loops: the standard one, and uvloop, which connects in C."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from tests.guard.attacks.kit import Ground
from tests.guard.attacks.network import LIMIT, network_attacks_of, other, peers

SECRET_REQUEST = b"GET /secret HTTP/1.1\r\nHost: x\r\n\r\n"


class Reader(asyncio.Protocol):
    """A protocol of the subject: asks for the secret as soon as it is connected."""

    def __init__(self) -> None:
        self.answer = asyncio.get_running_loop().create_future()

    def connection_made(self, transport) -> None:
        if hasattr(transport, "sendto"):
            transport.sendto(b"x")
        else:
            transport.write(SECRET_REQUEST)

    def take(self, data: bytes) -> None:
        if not self.answer.done():
            self.answer.set_result(data)

    def data_received(self, data: bytes) -> None:
        self.take(data)

    def datagram_received(self, data: bytes, sender: object) -> None:
        self.take(data)

    def error_received(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)

    connection_lost = error_received


async def streams(ground: Ground, **options: object) -> object:
    reader, writer = await asyncio.open_connection(*other(ground), **options)
    writer.write(SECRET_REQUEST)
    return await reader.read(999)


async def connection(ground: Ground, *address: object, **options: object) -> object:
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_connection(Reader, *(address or other(ground)), **options)
    return await protocol.answer


async def connection_with_own_socket(ground: Ground) -> object:
    sock = socket.socket()
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, other(ground))
    return await connection(ground, None, None, sock=sock)


async def socket_methods(ground: Ground) -> object:
    loop, sock = asyncio.get_running_loop(), socket.socket()
    sock.setblocking(False)
    await loop.sock_connect(sock, other(ground))
    await loop.sock_sendall(sock, SECRET_REQUEST)
    return await loop.sock_recv(sock, 999)


async def private_socket_method(ground: Ground) -> object:
    """The method below `sock_connect`, with a future of the subject's own."""
    loop, sock = asyncio.get_running_loop(), socket.socket()
    sock.setblocking(False)
    done = loop.create_future()
    loop._sock_connect(done, sock, other(ground))
    await done
    return await connection(ground, None, None, sock=sock)


async def happy_eyeballs(ground: Ground) -> object:
    return await connection(ground, "localhost", peers(ground).other, happy_eyeballs_delay=0.01)


async def datagram(ground: Ground) -> object:
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_datagram_endpoint(Reader, remote_addr=other(ground))
    return await protocol.answer


async def datagram_to(ground: Ground) -> object:
    class Silent(Reader):
        def connection_made(self, transport) -> None:
            pass

    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(Silent, local_addr=("127.0.0.1", 0))
    transport.sendto(b"x", other(ground))
    return await protocol.answer


async def datagram_socket(ground: Ground) -> object:
    loop, sock = asyncio.get_running_loop(), socket.socket(type=socket.SOCK_DGRAM)
    sock.setblocking(False)
    await loop.sock_sendto(sock, b"x", other(ground))
    return await loop.sock_recv(sock, 99)


async def secure(ground: Ground) -> object:
    import ssl

    context = ssl.create_default_context()
    return await asyncio.wait_for(streams(ground, ssl=context, server_hostname="x"), LIMIT)


STREAMS = {
    "open_connection": streams,
    "create_connection": connection,
    "own_socket": connection_with_own_socket,
    "sock_connect": socket_methods,
    "happy_eyeballs": happy_eyeballs,
    "secure": secure,
}
DATAGRAMS = {"endpoint": datagram, "endpoint_sendto": datagram_to, "sock_sendto": datagram_socket}
network_attacks_of(
    STREAMS | {"_sock_connect": private_socket_method},
    "a server that no rule names is reached over the host's loop: {}",
    group="stream_",
)
network_attacks_of(
    DATAGRAMS,
    "a datagram is sent over the host's loop to a server that no rule names: {}",
    group="datagram_",
    servers=("udp",),
)


def on_uvloop(act: Callable[[Ground], Awaitable[object]]):
    def play(ground: Ground) -> object:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(act(ground))

    return play


def on_own_loop(act: Callable[[Ground], Awaitable[object]]):
    def play(ground: Ground) -> object:
        return asyncio.run(act(ground))

    return play


async def uvloop_by_class(ground: Ground) -> object:
    """The method of the C class, taken from the class below the one that is handed out."""
    import uvloop

    loop = asyncio.get_running_loop()
    methods = [vars(kind)["create_connection"] for kind in type(loop).__mro__ if "create_connection" in vars(kind)]
    for method in reversed(methods[:-1] or methods):
        if "uvloop" in getattr(method, "__module__", "uvloop"):
            _, protocol = await method(loop, Reader, *other(ground))
            return await protocol.answer
    return await connection(ground)


async def uvloop_host_name(ground: Ground) -> object:
    return await connection(ground, "localhost", peers(ground).other)


network_attacks_of(
    {
        name: on_uvloop(act)
        for name, act in (STREAMS | {"by_class": uvloop_by_class, "by_name": uvloop_host_name}).items()
        if name != "happy_eyeballs"
    },
    "a server that no rule names is reached over uvloop: {}",
    group="uvloop_",
    needs=("uvloop",),
)
network_attacks_of(
    {name: on_uvloop(act) for name, act in DATAGRAMS.items() if name != "sock_sendto"},
    "a datagram is sent over uvloop to a server that no rule names: {}",
    group="uvloop_datagram_",
    servers=("udp",),
    needs=("uvloop",),
)
network_attacks_of(
    {name: on_own_loop(act) for name, act in {"open_connection": streams, "sock_connect": socket_methods}.items()},
    "a server that no rule names is reached over a loop of the subject: {}",
    group="own_loop_",
)
