"""Cgroups of the controller ``pids``: limits of processes for children of root. Standard library only, as above."""

from __future__ import annotations

import itertools
import os
import time
from contextlib import suppress
from typing import NoReturn

PREFIX = "democrai_pids_"
_LARGEST = 4_194_304
"""The kernel's largest number of processes."""
_FAREWELL_SECONDS = 2.0
_PAUSE = 0.002


class PidsCgroups:
    """One cgroup for each child with a limit of processes, below the cgroup of the server.

    A cgroup of v1 has a file through which a thread joins; in v2 it is threaded, for the same reason: to move a whole
    process, the kernel waits for milliseconds. A child cannot leave it, because Landlock denies it the files.
    """

    def __init__(self, folder: str, application: int, family: int) -> None:
        """Take the folder of the server's cgroup, empty without one, and the numbers that mark its children."""
        self._folder = folder
        self._family = f"{PREFIX}{application}_{family:x}_"
        self._numbers = itertools.count(1)
        self.ending: set[str] = set()
        """Cgroups to be removed when their processes have ended."""
        self._threaded = not os.path.exists(f"{folder}/tasks")  # noqa: PTH110 - avoids importing pathlib
        self._home = _place()
        self._works = False

    @property
    def usable(self) -> bool:
        """Whether they work, as tried. In v2 a server that the helper has moved cannot use its former cgroup."""
        return self._works and not (self._threaded and _place() != self._home)

    def begin(self) -> None:
        """Remove what ended servers have left, and try one. Call it when no child of an earlier server is left."""
        if not self._folder or os.geteuid() != 0 or (self._threaded and not self._is_enabled()):
            return
        for name in self._names():
            application = name.removeprefix(PREFIX).partition("_")[0]
            if name.startswith(self._family):
                self.remove(f"{self._folder}/{name}")
            elif application.isdecimal() and not os.path.exists(f"/proc/{application}"):  # noqa: PTH110 - as above
                _removed(f"{self._folder}/{name}")
        self._works = True
        try:
            group, entry = self.make(1)
        except OSError:
            self._works = False
            return
        self._works = _is_limited(entry)
        os.close(entry)
        self.remove(group)

    def make(self, most: int | None) -> tuple[str, int]:
        """Create a cgroup for this number of processes; none without a number, or if cgroups cannot be used.

        Return its path, and a descriptor: a process with one thread joins by writing a zero to it.
        """
        if most is None or not self.usable:
            return "", -1
        path = f"{self._folder}/{self._family}{os.getpid()}_{next(self._numbers)}"
        os.mkdir(path, 0o755)  # noqa: PTH102 - as above
        try:
            if self._threaded:
                _write(f"{path}/cgroup.type", b"threaded")
            _write(f"{path}/pids.max", b"%d" % min(max(most, 0), _LARGEST))
            threads = "cgroup.threads" if self._threaded else "tasks"
            return path, os.open(f"{path}/{threads}", os.O_WRONLY | os.O_CLOEXEC)
        except BaseException:
            self.remove(path)
            raise

    def remove(self, path: str) -> None:
        """Remove a cgroup, or let ``sweep`` remove it when its processes have ended."""
        if path and not _removed(path):
            self.ending.add(path)

    def sweep(self) -> None:
        """Remove the cgroups whose processes have ended."""
        self.ending = {path for path in self.ending if not _removed(path)}

    def end(self) -> None:
        """Remove all cgroups of this server, whose processes were killed."""
        last = time.monotonic() + _FAREWELL_SECONDS
        self.ending.update(f"{self._folder}/{name}" for name in self._names() if name.startswith(self._family))
        self.sweep()
        while self.ending and time.monotonic() < last:
            time.sleep(_PAUSE)
            self.sweep()

    def _names(self) -> list[str]:
        try:
            return [name for name in os.listdir(self._folder) if name.startswith(PREFIX)]  # noqa: PTH208
        except OSError:  # without a folder too
            return []

    def _is_enabled(self) -> bool:
        with suppress(OSError), open(f"{self._folder}/cgroup.subtree_control", "rb") as file:  # noqa: PTH123
            return b"pids" in file.read().split()
        return False


def _place() -> bytes:
    """Return the cgroups of this process."""
    with suppress(OSError), open("/proc/self/cgroup", "rb") as file:  # noqa: PTH123
        return file.read()
    return b""


def _write(path: str, value: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(file, value)
    finally:
        os.close(file)


def _removed(path: str) -> bool:
    try:
        os.rmdir(path)  # noqa: PTH106 - as above
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _is_limited(entry: int) -> bool:
    """Whether a process cannot fork in the cgroup of this descriptor, which is for one process."""
    try:
        pid = os.fork()
    except OSError:
        return False
    if pid == 0:
        _fork_in_vain(entry)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _fork_in_vain(entry: int) -> NoReturn:
    status = 1
    try:
        os.write(entry, b"0")
        os.fork()  # both processes end with 1 if it succeeds
    except BlockingIOError:
        status = 0
    finally:
        os._exit(status)
