"""Shared base of the accounts: the database, the clock, and the end of a session."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from democrai_sandbox.host.keeping import inside

from .passwords import Cost, Passwords
from .remembered import NOTHING, Remembered
from .signing import Doorkeeper

if TYPE_CHECKING:
    from collections.abc import Callable

    from democrai_sandbox.access.store.transactions import Database
    from democrai_sandbox.host.settings import HostSettings

SECURE_COOKIE = "__Host-democrai"
"""Browsers accept this prefix over TLS only, for one host and all its paths, so no other host can set the cookie."""
PLAIN_COOKIE = "democrai_session"
"""For loopback without TLS."""


def now() -> datetime:
    """Return the current time, aware, in UTC."""
    return datetime.now(UTC)


def is_secure(settings: HostSettings) -> bool:
    """Return whether users connect over TLS."""
    return settings.server.public_url.startswith("https://")


class Desk:
    """Base class. Closed to guarded code, which cannot sign in users or create users and tokens."""

    _database: Database = inside("accounts")
    _door: Doorkeeper = inside("accounts")
    _passwords: Passwords = inside("accounts")
    _settings: HostSettings = inside("accounts")
    _remembered: Remembered = inside("accounts")

    def __init__(
        self,
        database: Database,
        settings: HostSettings,
        *,
        on_session_end: Callable[[str], object] | None = None,
        cost: Cost | None = None,
        clock: Callable[[], datetime] = now,
    ) -> None:
        """``on_session_end`` ends the approvals of a session or token; it is called before that ends."""
        self.cookie_name = SECURE_COOKIE if is_secure(settings) else PLAIN_COOKIE
        self._database = database
        self._settings = settings
        self._remembered = NOTHING
        self._on_session_end = on_session_end
        self._clock = clock
        self._passwords = Passwords(cost or Cost())
        self._door = Doorkeeper(database, self._passwords, clock)

    def _end_approvals(self, session_key: str) -> None:
        if self._on_session_end is not None:
            self._on_session_end(session_key)
