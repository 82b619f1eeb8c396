"""Wait for a database server that has not started yet, for example at boot."""

from __future__ import annotations

import logging
from time import monotonic, sleep
from typing import TYPE_CHECKING

from democrai_sandbox.access.store.transactions import Database
from democrai_sandbox.access.store.urls import parse_url, shown_url
from democrai_sandbox.errors import DatabaseUnreachable, StoreUnavailable

from .places import database_file

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
    while (reason := _missing(settings.database)) is not None:
        left = deadline - monotonic()
        if left <= 0:
            raise unreachable(settings.database, reason)
        if reason != said or monotonic() - told_at >= _TOLD_EVERY:
            said, told_at = reason, monotonic()
            _log.warning("waiting for the database for another %.0f s: %s", left, reason)
        still_waiting()
        sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)
    if said:
        _log.info("the database answers")


def unreachable(url: str, reason: str) -> DatabaseUnreachable:
    """Return the error for an unusable server, with the driver's message."""
    shown = shown_url(parse_url(url, needs_folder=False))
    return DatabaseUnreachable(
        f"the database {shown} cannot be used: {reason}",
        fix="check that its server runs and accepts this user, set database.url, or raise database.wait_seconds",
    )


def reason_of(error: StoreUnavailable) -> str:
    """Return in one line why a database is not usable."""
    cause = error.__cause__
    return " ".join(str(getattr(cause, "orig", None) or cause or error).split())


def _missing(url: str) -> str | None:
    """Return why the server does not answer; None if it does. Keep no connection open."""
    database = Database(parse_url(url))
    try:
        database.ask(lambda connection: connection.exec_driver_sql("SELECT 1"))
    except StoreUnavailable as error:
        return reason_of(error)
    finally:
        database.close()
    return None
