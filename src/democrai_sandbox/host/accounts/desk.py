"""What the parts of the accounts share: the database, the time, and what ends with a session."""

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
"""A browser takes it over TLS alone, for one host and all of its paths: no neighbour can put another in its place."""
PLAIN_COOKIE = "democrai_session"
"""On loopback, where there is no TLS."""


def now() -> datetime:
    """Return the time, aware, in UTC."""
    return datetime.now(UTC)


def is_secure(settings: HostSettings) -> bool:
    """Tell whether people come over TLS."""
    return settings.server.public_url.startswith("https://")


class Desk:
    """The base of all parts. Closed to guarded code: it signs nobody in, and makes neither people nor tokens."""

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
        """``on_session_end`` ends what was approved for a session or a token; it is called before that ends itself."""
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
