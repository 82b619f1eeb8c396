"""One process per SQLite database: whoever serves it holds a lock on a file beside it, which says who that is."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from democrai_sandbox.errors import StateUnusable


class Ownership:
    """The lock of one process. The kernel lets it go when the process ends, however it ends."""

    def __init__(self, database: str) -> None:
        """Take it, or say who has it. No database file, no lock: a server's database is for many nodes."""
        self._descriptor = -1
        if database:
            self._take(f"{database}.lock", database)

    def release(self) -> None:
        """Let the next one in. May be called twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _take(self, path: str, database: str) -> None:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateUnusable(
                f"{path} cannot be opened: {error.strerror}", fix="remove it, if it is no file"
            ) from None
        try:
            # A lock of the process, not of the open file: what this process forks does not inherit it.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        except OSError:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "another one"
            os.close(descriptor)
            raise StateUnusable(
                f"{database} is being served by process {_shown(holder)} already",
                fix="stop that one, name another state_dir, or use PostgreSQL, which many may serve together",
            ) from None
        self._descriptor = descriptor


def _shown(pid: str) -> str:
    """Return the number with the name of the program, where it can be had."""
    if not pid.isdecimal():
        return pid
    try:
        words = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
    except OSError:
        return pid
    line = " ".join(word.decode("utf-8", "backslashreplace") for word in words if word)
    return f"{pid} ({line[:120]!r})" if line else pid
