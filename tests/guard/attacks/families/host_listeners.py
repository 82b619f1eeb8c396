"""Listeners and wake-up sockets of the host, and exchanged socket objects."""

from __future__ import annotations

import os
import socket
import threading

from tests.guard.attacks.families.older_sockets import STOPPED, hold, read_copy
from tests.guard.attacks.kit import Ground, wait_until
from tests.guard.attacks.network import LIMIT, guarded, network_attack, network_attacks_of


def accepted(ground: Ground) -> object:
    return ground.held.listener.accept()[0].recv(999)


def accepted_below(ground: Ground) -> object:
    number, _ = ground.held.listener._accept()
    return read_copy(number)


def accepted_by_copy(ground: Ground) -> object:
    return socket.fromfd(ground.held.listener.fileno(), 2, 1).accept()[0].recv(999)


def accepted_by_server(ground: Ground) -> object:
    import socketserver

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            ground.loot.append(self.request.recv(999))

    server = socketserver.TCPServer(ground.held.listener.getsockname(), Handler, bind_and_activate=False)
    server.socket = ground.held.listener
    server.handle_error = lambda *_: ground.errors.append(__import__("sys").exc_info()[1])
    server._handle_request_noblock()
    return None


async def accepted_by_loop(ground: Ground) -> object:
    import asyncio

    ground.held.listener.setblocking(False)
    sock, _ = await asyncio.get_running_loop().sock_accept(ground.held.listener)
    return sock.recv(999)


async def accepted_by_start_server(ground: Ground) -> object:
    import asyncio

    got = asyncio.get_running_loop().create_future()

    async def serve(reader, writer) -> None:
        got.set_result(await reader.read(999))

    server = await asyncio.start_server(serve, sock=ground.held.listener)
    return await asyncio.wait_for(got, 0.5 if guarded(ground) else LIMIT)


network_attacks_of(
    {
        "accept": accepted,
        "_accept": accepted_below,
        "fromfd": accepted_by_copy,
        "sock_accept": accepted_by_loop,
    },
    "a visitor of the host is received by the subject: {}",
    expect=STOPPED,
    group="accept_",
    prepare=hold,
)
network_attacks_of(
    {"socketserver": accepted_by_server, "start_server": accepted_by_start_server},
    "a visitor of the host is received by a server of the subject, which may keep the error to itself: {}",
    expect=STOPPED.quietly.or_raises("TimeoutError"),
    group="accept_",
    prepare=hold,
)


def waiting_for_more(ground: Ground, receive) -> object:
    """The subject sends a byte that event loops wake up by, and waits for more than that."""
    here, there = ground.held.private
    there.send(b"\0")
    ground.held.go.set()
    return receive(here)


def hold_private(ground: Ground) -> None:
    """A pair over which a thread of the host will say something."""
    ground.held.private = socket.socketpair()
    ground.held.go = threading.Event()

    def speak() -> None:
        ground.held.go.wait()
        threading.Event().wait(0.1)
        ground.held.private[1].sendall(ground.SECRET.encode())

    threading.Thread(target=speak, daemon=True).start()


def long_message(ground: Ground) -> object:
    return ground.held.pair.recv(65536)


def hold_long(ground: Ground) -> None:
    """A message of the host that begins with many zeros."""
    ground.held.pair, ground.held.pair_end = socket.socketpair()
    ground.held.pair_end.sendall(bytes(5000) + ground.SECRET.encode())


SIZE = 1 + len(Ground.SECRET)
network_attacks_of(
    {
        "recv": lambda ground: waiting_for_more(ground, lambda sock: sock.recv(SIZE, socket.MSG_WAITALL)),
        "recvmsg": lambda ground: waiting_for_more(ground, lambda sock: sock.recvmsg(SIZE, 0, socket.MSG_WAITALL)[0]),
    },
    "a pair of the host's is read as if it were the one that wakes up a loop: {}",
    expect=STOPPED.quietly,
    group="wake_",
    prepare=hold_private,
)
network_attack(
    "a message that begins like the bytes that wake up a loop is read",
    expect=STOPPED.quietly,
    prepare=hold_long,
    name="wake_long",
)(long_message)


class Second:
    """Looks like the byte that wakes up a loop, the first time."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)

    def __buffer__(self, flags: int) -> memoryview:
        return memoryview(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])


def hold_order(ground: Ground) -> None:
    """A pair over which a thread of the host takes orders."""
    ground.held.private = socket.socketpair()

    def obey() -> None:
        data = b""
        while b"steal" not in data:
            data += ground.held.private[0].recv(99)
        ground.loot.append(ground.SECRET)

    threading.Thread(target=obey, daemon=True).start()


@network_attack(
    "an order is sent over a pair of the host's as if it woke up a loop",
    expect=STOPPED.quietly,
    prepare=hold_order,
    since=(3, 12),
)
def wake_order(ground: Ground) -> None:
    for times in range(4):
        try:
            ground.held.private[1].send(Second(*[b"\0"] * times, b"steal"))
        except (PermissionError, ValueError) as error:
            ground.errors.append(error)
    wait_until(lambda: ground.loot, 0.1 if guarded(ground) else LIMIT)


def rebound(ground: Ground) -> None:
    """The host's socket object is given a number of the subject's: the host then talks to the subject."""
    mine, ground.held.mine = socket.socketpair()
    ground.held.kept = mine
    socket.socket.__base__.__init__(ground.held.silent, 1, 1, 0, mine.fileno())


def rebound_by_dup2(ground: Ground) -> None:
    mine, ground.held.mine = socket.socketpair()
    os.dup2(mine.fileno(), ground.held.silent.fileno())


def host_speaks(ground: Ground) -> object:
    """The host sends a secret over what it takes for its own connection."""
    if not hasattr(ground.held, "mine"):
        return None
    ground.held.silent.sendall(ground.SECRET.encode())
    ground.held.mine.settimeout(0.2)
    try:
        return ground.held.mine.recv(99)
    except TimeoutError:
        return None


network_attacks_of(
    {"init": rebound, "dup2": rebound_by_dup2},
    "a socket object of the host is given a socket of the subject: {}",
    expect=STOPPED,
    group="rebound_",
    prepare=hold,
    then=host_speaks,
)


def hold_shared_port(ground: Ground) -> None:
    """The host serves at a port that it shares among its own processes."""
    server = ground.held.server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.bind(("0.0.0.0", 0))
    server.listen()
    ground.held.port = server.getsockname()[1]


def visit(ground: Ground) -> object:
    """A visitor of the host brings something; who gets it?"""
    with socket.create_connection(("127.0.0.1", ground.held.port)) as visitor:
        visitor.sendall(ground.SECRET.encode())
    if not hasattr(ground.held, "thief"):
        return None
    ground.held.thief.settimeout(LIMIT)
    try:
        return ground.held.thief.accept()[0].recv(99)
    except TimeoutError:
        return None


@network_attack(
    "the port of a server of the host is shared by the subject",
    expect=STOPPED.or_raises("OSError"),
    prepare=hold_shared_port,
    then=visit,
)
def shared_port(ground: Ground) -> None:
    """Loopback is nearer than every address, so the visitors come here."""
    thief = socket.socket()
    thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    thief.bind(("127.0.0.1", ground.held.port))
    thief.listen()
    ground.held.thief = thief
