"""A network, a file system view and a host name of the attack's own, so that names and addresses can be anything.

Needs root. Nothing leaves the machine, because in the namespace there is nothing but a loopback interface.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from collections.abc import Iterable
from functools import cache

NEW_MOUNTS, NEW_NAMES, NEW_NETWORK = 0x20000, 0x4000000, 0x40000000
PRIVATE, BIND = 0x44000, 0x1000
SET_FLAGS, SET_ADDRESS_6 = 0x8914, 0x8916


def libc():
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def available() -> bool:
    """Whether a process may have such namespaces here; tried in a fork."""
    if os.geteuid() != 0:
        return False
    pid = os.fork()
    if pid == 0:
        os._exit(0 if libc().unshare(NEW_MOUNTS | NEW_NAMES | NEW_NETWORK) == 0 else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@cache
def has_six() -> bool:
    """Whether the machine speaks IPv6 with itself."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def enter(base: str, *, files: dict[str, str] | None = None, name: str = "", addresses: Iterable[str] = ()) -> None:
    """Move this process into namespaces of its own; `files` replaces files of the system, by path."""
    system, loopback = libc(), ("::1",) if has_six() else ()
    if system.unshare(NEW_MOUNTS | NEW_NAMES | NEW_NETWORK) != 0:
        raise PermissionError("no namespaces here")
    system.mount(b"none", b"/", None, PRIVATE, None)
    for number, (path, text) in enumerate((files or {}).items()):
        source = f"{base}/replaced-{number}"
        with open(source, "w") as file:
            file.write(text)
        if system.mount(source.encode(), path.encode(), None, BIND, None) != 0:
            raise PermissionError(f"cannot replace {path}")
    if name:
        socket.sethostname(name)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
        fcntl.ioctl(plain, SET_FLAGS, struct.pack("16sh22x", b"lo", 0x49))
    for number, address in enumerate(addresses):
        _add(number, address)
    for address in (*loopback, *addresses):
        _wait_for(address)


def _wait_for(address: str) -> None:
    """The kernel takes a moment until an address may be used."""
    end = time.monotonic() + 30
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        while time.monotonic() < end:
            try:
                probe.bind((address, 0))
            except OSError:
                time.sleep(0.001)
            else:
                return


def _add(number: int, address: str) -> None:
    """Give the loopback interface one more address."""
    if ":" in address:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as plain:
            fcntl.ioctl(plain, SET_ADDRESS_6, socket.inet_pton(socket.AF_INET6, address) + struct.pack("=Ii", 128, 1))
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
        label = f"lo:{number}".encode()
        where = struct.pack("16sH2x4s8x", label, socket.AF_INET, socket.inet_aton(address))
        fcntl.ioctl(plain, SET_ADDRESS_6, where)
