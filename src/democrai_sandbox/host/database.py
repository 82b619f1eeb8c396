"""Database of the host: wait for its server at start, and lock a SQLite file for one process."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

from democrai_sandbox.access.store.database import Database
from democrai_sandbox.access.store.database_location import parse_url, shown_url
from democrai_sandbox.errors import DatabaseUnreachable, StateUnusable, StoreUnavailable

from .directories import database_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from .settings import HostSettings

_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 5.0
_TOLD_EVERY = 60.0
_log = logging.getLogger(__name__)


def await_database(settings: HostSettings, still_waiting: Callable[[], object] = lambda: None) -> None:
    """Return when the database server answers; raise ``DatabaseUnreachable`` after ``database.wait_seconds``.

    ``still_waiting`` is called before each pause. Do not wait for a database in a file, whose state is known
    immediately.
    """
    if database_file(settings):
        return
    deadline = monotonic() + settings.database_wait
    pause, said, told_at = _FIRST_PAUSE, "", 0.0
    while (reason := _unreachable_reason_now(settings.database)) is not None:
        left = deadline - monotonic()
        if left <= 0:
            raise unreachable_error(settings.database, reason)
        if reason != said or monotonic() - told_at >= _TOLD_EVERY:
            said, told_at = reason, monotonic()
            _log.warning("waiting for the database for another %.0f s: %s", left, reason)
        still_waiting()
        sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)
    if said:
        _log.info("the database answers")


def unreachable_error(url: str, reason: str) -> DatabaseUnreachable:
    """Return the error for an unusable server, with the driver's message."""
    shown = shown_url(parse_url(url, needs_folder=False))
    return DatabaseUnreachable(
        f"the database {shown} cannot be used: {reason}",
        fix="check that its server runs and accepts this user, set database.url, or raise database.wait_seconds",
    )


def unreachable_reason(error: StoreUnavailable) -> str:
    """Return in one line why a database is not usable."""
    cause = error.__cause__
    return " ".join(str(getattr(cause, "orig", None) or cause or error).split())


def _unreachable_reason_now(url: str) -> str | None:
    """Return why the server does not answer; None if it does. Keep no connection open."""
    database = Database(parse_url(url))
    try:
        database.ask(lambda connection: connection.exec_driver_sql("SELECT 1"))
    except StoreUnavailable as error:
        return unreachable_reason(error)
    finally:
        database.close()
    return None


class DatabaseLock:
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
                f"process {_process_words(holder)} already serves {database}",
                fix="stop that process, use another state_dir, or use PostgreSQL, which several nodes can share",
            ) from None
        self._descriptor = descriptor


def _process_words(pid: str) -> str:
    """Return the process id with the command line, if available."""
    if not pid.isdecimal():
        return pid
    try:
        words = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
    except OSError:
        return pid
    line = " ".join(word.decode("utf-8", "backslashreplace") for word in words if word)
    return f"{pid} ({line[:120]!r})" if line else pid
