"""Listening beyond the machine, and rules that name only a port or a host."""

from __future__ import annotations

import errno
import socket

from tests.guard.attacks import namespaces
from tests.guard.attacks.kit import SANDBOX, Ground
from tests.guard.attacks.network import (
    REFUSED,
    ask,
    dial,
    network_attack,
    network_attacks_of,
    one_path,
    other,
    peers,
    web,
)


def on_socket(act, *options: tuple[int, int, object]):
    def play(ground: Ground) -> object:
        sock = socket.socket()
        for option in options:
            sock.setsockopt(*option)
        return act(ground, sock)

    return play


def open_to_all(ground: Ground, sock: socket.socket) -> bool:
    """Whether the socket listens beyond the loopback interface."""
    sock.listen()
    return sock.getsockname()[0] in ("0.0.0.0", "::")


def after_bind(address: str):
    def act(ground: Ground, sock: socket.socket) -> bool:
        sock.bind((address, 0))
        return open_to_all(ground, sock)

    return act


def after_bind_to_a_port(ground: Ground, sock: socket.socket) -> bool:
    bind_to_a_port(sock)
    return open_to_all(ground, sock)


def six(ground: Ground) -> bool:
    sock = socket.socket(socket.AF_INET6)
    sock.bind(("::", 0))
    return open_to_all(ground, sock)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def bind_to_a_port(sock: socket.socket) -> None:
    """Bind to a free port by its number; another one when somebody else was faster."""
    for _ in range(20):
        try:
            return sock.bind(("0.0.0.0", free_port()))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise OSError("no free ports")


def by_server(ground: Ground) -> bool:
    import socketserver

    with socketserver.TCPServer(("", 0), socketserver.BaseRequestHandler) as server:
        return server.socket.getsockname()[0] == "0.0.0.0"


def by_listener(ground: Ground) -> bool:
    from multiprocessing.connection import Listener

    with Listener(("0.0.0.0", 0)) as listener:
        return listener.address[0] == "0.0.0.0"


async def by_loop(ground: Ground) -> bool:
    import asyncio

    server = await asyncio.start_server(lambda *_: None, "0.0.0.0", 0)
    return server.sockets[0].getsockname()[0] == "0.0.0.0"


async def by_loop_everywhere(ground: Ground) -> bool:
    import asyncio

    server = await asyncio.start_server(lambda *_: None, None, 0)
    return any(sock.getsockname()[0] in ("0.0.0.0", "::") for sock in server.sockets)


def by_uvloop(ground: Ground) -> bool:
    import asyncio

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(by_loop(ground))


network_attacks_of(
    {
        "bound_to_all": on_socket(after_bind("0.0.0.0")),
        "bound_to_nothing": on_socket(after_bind("")),
        "bound_to_a_port": on_socket(after_bind_to_a_port),
        "not_bound": on_socket(open_to_all),
        "create_server": lambda ground: socket.create_server(("", 0)).getsockname()[0] == "0.0.0.0",
        "socketserver": by_server,
        "multiprocessing": by_listener,
        "start_server": by_loop,
        "start_server_everywhere": by_loop_everywhere,
    },
    "the subject listens to the whole world: {}",
    expect=REFUSED,
    group="listen_",
)
network_attacks_of(
    {
        "six": six,
        "dual_stack": lambda ground: (
            socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True).getsockname()[0] == "::"
        ),
    },
    "the subject listens to the whole world over IPv6: {}",
    expect=REFUSED,
    group="listen_",
    needs=("IPv6",),
)
network_attacks_of(
    {"uvloop": by_uvloop}, "the subject listens over {}", expect=REFUSED, group="listen_", needs=("uvloop",)
)


def bind_datagram(ground: Ground) -> bool:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    bind_to_a_port(sock)
    return True


def steal_port(ground: Ground) -> bool:
    """A second socket at the port of a server of the host, which allows that."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("0.0.0.0", ground.held.port))
    sock.listen()
    return True


def hold_port(ground: Ground) -> None:
    sock = ground.held.server = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("0.0.0.0", 0))
    sock.listen()
    ground.held.port = sock.getsockname()[1]


network_attacks_of(
    {"datagrams": bind_datagram, "port_of_the_host": steal_port},
    "a port is taken at every address of the machine: {}",
    expect=REFUSED,
    group="bind_",
    before=hold_port,
)


def any_port(ground: Ground) -> list[tuple[str, str]]:
    """The permitted server, in both forms."""
    return [*one_path(ground), ("connect", f"127.0.0.1:{peers(ground).web}")]


def datagram(ground: Ground, address: tuple[str, int]) -> object:
    sock = dial(address, kind=socket.SOCK_DGRAM)
    sock.send(b"x")
    return sock.recv(99)


network_attacks_of(
    {
        "datagram_to_the_port": lambda ground: datagram(ground, web(ground)),
        "stream_to_the_port": lambda ground: ask(dial(web(ground))),
        "other_path": lambda ground: ask(dial(web(ground)), "/secret"),
    },
    "a rule about a URL does not open its port: {}",
    group="url_",
    servers=("udp",),
)
network_attacks_of(
    {
        "other_host": lambda ground: ask(dial(("127.0.0.2", peers(ground).web))),
        "other_port": lambda ground: ask(dial(other(ground))),
        "other_port_datagram": lambda ground: datagram(ground, other(ground)),
    },
    "a rule about a host and its port opens no other: {}",
    rules=any_port,
    group="socket_",
    servers=("udp",),
)


@network_attack("a rule for sending opens no socket", rules=lambda ground: [("send", f"127.0.0.1:{peers(ground).web}")])
def operation_only(ground: Ground) -> object:
    return ask(dial(web(ground)))


def lonely(ground: Ground) -> None:
    """A network of the attack's own: what is changed there harms nobody."""
    namespaces.enter(ground.base)


lonely.first = True


def change_interface(ground: Ground) -> bool:
    """The machine gets another address, by a call on a socket of the subject's own."""
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
        where = struct.pack("16sH2x4s8x", b"lo:7", socket.AF_INET, socket.inet_aton("198.51.100.9"))
        fcntl.ioctl(plain, 0x8916, where)
    return True


def add_route(ground: Ground) -> bool:
    """Packets to a permitted address are sent another way."""
    import fcntl
    import struct

    def address(text: str) -> bytes:
        return struct.pack("H2x4s8x", socket.AF_INET, socket.inet_aton(text))

    entry = struct.pack(
        "@L16s16s16sHhLPhPLLH",
        0,
        address("198.51.100.9"),
        address("0.0.0.0"),
        address("255.255.255.255"),
        5,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
    )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
        try:
            fcntl.ioctl(plain, 0x890B, entry)
        except PermissionError:
            raise
        except OSError:
            return True  # the kernel was asked
    return True


network_attacks_of(
    {"address": change_interface, "route": add_route},
    "the network of the machine is changed by a call on a socket: {}",
    expect=SANDBOX | REFUSED,
    group="machine_",
    needs=("root", "namespaces"),
    before=lonely,
)
