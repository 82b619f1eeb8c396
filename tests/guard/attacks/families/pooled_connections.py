"""Pools, transports and TLS objects of the host or of another subject."""

from __future__ import annotations

import gc
import socket

from tests.guard.attacks import peer_tls  # noqa: F401 - loaded here, used by the servers
from tests.guard.attacks.families.shared_addresses import open_context
from tests.guard.attacks.kit import SANDBOX, Ground, Works
from tests.guard.attacks.network import (
    INVALID,
    LIMIT,
    NETWORK_OR_FD,
    dial,
    network_attack,
    network_attacks_of,
    other,
    other_url,
    peers,
    url,
    web,
)

LOADED = ("asyncio", "http.client", "requests")
"""What the host has loaded since it installed the guard; see runner.py."""

REQUEST = b"GET /secret HTTP/1.1\r\nHost: x\r\n\r\n"
STOPPED = NETWORK_OR_FD | SANDBOX | INVALID


def hold_client(ground: Ground) -> None:
    """The host has a connection of http.client that lives on."""
    import http.client

    ground.held.connection = http.client.HTTPConnection(*other(ground), timeout=LIMIT)
    ground.held.connection.request("GET", "/allowed")
    ground.held.connection.getresponse().read()


def ask_again(ground: Ground) -> object:
    ground.held.connection.request("GET", "/secret")
    return ground.held.connection.getresponse().read()


def send_below(ground: Ground) -> object:
    ground.held.connection.sock.sendall(REQUEST)
    return ground.held.connection.sock.recv(999)


def send_by_method(ground: Ground) -> object:
    ground.held.connection.send(REQUEST)
    return ground.held.connection.sock.recv(999)


def found_by_collector(ground: Ground) -> object:
    """All sockets of the process are looked up and tried."""
    for thing in gc.get_objects():
        if isinstance(thing, socket.socket) and thing.fileno() >= 0 and thing.type == socket.SOCK_STREAM:
            try:
                if thing.getpeername() == other(ground):
                    thing.sendall(REQUEST)
                    return thing.recv(999)
            except OSError as error:
                if isinstance(error, PermissionError):
                    ground.errors.append(error)
    return None


network_attacks_of(
    {"request": ask_again, "socket": send_below, "send": send_by_method, "collector": found_by_collector},
    "a connection of the host's client lives on: {}",
    expect=STOPPED,
    group="client_",
    prepare=hold_client,
)


def hold_session(ground: Ground) -> None:
    import requests

    ground.held.session = requests.Session()
    ground.held.session.get(other_url(ground), timeout=LIMIT)


def pooled_socket(session) -> socket.socket:
    manager = session.get_adapter("http://").poolmanager
    pool = manager.pools[next(iter(manager.pools.keys()))]
    return next(entry for entry in pool.pool.queue if entry is not None).sock


def session_get(ground: Ground) -> object:
    return ground.held.session.get(other_url(ground), timeout=LIMIT).text


def session_socket(ground: Ground) -> object:
    sock = pooled_socket(ground.held.session)
    sock.sendall(REQUEST)
    return sock.recv(999)


def session_pool(ground: Ground) -> object:
    """The pool's connection is used by hand, without the session."""
    manager = ground.held.session.get_adapter("http://").poolmanager
    connection = manager.pools[next(iter(manager.pools.keys()))]._get_conn()
    connection.request("GET", "/secret")
    return connection.getresponse().data


network_attacks_of(
    {"get": session_get, "socket": session_socket, "pool": session_pool},
    "the pool of a session of the host lives on: {}",
    expect=STOPPED,
    group="requests_",
    prepare=hold_session,
    needs=("requests",),
)


def wide_rules(ground: Ground) -> list[dict[str, str]]:
    """What the other subject may do: read everything from the server of the usual rule."""
    return [{"resource_type": "network", "operation": "receive", "target": f"http://127.0.0.1:{peers(ground).web}"}]


def hold_other_subject(ground: Ground) -> None:
    """Another subject, whose rules are wider, has used a pool that both know."""
    import urllib3

    ground.held.manager = urllib3.PoolManager()
    with ground.held.make(subject="wide", access=wide_rules(ground)):
        ground.held.pool = ground.held.manager.connection_from_url(url(ground))
        ground.held.pool.request("GET", "/secret")
        ground.held.entry = ground.held.pool._get_conn()
        ground.held.entry.request("GET", "/secret")
        ground.held.entry.getresponse().read()


def entry_of_another(ground: Ground) -> object:
    sock = ground.held.entry.sock
    sock.sendall(REQUEST)
    return sock.recv(999)


def path_of_another(ground: Ground) -> object:
    return ground.held.manager.request("GET", url(ground, "/secret"), retries=False).data


def put_back(ground: Ground) -> object:
    """The other subject's connection is put where the subject's own are taken from."""
    ground.held.pool.pool.queue[:] = [ground.held.entry]
    ground.held.pool.request("GET", "/allowed", retries=False)
    ground.held.entry.putrequest("GET", "/secret")
    ground.held.entry.endheaders()
    return ground.held.entry.sock.recv(999)


network_attacks_of(
    {"socket": entry_of_another, "path": path_of_another, "put_back": put_back},
    "a pool has a connection of another subject with wider rules: {}",
    expect=STOPPED,
    group="subject_",
    prepare=hold_other_subject,
    needs=("urllib3",),
)


@network_attack(
    "a pool that another subject has used serves permitted requests",
    expect=Works(),
    prepare=hold_other_subject,
    needs=("urllib3",),
)
def pool_works(ground: Ground) -> bool:
    return ground.held.manager.request("GET", url(ground), retries=False).data == b"public"


async def hold_transport(ground: Ground) -> None:
    """The host has an open connection on its loop."""
    import asyncio

    ground.held.reader, ground.held.writer = await asyncio.open_connection(*other(ground))


async def writer_of_host(ground: Ground) -> object:
    ground.held.writer.write(REQUEST)
    return await ground.held.reader.read(999)


async def transport_of_host(ground: Ground) -> object:
    """The transport is found through the loop."""
    import asyncio

    for transport in list(asyncio.get_running_loop()._transports.values()):
        transport.write(REQUEST)
    return await ground.held.reader.read(999)


async def socket_of_transport(ground: Ground) -> object:
    sock = ground.held.writer.get_extra_info("socket")
    sock._sock.send(REQUEST)
    return await ground.held.reader.read(999)


async def selector_of_host(ground: Ground) -> object:
    import asyncio

    for key in list(asyncio.get_running_loop()._selector.get_map().values()):
        try:
            sock = socket.socket(fileno=key.fd)
            sock.send(REQUEST)
            sock.detach()
        except OSError as error:
            ground.errors.append(error)
    if ground.errors:
        return None
    return await ground.held.reader.read(999)


network_attacks_of(
    {
        "writer": writer_of_host,
        "transport": transport_of_host,
        "socket": socket_of_transport,
        "selector": selector_of_host,
    },
    "an open connection of the host's loop is used: {}",
    expect=STOPPED.quietly,
    group="loop_",
    prepare=hold_transport,
)


def hold_uvloop(ground: Ground) -> None:
    """The host has a loop of uvloop's in a thread of its own, with an open connection and an endpoint for datagrams."""
    import asyncio
    import threading

    import uvloop

    loop = ground.held.loop = uvloop.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    def wait(coroutine) -> object:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(LIMIT)

    ground.held.reader, ground.held.writer = wait(asyncio.open_connection(*other(ground)))
    ground.held.endpoint, _ = wait(loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=other(ground)))


def hits_soon(ground: Ground) -> None:
    """What was handed to the other thread has been done."""
    import threading

    done = threading.Event()
    ground.held.loop.call_soon_threadsafe(done.set)
    done.wait(LIMIT)


network_attacks_of(
    {
        "write": lambda ground: ground.held.writer.write(REQUEST),
        "transport": lambda ground: ground.held.writer.transport.write(REQUEST),
        "writelines": lambda ground: ground.held.writer.transport.writelines([REQUEST]),
        "in_the_loop": lambda ground: (
            ground.held.loop.call_soon_threadsafe(ground.held.writer.transport.write, REQUEST) and None
        ),
        "datagram": lambda ground: ground.held.endpoint.sendto(b"x"),
    },
    "an open connection of the host's on uvloop is used: {}",
    expect=STOPPED.quietly,
    group="uvloop_",
    servers=("udp",),
    needs=("uvloop",),
    prepare=hold_uvloop,
    then=hits_soon,
)


def hold_secure(ground: Ground) -> None:
    """The host has a connection with TLS, over which it has asked for something."""
    plain = socket.create_connection(("127.0.0.1", peers(ground).tls))
    ground.held.secure = open_context().wrap_socket(plain, server_hostname="127.0.0.1")
    ground.held.secure.settimeout(LIMIT)
    ground.held.secure.sendall(REQUEST)


network_attacks_of(
    {
        "read": lambda ground: ground.held.secure.recv(999),
        "C_read": lambda ground: ground.held.secure._sslobj.read(999),
        "makefile": lambda ground: ground.held.secure.makefile("rb", buffering=0).read(999),
    },
    "an answer to the host is read off its connection with TLS: {}",
    expect=STOPPED,
    group="secure_",
    servers=("tls",),
    prepare=hold_secure,
)
network_attacks_of(
    {
        "write": lambda ground: ground.held.secure.sendall(REQUEST),
        "C_write": lambda ground: ground.held.secure._sslobj.write(REQUEST) and None,
    },
    "something is sent on a connection of the host with TLS: {}",
    expect=STOPPED,
    group="secure_",
    servers=("tls",),
    prepare=hold_secure,
)


@network_attack("the permitted request works while all that is held", expect=Works(), prepare=hold_client)
def permitted_works(ground: Ground) -> bool:
    import http.client

    connection = http.client.HTTPConnection(*web(ground), timeout=LIMIT)
    connection.request("GET", "/allowed")
    return connection.getresponse().read() == b"public"


class BySession:
    """A decider of the host that permits everything in one session."""

    def decide(self, question: object) -> bool:
        return getattr(question, "session_key", None) == "alice"


def hold_session_socket(ground: Ground) -> None:
    """The same subject has opened a socket in a session where somebody had approved of it."""
    with ground.held.make(session_key="alice"):
        ground.held.approved = dial(other(ground))


@network_attack(
    "a socket that was approved of in one session is used in another",
    expect=STOPPED,
    prepare=hold_session_socket,
    configure=lambda ground: {"decider": BySession()},
)
def other_session(ground: Ground) -> object:
    ground.held.approved.sendall(REQUEST)
    return ground.held.approved.recv(999)
