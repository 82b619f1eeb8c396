"""Notices that the host's packet filter was changed, by whomever.

A firewall that is loaded anew takes our rules away, and the application would be free until the next refresh. The
kernel tells of changes by ``nft`` and by the newer ``iptables``; the older kind changes silently.
"""

from __future__ import annotations

import errno
import socket
import time
from contextlib import suppress

_NETFILTER = 12  # NETLINK_NETFILTER
_RULES = 1 << 7 - 1  # NFNLGRP_NFTABLES, as the bit of a group
_AT_ONCE = 0.1
"""How long the rest of a change is waited for, which comes as many messages."""
_BETWEEN = 1.0
"""The least time from one notice to the next: each has the rules read, and our own changes are noticed too."""


class Notices:
    """Waits for changes."""

    def __init__(self) -> None:
        """Begin to listen; where that cannot be had, nothing is ever noticed."""
        self._last = 0.0
        self._socket: socket.socket | None = None
        try:
            listening = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETFILTER)
        except OSError:
            return
        try:
            listening.bind((0, _RULES))
        except OSError:
            listening.close()
        else:
            self._socket = listening

    def wait(self) -> bool:
        """Wait for a change; tell whether there was one: otherwise there will never be."""
        if self._socket is None:
            return False
        self._socket.settimeout(None)
        if not self._receive():
            return False
        time.sleep(max(_AT_ONCE, self._last + _BETWEEN - time.monotonic()))
        self._socket.settimeout(0)
        with suppress(BlockingIOError):
            while self._receive():
                pass
        self._last = time.monotonic()
        return True

    def _receive(self) -> bool:
        try:
            return self._socket is not None and bool(self._socket.recv(65536))
        except BlockingIOError:
            raise
        except OSError as error:
            return error.errno == errno.ENOBUFS  # more than could be kept: a change all the more
