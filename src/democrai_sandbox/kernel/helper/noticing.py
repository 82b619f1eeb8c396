"""Detect changes of the host's packet filter by other programs.

A firewall reload removes our rules, and the application would be unrestricted until the next refresh. The kernel
reports changes by ``nft`` and ``iptables-nft``, but not by ``iptables-legacy``.
"""

from __future__ import annotations

import errno
import socket
import time
from contextlib import suppress

_NETFILTER = 12  # NETLINK_NETFILTER
_RULES = 1 << 7 - 1  # NFNLGRP_NFTABLES, as the bit of a group
_AT_ONCE = 0.1
"""Seconds to wait for the rest of a change, which consists of many messages."""
_BETWEEN = 1.0
"""Minimum seconds between two notices: each causes the rules to be read, and our changes are reported too."""


class Notices:
    """Listener for changes."""

    def __init__(self) -> None:
        """Start listening; without permission, never report a change."""
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
        """Wait for a change; return False when changes cannot be detected."""
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
            return error.errno == errno.ENOBUFS  # messages were lost, so there was a change
