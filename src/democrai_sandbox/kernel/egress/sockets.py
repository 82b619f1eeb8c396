"""Read the sockets and the cgroup of this process from the kernel."""

from __future__ import annotations

import os
import socket
import stat
import sys
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc/self")
_INTERNET = (socket.AF_INET, socket.AF_INET6)
_ESTABLISHED = "01"
_WORD = 8
"""Hexadecimal digits of one 32-bit word of an address."""


def internet_sockets() -> frozenset[int]:
    """Return the inodes of this process's open internet sockets."""
    found = set()
    for entry in list((_PROC / "fd").iterdir()):
        with suppress(OSError):
            number = int(entry.name)
            status = os.fstat(number)
            if stat.S_ISSOCK(status.st_mode) and _family(number) in _INTERNET:
                found.add(status.st_ino)
    return frozenset(found)


def connections() -> frozenset[tuple[str, int]]:
    """Return the remote address and port of each established TCP connection in this network namespace."""
    found: set[tuple[str, int]] = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError, ValueError, IndexError):
            lines = (_PROC / "net" / name).read_text("utf-8").splitlines()[1:]
            found.update(_far_end(fields[2]) for fields in map(str.split, lines) if fields[3] == _ESTABLISHED)
    return frozenset(found)


def own_cgroup() -> str:
    """Return the cgroup v2 path of this process; empty without one."""
    with suppress(OSError):
        for line in (_PROC / "cgroup").read_text("utf-8", "surrogateescape").splitlines():
            if line.startswith("0::"):
                return line.removeprefix("0::")
    return ""


def _family(number: int) -> int:
    copy = os.dup(number)
    try:
        with socket.socket(fileno=copy) as link:
            copy = -1
            return link.family
    finally:
        if copy >= 0:
            os.close(copy)


def _far_end(text: str) -> tuple[str, int]:
    """Decode the kernel's hexadecimal address, in words of native byte order, and port."""
    digits, _, port = text.partition(":")
    words = (digits[start : start + _WORD] for start in range(0, len(digits), _WORD))
    packed = b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words)
    mapped = packed[:12] == b"\0" * 10 + b"\xff\xff"
    if len(packed) == 4 or mapped:  # noqa: PLR2004 - bytes of IPv4
        return socket.inet_ntop(socket.AF_INET, packed[-4:]), int(port, 16)
    return socket.inet_ntop(socket.AF_INET6, packed), int(port, 16)
