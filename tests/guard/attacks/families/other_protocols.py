"""Protocols and address families beyond those of the rule."""

from __future__ import annotations

import os
import socket

from tests.guard.attacks.kit import Ground
from tests.guard.attacks.network import REFUSED, network_attacks_of

FAMILIES = {
    "netlink_route": (16, 3, 0),
    "netlink_datagram": (16, 2, 0),
    "netlink_audit": (16, 3, 9),
    "packet": (17, 3, 0x300),
    "packet_cooked": (17, 2, 0),
    "raw_icmp": (2, 3, 1),
    "raw_everything": (2, 3, 255),
    "raw_tcp": (2, 3, 6),
    "raw_icmp_six": (10, 3, 58),
    "ping": (2, 2, 1),
    "sctp": (2, 1, 132),
    "sctp_many": (2, 5, 132),
    "dccp": (2, 6, 33),
    "udp_lite": (2, 2, 136),
    "vsock": (40, 1, 0),
    "vsock_datagram": (40, 5, 0),
    "crypto": (38, 5, 0),
    "can": (29, 3, 1),
    "bluetooth": (31, 3, 1),
    "express_data_path": (44, 3, 0),
    "shared_memory": (43, 1, 0),
    "tipc": (30, 5, 0),
    "kernel_connection": (41, 5, 0),
    "qualcomm": (42, 2, 0),
    "llc": (26, 2, 0),
    "ax25": (3, 2, 0),
    "rds": (21, 5, 0),
    "key_management": (15, 3, 2),
    "unknown": (99, 1, 0),
}


def kernel_has(arguments: tuple[int, int, int]) -> bool:
    if arguments[0] == socket.AF_PACKET:
        return os.geteuid() == 0  # closing one takes the kernel a while
    try:
        socket.socket(*arguments).close()
    except (OSError, OverflowError):
        return False
    return True


def make(arguments: tuple[int, int, int], kind: str):
    def act(ground: Ground) -> bool:
        import _socket

        (_socket if kind == "C_" else socket).socket(*arguments)
        return True

    return act


for prefix, names in {"": tuple(FAMILIES), "C_": ("netlink_route", "raw_icmp", "packet")}.items():
    for name in names:
        here = kernel_has(FAMILIES[name])
        network_attacks_of(
            {name: make(FAMILIES[name], prefix)},
            "a socket of a kind that no rule can name is made: {}",
            group=f"family_{prefix}",
            unguarded="" if here else "this kernel has no such sockets",
        )


def with_flags(kind: int):
    return lambda ground: socket.socket(socket.AF_INET, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, 1) and True


def is_netlink(sock: socket.socket) -> bool:
    """What the kernel says about the family."""
    return sock.getsockopt(socket.SOL_SOCKET, 39) == 16


def by_index(ground: Ground) -> bool:
    """The numbers are objects that answer differently the second time they are asked."""

    class Number:
        def __init__(self, *answers: int) -> None:
            self.answers = list(answers)

        def __index__(self) -> int:
            return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    for before in range(4):
        made = socket.socket.__base__(Number(*[2] * before, 16), Number(*[1] * before, 3), 0)
        if is_netlink(made):
            return True
    return False


def made_again(ground: Ground) -> bool:
    """A socket object that exists already is initialised a second time."""
    sock = socket.socket()
    sock.close()
    sock.__init__(16, 3, 0)
    return sock.fileno() >= 0


def subclass(ground: Ground) -> bool:
    class Mine(socket.socket):
        def __init__(self) -> None:
            super(socket.socket, self).__init__(16, 3, 0)

    return Mine().fileno() >= 0


def claimed(ground: Ground) -> bool:
    """The object is told it is of an ordinary kind; the kernel's is not."""
    return socket.socket(16, 3, 0).getsockname() is not None


class Forged(int):
    """A number that claims to be another one."""

    def __index__(self) -> int:
        return 2

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


network_attacks_of(
    {
        "flags": with_flags(socket.SOCK_RAW),
        "changing_numbers": by_index,
        "forged_numbers": lambda ground: (
            is_netlink(socket.socket(Forged(16), Forged(3), 0))
            or is_netlink(socket.socket.__base__(Forged(16), Forged(3), 0))
        ),
        "made_again": made_again,
        "subclass": subclass,
        "claimed": claimed,
    },
    "the kind of a socket is hidden from the check: {}",
    group="hidden_",
    needs=("root",),
    expect=REFUSED.or_raises("OSError"),
)
