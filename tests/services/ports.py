"""Ports for servers that have to be told theirs before they start, or start again on the same one."""

from __future__ import annotations

import socket
from contextlib import contextmanager


def kept_port():
    """Return a socket that keeps a port of the loopback from being given to anybody else, until it is closed.

    It does not listen: who connects is refused, and a server that is told the number takes it beside this one, as
    servers do that allow an address to be used again. Without it any process of the machine may have the port by then.
    """
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind(("127.0.0.1", 0))
    return keeper


@contextmanager
def port():
    """Give the number of a port that is kept for as long as the block lasts."""
    with kept_port() as keeper:
        yield keeper.getsockname()[1]
