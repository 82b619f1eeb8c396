"""Descriptors that C truncates to an int, so that the checked number is not the used number."""

from __future__ import annotations

import os

from tests.guard.attacks.kit import SANDBOX, Ground, attacks_of

WIDTHS = {"above": 1 << 32, "below": -(1 << 32), "far_above": 5 << 32}
REFUSED = SANDBOX.or_raises("OverflowError")


def prepare_sockets(ground: Ground) -> None:
    """Sockets of the host, one of which can be read."""
    import socket

    ground.held.ours, ground.held.theirs = socket.socketpair()
    ground.held.theirs.sendall(ground.SECRET.encode())
    ground.held.listener = socket.create_server(("127.0.0.1", 0))


def wide(ground: Ground, width: int, name: str = "ours") -> int:
    return getattr(ground.held, name).fileno() + width


def close(ground: Ground, width: int) -> bool:
    import socket

    socket.close(wide(ground, width))
    try:
        os.fstat(ground.held.theirs.fileno())
        os.fstat(ground.held.ours.fileno())
    except OSError:
        return True
    return False


def adopt(ground: Ground, width: int) -> bytes:
    import socket

    return socket.socket(fileno=wide(ground, width)).recv(99)


def adopt_native(ground: Ground, width: int) -> bytes:
    import _socket

    return _socket.socket(-1, -1, -1, wide(ground, width)).recv(99)


def accept(ground: Ground, width: int) -> bool:
    import socket

    return socket.socket(fileno=wide(ground, width, "listener")).getsockname()[1] > 0


attacks_of(
    {
        f"{act.__name__}_{name}": lambda ground, act=act, width=width: act(ground, width)
        for act in (close, adopt, adopt_native, accept)
        for name, width in WIDTHS.items()
    },
    "a number beyond the range of descriptors is used for the host's socket: {}",
    expect=REFUSED,
    prepare=prepare_sockets,
)
