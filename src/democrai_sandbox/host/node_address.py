"""Address of a running node: a file in its state folder that only its user can read.

The node holds a lock on the file while it runs. So a file left by a killed node is not used: its port may belong to
another program, which must not receive a token.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ADDRESS_FILE = "node.url"
_LONGEST = 2048


class NodeAddress(NamedTuple):
    """Content of the file."""

    url: str
    is_held: bool
    """Whether the node that wrote it still runs."""


@contextmanager
def announce_node_address(folder: str, url: str) -> Iterator[None]:
    """Write an address to the file for the duration of a block."""
    place = Path(folder) / ADDRESS_FILE
    fresh = place.with_name(f"{ADDRESS_FILE}.{os.getpid()}")
    with suppress(FileNotFoundError):
        fresh.unlink()  # left by a process with the same id
    number = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(number, fcntl.LOCK_EX)  # of this process alone: a fork does not inherit it
        os.write(number, f"{url}\n".encode())
        fresh.replace(place)
        yield
    finally:
        with suppress(FileNotFoundError):
            fresh.unlink()
        with suppress(FileNotFoundError):
            if os.path.samestat(place.stat(), os.fstat(number)):  # another node may have replaced it
                place.unlink()
        os.close(number)


def read_node_address(folder: str) -> NodeAddress | None:
    """Return the content of the file in a state folder; None without one."""
    try:
        number = os.open(Path(folder) / ADDRESS_FILE, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        is_held = _is_held(number)
        text = os.read(number, _LONGEST).decode("utf-8", "replace")
    finally:
        os.close(number)
    return NodeAddress(text.partition("\n")[0].strip(), is_held)


def _is_held(number: int) -> bool:
    try:
        fcntl.lockf(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EACCES, errno.EAGAIN}:
            return True
        raise
    return False
