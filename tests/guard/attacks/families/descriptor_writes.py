"""Writes to the descriptor of a checked connection."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time

from tests.guard.attacks.families.connection_writes import STOPPED, copied, hidden
from tests.guard.attacks.kit import SANDBOX, Ground
from tests.guard.attacks.network import network_attacks_of, open_connection


def by_pipe(ground: Ground, number: int) -> None:
    read, write = os.pipe()
    os.write(write, hidden(ground))
    os.splice(read, number, len(hidden(ground)))


def by_sendfile(ground: Ground, number: int) -> None:
    with open(f"{ground.inside}/request", "wb") as file:
        file.write(hidden(ground))
    with open(f"{ground.inside}/request", "rb") as file:
        os.sendfile(number, file.fileno(), 0, len(hidden(ground)))


def by_mode(mode: str, make=open):
    def act(ground: Ground, number: int) -> None:
        with make(number, mode, 0, closefd=False) as file:
            file.write(hidden(ground))

    return act


def by_class(ground: Ground, number: int) -> None:
    import io

    io.FileIO(number, "w", closefd=False).write(hidden(ground))


def by_opener(ground: Ground, number: int) -> None:
    with open("x", "wb", 0, opener=lambda *_: os.dup(number)) as file:
        file.write(hidden(ground))


def by_python_file(ground: Ground, number: int) -> None:
    import _pyio

    _pyio.FileIO(number, "w", closefd=False).write(hidden(ground))


def by_dup2(ground: Ground, number: int) -> None:
    spare = socket.socket()
    os.dup2(number, spare.fileno())
    spare.sendall(hidden(ground))


def by_dup2_of_file(ground: Ground, number: int) -> None:
    """A file object of the subject's gets the connection under its number."""
    file = open(f"{ground.inside}/spare", "wb", 0)
    os.dup2(number, file.fileno())
    file.write(hidden(ground))


def by_fcntl(ground: Ground, number: int) -> None:
    import fcntl

    copied(fcntl.fcntl(number, fcntl.F_DUPFD, 0)).sendall(hidden(ground))


def by_passing(ground: Ground, number: int) -> None:
    here_end, there = socket.socketpair()
    socket.send_fds(here_end, [b"x"], [number])
    received = socket.recv_fds(there, 1, 1)[1][0]
    copied(received).sendall(hidden(ground))


def by_passing_and_writing(ground: Ground, number: int) -> None:
    here_end, there = socket.socketpair()
    socket.send_fds(here_end, [b"x"], [number])
    os.write(socket.recv_fds(there, 1, 1)[1][0], hidden(ground))


def by_multiprocessing(ground: Ground, number: int) -> None:
    """The library's connection object writes a length first; the server takes it for noise."""
    from multiprocessing.connection import Connection

    Connection(os.dup(number))._send(hidden(ground))


def by_closerange(ground: Ground, number: int) -> None:
    """A number that an object holds is freed, and the next connection gets it."""
    file = open(f"{ground.inside}/spare", "wb", 0)
    os.closerange(file.fileno(), file.fileno() + 1)
    ground.held.other = open_connection(ground)
    if ground.held.other.sock.fileno() != file.fileno():
        raise RuntimeError("the connection got another number")
    file.write(hidden(ground))


def by_second_object(ground: Ground, number: int) -> None:
    """Two objects share a number; one gives it back, the next connection gets it, the other one writes."""
    own = os.open(f"{ground.inside}/spare", os.O_RDWR | os.O_CREAT)
    first, second = open(own, "r+b", 0), open(own, "wb", 0, closefd=False)
    first.close()
    ground.held.other = open_connection(ground)
    if ground.held.other.sock.fileno() != own:
        raise RuntimeError("the connection got another number")
    second.write(hidden(ground))


def by_closing_number(ground: Ground, number: int) -> None:
    """The same with a plain number and an object that only borrows it."""
    own = os.open(f"{ground.inside}/spare", os.O_RDWR | os.O_CREAT)
    second = open(own, "wb", 0, closefd=False)
    os.close(own)
    ground.held.other = open_connection(ground)
    if ground.held.other.sock.fileno() != own:
        raise RuntimeError("the connection got another number")
    second.write(hidden(ground))


def by_pipe_object(ground: Ground, number: int) -> None:
    """The same with an end of a pipe."""
    read, write = os.pipe()
    first, second = open(write, "wb", 0), open(write, "wb", 0, closefd=False)
    first.close()
    ground.held.other = open_connection(ground)
    if ground.held.other.sock.fileno() != write:
        raise RuntimeError("the connection got another number")
    second.write(hidden(ground))


BY_NUMBER = {
    "os_write": lambda ground, number: os.write(number, hidden(ground)),
    "os_writev": lambda ground, number: os.writev(number, [hidden(ground)]),
    "os_splice": by_pipe,
    "os_sendfile": by_sendfile,
    "open": by_mode("wb"),
    "open_both_ways": by_mode("r+b"),
    "open_append": by_mode("ab"),
    "os_fdopen": by_mode("wb", os.fdopen),
    "FileIO": by_class,
    "opener": by_opener,
    "python_FileIO": by_python_file,
    "dup": lambda ground, number: os.write(os.dup(number), hidden(ground)),
    "dup_socket": lambda ground, number: copied(os.dup(number)).sendall(hidden(ground)),
    "C_dup": lambda ground, number: copied(__import__("_socket").dup(number)).sendall(hidden(ground)),
    "fromfd": lambda ground, number: socket.fromfd(number, 2, 1).sendall(hidden(ground)),
    "fileno": lambda ground, number: copied(number).sendall(hidden(ground)),
    "dup2": by_dup2,
    "dup2_of_file": by_dup2_of_file,
    "F_DUPFD": by_fcntl,
    "passed": by_passing,
    "passed_and_written": by_passing_and_writing,
    "multiprocessing": by_multiprocessing,
    "closerange": by_closerange,
    "second_object": by_second_object,
    "closed_number": by_closing_number,
    "pipe_object": by_pipe_object,
}


def on_number(write):
    def act(ground: Ground) -> None:
        ground.held.connection = open_connection(ground)
        write(ground, ground.held.connection.sock.fileno())

    return act


network_attacks_of(
    {name: on_number(write) for name, write in BY_NUMBER.items()},
    "the number of a connection is written to: {}",
    expect=STOPPED.or_raises("RuntimeError"),
    group="number_",
)
