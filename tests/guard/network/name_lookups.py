"""Every way to look up a name. Loaded in the child."""

from __future__ import annotations

import _socket
import asyncio
import socket

EARLY_GETADDRINFO = _socket.getaddrinfo


def addresses(found):
    """Return the unique addresses of a getaddrinfo result."""
    return sorted({entry[4][0] for entry in found})


async def loop_getaddrinfo(host):
    return addresses(await asyncio.get_running_loop().getaddrinfo(host, 80))


async def in_a_thread(host):
    return addresses(await asyncio.to_thread(socket.getaddrinfo, host, 80))


LOOKUPS = {
    "getaddrinfo": lambda host: addresses(socket.getaddrinfo(host, 80)),
    "getaddrinfo, bytes": lambda host: addresses(socket.getaddrinfo(host.encode(), 80)),
    "getaddrinfo, service": lambda host: addresses(socket.getaddrinfo(host, "http", type=socket.SOCK_STREAM)),
    "getaddrinfo, one family": lambda host: addresses(socket.getaddrinfo(host, 80, socket.AF_INET)),
    "native": lambda host: addresses(_socket.getaddrinfo(host, 80)),
    "early": lambda host: addresses(EARLY_GETADDRINFO(host, 80)),
    "gethostbyname": lambda host: [socket.gethostbyname(host)],
    "gethostbyname_ex": lambda host: sorted(socket.gethostbyname_ex(host)[2]),
    "gethostbyaddr": lambda host: sorted(socket.gethostbyaddr(host)[2]),
}
ON_LOOPS = {"loop": loop_getaddrinfo, "thread": in_a_thread}


def connect(host):
    """Connect to a name, which the socket itself looks up."""
    with socket.socket() as made:
        made.settimeout(5)
        made.connect((host, 80))
        return [made.getpeername()[0]]


def connect_ex(host):
    with socket.socket() as made:
        made.settimeout(5)
        number = made.connect_ex((host, 80))
        return [made.getpeername()[0]] if number == 0 else number


def sendto(host):
    with socket.socket(type=socket.SOCK_DGRAM) as made:
        made.settimeout(5)
        made.sendto(b"ping", (host, 7))
        return [made.recvfrom(16)[1][0]]


def create_connection(host):
    with socket.create_connection((host, 80), timeout=5) as made:
        return [made.getpeername()[0]]


def bind(host):
    with socket.socket() as made:
        made.bind((host, 0))


async def open_connection(host):
    _, writer = await asyncio.open_connection(host, 80)
    try:
        return [writer.get_extra_info("peername")[0]]
    finally:
        writer.close()


DIALS = {"connect": connect, "connect_ex": connect_ex, "sendto": sendto, "create_connection": create_connection}
LOOP_DIALS = {"open_connection": open_connection}


def ways(plain, on_loops, host, run_async):
    """Return the actions of a table for one name."""
    import uvloop

    made = {name: lambda way=way: way(host) for name, way in plain.items()}
    for name, way in on_loops.items():
        made[f"asyncio {name}"] = lambda way=way: run_async(way(host))
        made[f"uvloop {name}"] = lambda way=way: run_async(way(host), uvloop.new_event_loop)
    return made
