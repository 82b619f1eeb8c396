"""Buffers, numbers and order of writes that change between check and use."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time

from tests.guard.attacks.kit import BROKEN, FD, Ground
from tests.guard.attacks.network import (
    LIMIT,
    REFUSED,
    guarded,
    network_attack,
    network_attacks_of,
    one_path,
    open_connection,
    request,
    url,
)
from tests.guard.attacks.peer_http import Reading

SWITCH_INTERVAL = 1e-6
"""Threads take turns as often as they can; the host sets it, see runner.py."""

STOPPED = REFUSED | FD
SENDS = Reading(sends=True)


def sending(ground: Ground) -> list[tuple[str, str]]:
    """The subject may also send to the path, with a body."""
    return [*one_path(ground), ("send", url(ground))]


def hidden(ground: Ground) -> bytes:
    return request(ground, "/secret")


def rounds(seconds: float = 0.3):
    """Try for a while, with threads that take turns as often as they can."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield


def changing(ground: Ground, send, make=bytearray) -> None:
    """A buffer holds a permitted request and another one of the same length by turns, while it is being sent."""
    good = request(ground, "/allowed/x")
    bad = request(ground, "/secret//x"[: len("/allowed/x")])
    if not guarded(ground):
        send(open_connection(ground).sock, make(bad))  # without a guard nothing depends on the moment
        return
    buffer, done = make(good), threading.Event()
    at = good.index(b"/allowed/x")

    def flip() -> None:
        turn = False
        while not done.is_set():
            turn = not turn
            buffer[at : at + 10] = (bad if turn else good)[at : at + 10]

    thread = threading.Thread(target=flip, daemon=True)
    thread.start()
    try:
        sock = open_connection(ground).sock
        for _ in rounds():
            try:
                send(sock, buffer)
                sock.recv(4096)
            except (PermissionError, ValueError) as error:
                ground.errors[:] = [error]
                sock.close()
                sock = open_connection(ground).sock
    finally:
        done.set()
        thread.join()


def in_memory_map(text: bytes):
    import mmap

    area = mmap.mmap(-1, len(text))
    area[:] = text
    return area


network_attacks_of(
    {
        "send": lambda ground: changing(ground, lambda sock, data: sock.send(data)),
        "sendmsg": lambda ground: changing(ground, lambda sock, data: sock.sendmsg([data])),
        "memory_map": lambda ground: changing(ground, lambda sock, data: sock.sendall(data), in_memory_map),
    },
    "another thread changes the bytes while they are sent: {}",
    expect=STOPPED.quietly,
    group="changing_",
)


class Second:
    """Gives other bytes the second time it is asked for them."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)

    def __buffer__(self, flags: int) -> memoryview:
        return memoryview(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])


def second_buffer(*count: int):
    def act(ground: Ground, send) -> None:
        for times in range(4):
            sock = open_connection(ground).sock
            try:
                send(sock, Second(*[request(ground, "/allowed")] * times, hidden(ground)))
            except (PermissionError, ValueError) as error:
                ground.errors[:] = [error]

    return act


def second_in_body(ground: Ground, send) -> None:
    """In the middle of a body nothing has to be looked at; the second answer is longer than the body."""
    for times in range(4):
        sock = open_connection(ground).sock
        sock.sendall(request(ground, "/allowed", "POST", "Content-Length: 20\r\n"))
        try:
            send(sock, Second(*[b"x" * 20] * times, b"x" * 20 + hidden(ground)))
        except (PermissionError, ValueError) as error:
            ground.errors[:] = [error]


SENDING = {
    "send": lambda sock, data: sock.send(data),
    "sendall": lambda sock, data: sock.sendall(data),
    "sendmsg": lambda sock, data: sock.sendmsg([data]),
}
network_attacks_of(
    {name: lambda ground, send=send: second_buffer()(ground, send) for name, send in SENDING.items()},
    "an object gives other bytes the second time: {}",
    expect=STOPPED.quietly,
    group="second_buffer_",
    since=(3, 12),
)
network_attacks_of(
    {name: lambda ground, send=send: second_in_body(ground, send) for name, send in SENDING.items()},
    "an object gives more bytes than are left of a body, the second time: {}",
    expect=STOPPED.quietly,
    rules=sending,
    reading=SENDS,
    group="second_in_body_",
    since=(3, 12),
)


class Changing(list):
    """A list whose second reading differs from the first."""

    def __init__(self, *answers: list[bytes]) -> None:
        self.answers = list(answers)
        super().__init__(answers[0])

    def __iter__(self):
        return iter(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0])

    def __len__(self) -> int:
        return 1


def changing_list(ground: Ground) -> None:
    for times in range(4):
        sock = open_connection(ground).sock
        try:
            sock.sendmsg(Changing(*[[request(ground, "/allowed")]] * times, [hidden(ground)]))
        except (PermissionError, ValueError) as error:
            ground.errors[:] = [error]


network_attack("a list of buffers differs the second time", expect=STOPPED.quietly, name="changing_list")(changing_list)


class Exchange:
    """A number that, when it is looked at, puts a connection under a socket object that is just being used."""

    def __init__(self, sock: socket.socket, number: int, answer: int = 0) -> None:
        self.sock, self.number, self.answer = sock, number, answer

    def __index__(self) -> int:
        socket.socket.__base__.__init__(self.sock, 2, 1, 0, self.number)
        return self.answer


def exchanged(ground: Ground, use) -> None:
    ground.held.connection = open_connection(ground)
    plain, ground.held.end = socket.socketpair()
    use(plain, ground.held.connection.sock.fileno())


def dup2_by_index(ground: Ground) -> None:
    """The same, with the number of the socket kept, and the connection put under it."""

    class Number:
        def __index__(self) -> int:
            os.dup2(ground.held.connection.sock.fileno(), plain.fileno())
            return 0

    ground.held.connection = open_connection(ground)
    plain, ground.held.end = socket.socketpair()
    plain.send(hidden(ground), Number())


class Reaching:
    """A buffer that exchanges the number while it is looked at."""

    def __init__(self, sock: socket.socket, number: int, data: bytes) -> None:
        self.arguments, self.data = (sock, 2, 1, 0, number), data

    def __buffer__(self, flags: int) -> memoryview:
        socket.socket.__base__.__init__(*self.arguments)
        return memoryview(self.data)


class Yielding:
    """The same while a list of buffers is read."""

    def __init__(self, sock: socket.socket, number: int, data: bytes) -> None:
        self.arguments, self.data = (sock, 2, 1, 0, number), data

    def __iter__(self):
        socket.socket.__base__.__init__(*self.arguments)
        yield self.data


network_attacks_of(
    {
        "flags": lambda ground: exchanged(
            ground, lambda plain, number: plain.send(hidden(ground), Exchange(plain, number))
        ),
        "flags_of_sendall": lambda ground: exchanged(
            ground, lambda plain, number: plain.sendall(hidden(ground), Exchange(plain, number))
        ),
        "flags_of_sendmsg": lambda ground: exchanged(
            ground, lambda plain, number: plain.sendmsg([hidden(ground)], [], Exchange(plain, number))
        ),
        "buffers_of_sendmsg": lambda ground: exchanged(
            ground, lambda plain, number: plain.sendmsg(Yielding(plain, number, hidden(ground)))
        ),
        "dup2": dup2_by_index,
    },
    "a socket object is given the number of a connection while it is sending: {}",
    expect=STOPPED.or_raises("TypeError"),
    group="exchanged_",
)
network_attacks_of(
    {
        "send": lambda ground: exchanged(
            ground, lambda plain, number: plain.send(Reaching(plain, number, hidden(ground)))
        ),
        "sendall": lambda ground: exchanged(
            ground, lambda plain, number: plain.sendall(Reaching(plain, number, hidden(ground)))
        ),
    },
    "a buffer gives a socket object the number of a connection while it is sending: {}",
    expect=STOPPED,
    group="exchanged_buffer_",
    since=(3, 12),
)


def in_flight(ground: Ground, exchange) -> None:
    """A thread waits in the middle of sending over a pair; meanwhile a connection is put under its socket."""
    ground.held.connection = open_connection(ground)
    plain, end = socket.socketpair()
    plain.settimeout(2)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    plain.setblocking(False)
    filled = 0
    try:
        while True:
            filled += plain.send(b"x" * 1024)
    except BlockingIOError:
        pass
    plain.settimeout(2)
    failed: list[BaseException] = []

    def send() -> None:
        try:
            plain.sendall(hidden(ground))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    time.sleep(0.1)
    exchange(plain, ground.held.connection.sock.fileno())
    end.settimeout(LIMIT)
    while filled > 0:
        filled -= len(end.recv(65536))
    thread.join()
    ground.errors += failed


def by_detaching(plain: socket.socket, number: int) -> None:
    plain.detach()
    plain.__init__(2, 1, 0, number)


network_attacks_of(
    {
        "init": lambda ground: in_flight(
            ground, lambda plain, number: socket.socket.__base__.__init__(plain, 2, 1, 0, number)
        ),
        "detach": lambda ground: in_flight(ground, by_detaching),
        "dup2": lambda ground: in_flight(ground, lambda plain, number: os.dup2(number, plain.fileno())),
    },
    "a connection is put under a socket on which a thread waits in the middle of sending: {}",
    expect=BROKEN,
    group="in_flight_",
)
