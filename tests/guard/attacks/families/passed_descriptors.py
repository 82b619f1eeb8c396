"""Descriptors of the host, passed over unix sockets."""

from __future__ import annotations

import array
import os
import socket
import threading

from tests.guard.attacks.kit import FILES_OR_FD, Ground
from tests.guard.attacks.network import LIMIT, NETWORK, guarded, network_attacks_of, open_connection, other, peers

STOPPED = NETWORK | FILES_OR_FD
REQUEST = b"GET /secret HTTP/1.1\r\n\r\n"


def hold(ground: Ground) -> None:
    """The host has a connection to the server, a file, a pair of sockets, and one that gives descriptors away."""
    ground.held.sock = socket.create_connection(other(ground))
    ground.held.sock.sendall(REQUEST)
    ground.held.number = ground.held.sock.fileno()
    ground.held.file = os.open(ground.outside, os.O_RDONLY)
    ground.held.pair = socket.socketpair()
    socket.send_fds(ground.held.pair[1], [b"x"], [ground.held.number])
    ground.held.giver = giver(ground, f"{ground.inside}/give")


def giver(ground: Ground, path: str) -> str:
    """A server of the host, where the subject may connect, that gives a descriptor to everybody."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen()

    def serve() -> None:
        connection, _ = server.accept()
        socket.send_fds(connection, [b"x"], [ground.held.number])

    threading.Thread(target=serve, daemon=True).start()
    return path


def read_from(number: int) -> bytes:
    with socket.socket(fileno=number) as sock:
        sock.settimeout(LIMIT)
        return sock.recv(999)


def send_to_self(ground: Ground, number: int, wrap=lambda numbers: numbers) -> int:
    """Send a number over a pair of one's own; what comes out is a number of one's own."""
    here, there = socket.socketpair()
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, wrap(array.array("i", [number])))]
    here.sendmsg([b"x"], ancillary)
    return socket.recv_fds(there, 1, 1)[1][0]


def by_send_fds(ground: Ground) -> object:
    here, there = socket.socketpair()
    socket.send_fds(here, [b"x"], [ground.held.number])
    return read_from(socket.recv_fds(there, 1, 1)[1][0])


def by_C_type(ground: Ground) -> object:
    import _socket

    here, there = _socket.socketpair(1, 1)
    data = array.array("i", [ground.held.number]).tobytes()
    _socket.socket.sendmsg(here, [b"x"], [(1, 1, data)])
    received = _socket.socket.recvmsg(there, 1, 100)[1][0][2]
    return read_from(array.array("i", received)[0])


def by_recvmsg_into(ground: Ground) -> object:
    here, there = socket.socketpair()
    here.sendmsg([b"x"], [(1, 1, array.array("i", [ground.held.number]))])
    received = there.recvmsg_into([bytearray(1)], 100)[1][0][2]
    return read_from(array.array("i", received)[0])


def by_generator(ground: Ground) -> object:
    """The list of what is sent besides is made up while it is read, and differs the second time."""

    class Changing(list):
        rounds = 0

        def __iter__(self):
            Changing.rounds += 1
            if Changing.rounds > 1 or not guarded(ground):
                yield socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [ground.held.number])

    here, there = socket.socketpair()
    here.sendmsg([b"x"], Changing())
    return read_from(socket.recv_fds(there, 1, 1)[1][0])


def by_changing_number(ground: Ground) -> object:
    """Another thread changes the number while it is being sent."""
    own = os.open(f"{ground.inside}/own.txt", os.O_RDONLY)
    numbers, done = array.array("i", [own if guarded(ground) else ground.held.number]), threading.Event()

    def flip() -> None:
        while not done.is_set():
            numbers[0] = ground.held.number
            numbers[0] = own if guarded(ground) else ground.held.number

    thread = threading.Thread(target=flip, daemon=True)
    thread.start()
    try:
        for _ in range(200):
            here, there = socket.socketpair()
            try:
                here.sendmsg([b"x"], [(1, 1, numbers)])
            except OSError as error:
                ground.errors[:] = [error]
                continue
            received = socket.recv_fds(there, 1, 1)[1][0]
            if os.fstat(received).st_mode & 0o170000 == 0o140000:
                return read_from(received)
            os.close(received)
    finally:
        done.set()
        thread.join()
    return None


def by_reduction(ground: Ground) -> object:
    from multiprocessing import Pipe, reduction

    here, there = Pipe()
    reduction.send_handle(here, ground.held.number, os.getpid())
    return read_from(reduction.recv_handle(there))


def by_connection(ground: Ground) -> object:
    """Descriptors among several others, the last of which is the host's."""
    here, there = socket.socketpair()
    own = os.open(f"{ground.inside}/own.txt", os.O_RDONLY)
    ancillary = [(1, 1, array.array("i", [own, own])), (1, 1, array.array("i", [own, ground.held.number]))]
    here.sendmsg([b"x"], ancillary)
    return read_from(socket.recv_fds(there, 1, 4)[1][3])


def by_odd_bytes(ground: Ground) -> object:
    """The numbers come as a view of part of a buffer."""
    numbers = array.array("i", [0, 0, ground.held.number])
    return read_from(send_to_self(ground, 0, lambda _: memoryview(numbers)[2:].cast("B")))


network_attacks_of(
    {
        "send_fds": by_send_fds,
        "sendmsg": lambda ground: read_from(send_to_self(ground, ground.held.number)),
        "as_bytes": lambda ground: read_from(send_to_self(ground, ground.held.number, bytes)),
        "as_bytearray": lambda ground: read_from(send_to_self(ground, ground.held.number, bytearray)),
        "as_view": by_odd_bytes,
        "C_type": by_C_type,
        "recvmsg_into": by_recvmsg_into,
        "changing_list": by_generator,
        "changing_number": by_changing_number,
        "reduction": by_reduction,
        "among_others": by_connection,
        "file": lambda ground: os.read(send_to_self(ground, ground.held.file), 99),
    },
    "a number of the host's is sent over the subject's own sockets: {}",
    expect=STOPPED.quietly.or_raises("IndexError"),
    group="sent_",
    prepare=hold,
)


def from_pair(ground: Ground) -> object:
    """The other end of the host's pair has sent a number; the subject picks it up."""
    return read_from(socket.recv_fds(ground.held.pair[0], 1, 1)[1][0])


def from_pair_number(ground: Ground) -> object:
    here = socket.socket(fileno=ground.held.pair[0].fileno())
    return read_from(socket.recv_fds(here, 1, 1)[1][0])


def from_giver(receive):
    def act(ground: Ground) -> object:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(ground.held.giver)
        return receive(sock)

    return act


def into_file(sock: socket.socket) -> object:
    number = socket.recv_fds(sock, 1, 1)[1][0]
    return os.read(number, 999)


network_attacks_of(
    {
        "pair": from_pair,
        "pair_number": from_pair_number,
        "giver": from_giver(lambda sock: read_from(socket.recv_fds(sock, 1, 1)[1][0])),
        "giver_as_file": from_giver(into_file),
    },
    "a connection that the host made is received as a descriptor: {}",
    expect=STOPPED,
    group="received_",
    prepare=hold,
)


def give_away(ground: Ground, number: int, wrap=lambda numbers: numbers) -> None:
    """Send a number to another process, over a socket that the subject may use."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(peers(ground).taker)
    ground.held.taken = sock
    sock.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, wrap(array.array("i", [number])))])


def give_connection(ground: Ground) -> None:
    """A connection for permitted requests, which the other process would use as it likes."""
    ground.held.connection = open_connection(ground)
    give_away(ground, ground.held.connection.sock.fileno())


def give_later(ground: Ground) -> None:
    """The list of what is sent besides is filled after it was looked at, while the bytes are read."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(peers(ground).taker)
    ground.held.taken = sock
    ancillary: list[tuple[int, int, object]] = []

    class Filling:
        def __iter__(self):
            ancillary.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [ground.held.file])))
            yield b"x"

    sock.sendmsg(Filling(), ancillary)


def give_by_flags(ground: Ground) -> None:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(peers(ground).taker)
    ground.held.taken = sock
    ancillary: list[tuple[int, int, object]] = []

    class Flags:
        def __index__(self) -> int:
            ancillary.append((socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [ground.held.file])))
            return 0

    sock.sendmsg([b"x"], ancillary, Flags())


def give_by_reduction(ground: Ground) -> None:
    from multiprocessing import reduction

    sock = socket.socket(socket.AF_UNIX)
    sock.connect(peers(ground).taker)
    ground.held.taken = sock
    sock.settimeout(0.2)
    try:
        reduction.sendfds(sock, [ground.held.file])
    except TimeoutError:
        pass  # the other side says nothing


network_attacks_of(
    {
        "file": lambda ground: give_away(ground, ground.held.file),
        "file_as_bytes": lambda ground: give_away(ground, ground.held.file, bytes),
        "connection": lambda ground: give_away(ground, ground.held.number),
        "own_connection": give_connection,
        "filled_later": give_later,
        "filled_by_flags": give_by_flags,
        "by_reduction": give_by_reduction,
    },
    "a number of the host's is handed to another process: {}",
    expect=STOPPED.quietly.or_raises("TypeError"),
    group="given_",
    servers=("taker",),
    prepare=hold,
)
