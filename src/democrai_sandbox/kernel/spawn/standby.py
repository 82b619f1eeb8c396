"""The standby of the spawn server: a fork of it that waits, and becomes the server when that is gone.

Only a process that was there before the application confined itself can start programs, so the application cannot
start the server again. The standby holds what the server needs to begin anew, and nothing else: the link, a handle of
the application, and the rulesets that are the first layer of every child. It executes the server's program again, which
then makes a standby of its own. A standby that ends is replaced by the server. Standard library only: the server loads
this file alone.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import NamedTuple, NoReturn

_LOOK_SECONDS = 1.0
"""How often it is seen whether the server stands still."""
_PAUSE = 0.05
"""Seconds before the server begins anew: one that cannot begin is not to keep a processor busy."""
_STANDARD = frozenset({0, 1, 2})


class Inheritance(NamedTuple):
    """What a server has from the one before it."""

    link: int
    bond: int
    """Held open by all servers and standbys: the application sees in it that none is left."""
    application: int
    rulesets: tuple[int, ...] = ()

    def arguments(self) -> list[str]:
        """Return it as arguments of the server's program."""
        return [str(number) for number in (self.link, self.bond, self.application, *self.rulesets)]


class Standby:
    """The standby as its server holds it."""

    def __init__(self, command: list[str], inheritance: Inheritance, watched: int) -> None:
        """Fork it. ``command`` is the program of the server, ``watched`` a handle of the application."""
        server = os.getpid()
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _stand_by(server, command, inheritance, watched, theirs.fileno())
            finally:
                os._exit(1)
        theirs.close()
        self._bond = ours
        self.descriptor = ours.fileno()
        """Readable once it has ended."""

    def end(self) -> None:
        """End it, while the server is still there."""
        with suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)  # a child that was not waited for
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self._bond.close()


def _stand_by(server: int, command: list[str], inheritance: Inheritance, watched: int, bond: int) -> NoReturn:
    """Wait for the end of the server, and take its place, unless the application is gone as well."""
    _, own_bond, _, *_ = inheritance
    _keep_only({*_STANDARD, inheritance.link, own_bond, *inheritance.rulesets, watched, bond})
    poll = select.poll()
    poll.register(bond, select.POLLIN)
    poll.register(watched, select.POLLIN)
    stood = False
    while True:
        ready = {number for number, _ in poll.poll(_LOOK_SECONDS * 1000)}
        if watched in ready:
            os._exit(0)
        if bond in ready:
            break
        stands = _stands_still(server)
        if stood and stands:
            with suppress(OSError):
                os.kill(server, signal.SIGCONT)
        stood = stands
    time.sleep(_PAUSE)
    for number in (inheritance.link, own_bond, *inheritance.rulesets):
        os.set_inheritable(number, True)  # noqa: FBT003 - its only form
    for number in (watched, bond):
        os.close(number)
    os.execv(command[0], [*command, *inheritance.arguments()])  # noqa: S606 - the server's own program


def _keep_only(wanted: set[int]) -> None:
    """Close all descriptors but these: a lifeline that stays open here would hide the end of the server."""
    most = max(wanted) + 1
    for number in range(most):
        if number not in wanted:
            with suppress(OSError):
                os.close(number)
    os.closerange(most, os.sysconf("SC_OPEN_MAX"))


def _stands_still(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - the server knows no more
            return file.read().rpartition(b")")[2].split()[0] in {b"T", b"t"}
    except (OSError, IndexError):
        return False


def command_of(file: str) -> list[str]:
    """Return the program of the server, without its arguments."""
    return [sys.executable, "-I", "-S", "-B", file]
