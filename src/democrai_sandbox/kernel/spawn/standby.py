"""Standby of the spawn server: a fork that waits, and becomes the server when the server ends.

The confined application cannot restart the server, because only processes started before the confinement can start
programs. The standby holds only the things that a new server needs: the link, a process descriptor of the application,
and the rulesets for the first layer of every child. It executes the server's program again, which then forks another
standby. The server replaces a standby that ends. Standard library only, because the server loads single files.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from contextlib import suppress
from typing import NamedTuple, NoReturn

_LOOK_SECONDS = 1.0
"""Seconds between two checks whether the server is stopped."""
_PAUSE = 0.05
"""Seconds before the server restarts, so that one that always fails does not use a whole processor."""
_STANDARD = frozenset({0, 1, 2})


class Inheritance(NamedTuple):
    """State that a server takes over from its predecessor."""

    command: tuple[str, ...]
    """Command of the template process; empty for none."""
    link: int
    bond: int
    """Held open by all servers and standbys; it closes for the application when none is left."""
    application: int
    family: int
    """Upper bits of the marks of all children of the application."""
    pids: str
    """Folder for pids cgroups; empty for none."""
    rulesets: tuple[int, ...] = ()


class Standby:
    """Standby process, as seen by its server."""

    def __init__(self, command: list[str], inheritance: Inheritance, watched: int) -> None:
        """Fork it. ``command`` is the server's program, ``watched`` a process descriptor of the application."""
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
        """Readable after the standby has ended."""

    def end(self) -> None:
        """Kill the standby."""
        with suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)  # an unreaped child, so the id is its own
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self._bond.close()


def _stand_by(server: int, command: list[str], inheritance: Inheritance, watched: int, bond: int) -> NoReturn:
    """Wait for the server's end and replace it, unless the application has ended as well."""
    own_bond = inheritance.bond
    _keep_only({*_STANDARD, inheritance.link, own_bond, *inheritance.rulesets, watched, bond})
    poll = select.poll()
    poll.register(bond, select.POLLIN)
    poll.register(watched, select.POLLIN)
    was_stopped = False
    while True:
        ready = {number for number, _ in poll.poll(_LOOK_SECONDS * 1000)}
        if watched in ready:
            os._exit(0)
        if bond in ready:
            break
        stopped = is_stopped(server)
        if was_stopped and stopped:
            with suppress(OSError):
                os.kill(server, signal.SIGCONT)
        was_stopped = stopped
    time.sleep(_PAUSE)
    for number in (inheritance.link, own_bond, *inheritance.rulesets):
        os.set_inheritable(number, True)  # noqa: FBT003 - positional-only
    for number in (watched, bond):
        os.close(number)
    numbers = (inheritance.link, own_bond, inheritance.application, inheritance.family, *inheritance.rulesets)
    template = json.dumps(inheritance.command)
    os.execv(command[0], [*command, template, inheritance.pids, *map(str, numbers)])  # noqa: S606 - the server's program


def _keep_only(wanted: set[int]) -> None:
    """Close all other descriptors: an open lifeline here would hide the end of the server."""
    most = max(wanted) + 1
    for number in set(range(most)) - wanted:
        os.closerange(number, number + 1)  # ignores closed ones
    os.closerange(most, os.sysconf("SC_OPEN_MAX"))


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal or a debugger."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - avoids importing pathlib
            return file.read().rpartition(b")")[2].split()[0] in {b"T", b"t"}
    except (OSError, IndexError):
        return False
