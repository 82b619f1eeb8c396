"""A guard that restricts only the network: files are free, inherited sockets are not."""

from __future__ import annotations

import os
import socket

from tests.guard.attacks.families.older_sockets import REQUEST, STOPPED, hold
from tests.guard.attacks.kit import Ground, Works
from tests.guard.attacks.network import (
    ask,
    dial,
    network_attack,
    network_attacks_of,
    open_connection,
    other,
    other_url,
    peers,
    request,
)


def on_connection(write):
    """Write to the number of a connection for permitted requests."""

    def act(ground: Ground) -> None:
        ground.held.connection = open_connection(ground)
        write(ground.held.connection.sock.fileno(), request(ground, "/secret"))

    return act


def by_file(number: int, data: bytes) -> None:
    with open(number, "wb", 0, closefd=False) as file:
        file.write(data)


def by_exchanged_file(ground: Ground) -> None:
    ground.held.connection = open_connection(ground)
    file = open(f"{ground.inside}/spare", "wb", 0)
    os.dup2(ground.held.connection.sock.fileno(), file.fileno())
    file.write(request(ground, "/secret"))


def by_second_object(ground: Ground) -> None:
    """Two file objects share a number; one gives it back, the next connection gets it, the other one writes."""
    own = os.open(f"{ground.inside}/spare", os.O_RDWR | os.O_CREAT)
    first, second = open(own, "r+b", 0), open(own, "wb", 0, closefd=False)
    first.close()
    ground.held.connection = open_connection(ground)
    if ground.held.connection.sock.fileno() != own:
        raise RuntimeError("the connection got another number")
    second.write(request(ground, "/secret"))


def by_closed_number(ground: Ground) -> None:
    file = open(f"{ground.inside}/spare", "wb", 0)
    os.close(file.fileno())
    ground.held.connection = open_connection(ground)
    if ground.held.connection.sock.fileno() != file.fileno():
        raise RuntimeError("the connection got another number")
    file.write(request(ground, "/secret"))


def fetch(ground: Ground) -> object:
    import urllib.request

    return urllib.request.urlopen(other_url(ground)).read()


def wider(ground: Ground) -> object:
    """The subject opens a guard of its own, with all that it likes."""
    access = [{"resource_type": "network", "operation": "connect", "target": f"127.0.0.1:{peers(ground).other}"}]
    with ground.held.make(subject="mine", access=access):
        return ask(dial(other(ground)))


network_attacks_of(
    {
        "connect": lambda ground: ask(dial(other(ground))),
        "urlopen": fetch,
        "wider_guard": wider,
        "host_recv": lambda ground: ground.held.sock.recv(999),
        "host_read": lambda ground: os.read(ground.held.number, 999),
        "host_open": lambda ground: open(ground.held.number, "rb", 0, closefd=False).read(999),
        "host_fileno": lambda ground: socket.socket(fileno=ground.held.number).recv(999),
        "host_dup": lambda ground: os.read(os.dup(ground.held.number), 999),
        "host_pair": lambda ground: os.read(ground.held.pair.fileno(), 999),
        "host_write": lambda ground: os.write(ground.held.silent.fileno(), REQUEST) and None,
        "host_accept": lambda ground: ground.held.listener.accept()[0].recv(999),
        "own_write": on_connection(os.write),
        "own_file": on_connection(by_file),
        "own_dup": on_connection(lambda number, data: os.write(os.dup(number), data)),
        "own_dup2": by_exchanged_file,
        "own_second_object": by_second_object,
        "own_closed_number": by_closed_number,
        "family": lambda ground: socket.socket(16, 3, 0) and True,
    },
    "a guard that restricts the network only is passed by: {}",
    expect=STOPPED.or_raises("RuntimeError"),
    network_only=True,
    host_writes=True,
    prepare=hold,
)


@network_attack(
    "files and programs stay as they are under a guard for the network only", expect=Works(), network_only=True
)
def files_work(ground: Ground) -> bool:
    with open(ground.outside) as file:
        return ground.SECRET in file.read()
