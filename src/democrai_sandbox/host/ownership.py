"""One process per SQLite database: the server holds a lock on a file beside it, which contains its process id."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from democrai_sandbox.errors import StateUnusable


class Ownership:
    """Lock of one process. The kernel releases it when the process ends."""

    def __init__(self, database: str) -> None:
        """Take the lock, or raise with its owner. A database server needs no lock: nodes share it."""
        self._descriptor = -1
        if database:
            self._take(f"{database}.lock", database)

    def release(self) -> None:
        """Release the lock. Safe to call twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _take(self, path: str, database: str) -> None:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateUnusable(
                f"{path} cannot be opened: {error.strerror}", fix="remove it if it is not a regular file"
            ) from None
        try:
            # A lock of the process, not of the open file, so that forks do not inherit it.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        except OSError:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "another one"
            os.close(descriptor)
            raise StateUnusable(
                f"process {_shown(holder)} already serves {database}",
                fix="stop that process, use another state_dir, or use PostgreSQL, which several nodes can share",
            ) from None
        self._descriptor = descriptor


def _shown(pid: str) -> str:
    """Return the process id with the command line, if available."""
    if not pid.isdecimal():
        return pid
    try:
        words = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
    except OSError:
        return pid
    line = " ".join(word.decode("utf-8", "backslashreplace") for word in words if word)
    return f"{pid} ({line[:120]!r})" if line else pid
