"""Unix sockets of other processes and of helpers of the host."""

from __future__ import annotations

import os
import socket

from tests.guard.attacks.kit import FILES, Ground
from tests.guard.attacks.network import LIMIT, NETWORK, network_attacks_of, peers

LOADED = ("asyncio",)
"""What the host has loaded since it installed the guard; see runner.py."""

UNIX = socket.AF_UNIX
STOPPED = NETWORK | FILES


def no_rules(ground: Ground) -> list[tuple[str, str]]:
    """Nothing of the network is allowed."""
    return []


OPTIONS = {"rules": no_rules, "servers": ("unix",)}


def talk(address: object, kind: int = socket.SOCK_STREAM) -> bytes:
    sock = socket.socket(UNIX, kind)
    sock.settimeout(LIMIT)
    sock.connect(address)
    if kind == socket.SOCK_DGRAM:
        sock.send(b"x")
        return b""
    return sock.recv(99)


def to(place: str, spelling=lambda path: path):
    return lambda ground: talk(spelling(peers(ground).sockets[place]))


network_attacks_of(
    {place: to(place) for place in ("outside", "protected", "temporary", "readonly", "abstract")}
    | {f"{place}_as_bytes": to(place, os.fsencode) for place in ("outside", "abstract")},
    "a socket that no rule names is connected to: {}",
    expect=STOPPED,
    group="stream_",
    **OPTIONS,
)
network_attacks_of(
    {
        place: lambda ground, place=place: talk(peers(ground).datagrams[place], socket.SOCK_DGRAM)
        for place in ("outside", "protected", "temporary", "abstract")
    },
    "a datagram socket that no rule names is connected to: {}",
    expect=STOPPED,
    group="datagram_",
    **OPTIONS,
)


def send_datagram(ground: Ground, place: str, send: str, *arguments: object) -> None:
    getattr(socket.socket(UNIX, socket.SOCK_DGRAM), send)(*arguments, peers(ground).datagrams[place])


network_attacks_of(
    {
        f"{send}_{place}": lambda ground, send=send, place=place, arguments=arguments: send_datagram(
            ground, place, send, *arguments
        )
        for send, arguments in {"sendto": (b"x",), "sendmsg": ([b"x"], [], 0)}.items()
        for place in ("outside", "temporary", "abstract")
    },
    "a datagram is sent to a socket that no rule names: {}",
    expect=STOPPED,
    group="datagram_",
    **OPTIONS,
)


def connect_ex(ground: Ground) -> object:
    sock = socket.socket(UNIX)
    sock.connect_ex(peers(ground).sockets["outside"])
    return sock.recv(99)


def raw_type(ground: Ground) -> object:
    import _socket

    sock = _socket.socket(1, 1)
    sock.connect(peers(ground).sockets["outside"])
    return sock.recv(99)


def by_multiprocessing(ground: Ground) -> object:
    from multiprocessing.connection import Client

    client = Client(peers(ground).sockets["outside"], "AF_UNIX")
    return os.read(client.fileno(), 99)


def by_system_log(ground: Ground) -> None:
    import logging.handlers

    handler = logging.handlers.SysLogHandler(peers(ground).sockets["outside"], socktype=socket.SOCK_STREAM)
    handler.socket.recv(99)


async def by_streams(ground: Ground) -> object:
    import asyncio

    reader, _ = await asyncio.open_unix_connection(peers(ground).sockets["outside"])
    return await reader.read(99)


async def by_loop(ground: Ground) -> object:
    import asyncio

    loop, sock = asyncio.get_running_loop(), socket.socket(UNIX)
    sock.setblocking(False)
    await loop.sock_connect(sock, peers(ground).sockets["outside"])
    return await loop.sock_recv(sock, 99)


async def by_endpoint(ground: Ground) -> None:
    import asyncio

    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(
        asyncio.DatagramProtocol, remote_addr=peers(ground).datagrams["outside"], family=UNIX
    )
    transport.sendto(b"x")


network_attacks_of(
    {
        "connect_ex": connect_ex,
        "C_type": raw_type,
        "multiprocessing": by_multiprocessing,
        "streams": by_streams,
        "sock_connect": by_loop,
        "endpoint": by_endpoint,
    },
    "a socket that no rule names is reached by {}",
    expect=STOPPED,
    group="door_",
    **OPTIONS,
)


network_attacks_of(
    {"SysLogHandler": by_system_log},
    "a socket that no rule names is reached by {}, which keeps errors to itself",
    expect=STOPPED.or_raises("OSError"),
    group="door_",
    **OPTIONS,
)


def by_uvloop(ground: Ground) -> object:
    import asyncio

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(by_streams(ground))


def by_httpx(ground: Ground) -> object:
    import httpx2

    transport = httpx2.HTTPTransport(uds=peers(ground).sockets["temporary"])
    return httpx2.Client(transport=transport).get("http://docker/containers/json").text


async def by_aiohttp(ground: Ground) -> object:
    import aiohttp

    connector = aiohttp.UnixConnector(peers(ground).sockets["temporary"])
    async with aiohttp.ClientSession(connector=connector) as session:
        async with session.get("http://docker/containers/json") as answer:
            return await answer.text()


for name, act in {"uvloop": by_uvloop, "httpx2": by_httpx, "aiohttp": by_aiohttp}.items():
    network_attacks_of(
        {name: act},
        "a socket that no rule names is reached by {}",
        expect=STOPPED,
        group="library_",
        needs=(name,),
        **OPTIONS,
    )
