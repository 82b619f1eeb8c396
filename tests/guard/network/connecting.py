"""Every way to connect to an address without a client library. Loaded in the child; each returns the reply."""

from __future__ import annotations

import _socket
import asyncio
import contextlib
import socket

PING = b"ping"

# Stored before any guard, as a clever subject would do.
EARLY_CONNECT = socket.socket.connect
EARLY_NATIVE_CONNECT = _socket.socket.connect
EARLY_SENDTO = socket.socket.sendto


def family_of(address):
    """Return the family of an address tuple."""
    return socket.AF_INET6 if ":" in address[0] else socket.AF_INET


def fresh(address, kind=socket.SOCK_STREAM):
    """Return a new socket for this address, with a timeout for the tests' servers."""
    made = socket.socket(family_of(address), kind)
    made.settimeout(5)
    return made


def exchanged(connection):
    """Return the reply of a connected socket to a ping."""
    connection.sendall(PING)
    return connection.recv(16).decode()


# --- TCP -------------------------------------------------------------------------------------------------------------


def connect(address):
    with fresh(address) as made:
        made.connect(address)
        return exchanged(made)


def connect_ex(address):
    with fresh(address) as made:
        number = made.connect_ex(address)
        return exchanged(made) if number == 0 else f"connect_ex says {number}"


def connect_without_waiting(address):
    with fresh(address) as made:
        made.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            made.connect(address)
        made.settimeout(5)
        return exchanged(made)


def create_connection(address):
    with socket.create_connection(address[:2], timeout=5) as made:
        return exchanged(made)


def create_connection_bound(address):
    local = "::1" if family_of(address) is socket.AF_INET6 else "127.0.0.1"
    with socket.create_connection(address[:2], timeout=5, source_address=(local, 0)) as made:
        return exchanged(made)


def early_method(address):
    with fresh(address) as made:
        EARLY_CONNECT(made, address)
        return exchanged(made)


def early_native_method(address):
    with fresh(address) as made:
        EARLY_NATIVE_CONNECT(made, address)
        return exchanged(made)


def native_type(address):
    made = _socket.socket(family_of(address), socket.SOCK_STREAM)
    try:
        made.connect(address)
        made.sendall(PING)
        return made.recv(16).decode()
    finally:
        made.close()


def subclass(address):
    class Own(socket.socket):
        def connect(self, where):
            return _socket.socket.connect(self, where)

    with Own(family_of(address), socket.SOCK_STREAM) as made:
        made.connect(address)
        return exchanged(made)


def duplicate(address):
    with fresh(address) as made, made.dup() as other:
        other.connect(address)
        return exchanged(made)


def detached(address):
    made = socket.socket(family_of(address), socket.SOCK_STREAM)
    with socket.socket(fileno=made.detach()) as again:
        again.connect(address)
        return exchanged(again)


TCP = {
    function.__name__.replace("_", " "): function
    for function in (
        *(connect, connect_ex, connect_without_waiting, create_connection, create_connection_bound),
        *(early_method, early_native_method, native_type, subclass, duplicate, detached),
    )
}


# --- event loops -----------------------------------------------------------------------------------------------------


async def open_connection(address):
    reader, writer = await asyncio.open_connection(*address[:2])
    try:
        writer.write(PING)
        return (await asyncio.wait_for(reader.read(16), 5)).decode()
    finally:
        writer.close()


class Collector(asyncio.Protocol):
    """Protocol that sends a ping and keeps the first reply."""

    def __init__(self):
        self.answer = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport
        if hasattr(transport, "sendto"):
            return
        transport.write(PING)

    def data_received(self, data):
        self._keep(data)

    def datagram_received(self, data, _):
        self._keep(data)

    def error_received(self, error):
        if not self.answer.done():
            self.answer.set_exception(error)

    def connection_lost(self, error):
        if not self.answer.done():
            self.answer.set_exception(error or ConnectionError("closed"))

    def _keep(self, data):
        if not self.answer.done():
            self.answer.set_result(data.decode())


async def loop_create_connection(address):
    transport, protocol = await asyncio.get_running_loop().create_connection(Collector, *address[:2])
    return await answer_of(transport, protocol)


async def loop_happy_eyeballs(address):
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_connection(Collector, *address[:2], happy_eyeballs_delay=0.1)
    return await answer_of(transport, protocol)


async def loop_sock_connect(address):
    loop = asyncio.get_running_loop()
    with fresh(address) as made:
        made.setblocking(False)
        await loop.sock_connect(made, address)
        await loop.sock_sendall(made, PING)
        return (await asyncio.wait_for(loop.sock_recv(made, 16), 5)).decode()


async def connected_socket_handed_over(address):
    made = socket.socket(family_of(address), socket.SOCK_STREAM)
    try:
        made.connect(address)
        transport, protocol = await asyncio.get_running_loop().create_connection(Collector, sock=made)
    except BaseException:
        made.close()
        raise
    return await answer_of(transport, protocol)


async def answer_of(transport, protocol):
    """Return the first reply; always close the transport."""
    try:
        return await asyncio.wait_for(protocol.answer, 5)
    finally:
        transport.close()


LOOP_TCP = {
    function.__name__.replace("_", " "): function
    for function in (
        *(open_connection, loop_create_connection, loop_happy_eyeballs),
        *(loop_sock_connect, connected_socket_handed_over),
    )
}


# --- UDP -------------------------------------------------------------------------------------------------------------


def sendto(address):
    with fresh(address, socket.SOCK_DGRAM) as made:
        made.sendto(PING, address)
        return made.recv(16).decode()


def sendto_with_flags(address):
    with fresh(address, socket.SOCK_DGRAM) as made:
        made.sendto(PING, socket.MSG_DONTWAIT, address)
        return made.recv(16).decode()


def early_sendto(address):
    with fresh(address, socket.SOCK_DGRAM) as made:
        EARLY_SENDTO(made, PING, address)
        return made.recv(16).decode()


def sendmsg(address):
    with fresh(address, socket.SOCK_DGRAM) as made:
        made.sendmsg([PING[:2], PING[2:]], [], 0, address)
        return made.recv(16).decode()


def connected_datagrams(address):
    with fresh(address, socket.SOCK_DGRAM) as made:
        made.connect(address)
        made.send(PING)
        return made.recv(16).decode()


async def datagram_endpoint_connected(address):
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(Collector, remote_addr=address[:2])
    transport.sendto(PING)
    return await answer_of(transport, protocol)


async def datagram_endpoint(address):
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.create_datagram_endpoint(Collector, local_addr=("127.0.0.1", 0))
    try:
        transport.sendto(PING, address[:2])
    except BaseException:
        protocol.answer.cancel()
        transport.close()
        raise
    return await answer_of(transport, protocol)


async def loop_sock_sendto(address):
    loop = asyncio.get_running_loop()
    with fresh(address, socket.SOCK_DGRAM) as made:
        made.setblocking(False)
        await loop.sock_sendto(made, PING, address)
        return (await asyncio.wait_for(loop.sock_recv(made, 16), 5)).decode()


UDP = {
    function.__name__.replace("_", " "): function
    for function in (sendto, sendto_with_flags, early_sendto, sendmsg, connected_datagrams)
}
LOOP_UDP = {
    function.__name__.replace("_", " "): function
    for function in (datagram_endpoint_connected, datagram_endpoint, loop_sock_sendto)
}
# Not supported by uvloop.
NOT_UVLOOP = {"loop sock sendto", "loop happy eyeballs"}


def ways(blocking, on_loops, address, run_async):
    """Return the actions of a table, those on loops for asyncio's loop and for uvloop's."""
    import uvloop

    made = {name: lambda way=way: way(address) for name, way in blocking.items()}
    for name, way in on_loops.items():
        made[f"asyncio {name}"] = lambda way=way: run_async(way(address))
        if name not in NOT_UVLOOP:
            made[f"uvloop {name}"] = lambda way=way: run_async(way(address), uvloop.new_event_loop)
    return made
