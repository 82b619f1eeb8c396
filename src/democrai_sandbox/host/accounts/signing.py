"""Check of a name and password, with throttling and audit of failures."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from democrai_sandbox.access.store.journal import SYSTEM, Entry, Ledger
from democrai_sandbox.access.values import AuditAction
from democrai_sandbox.errors import SignInRefused, SignInThrottled

from . import people, throttle
from .people import LONGEST_NAME

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from sqlalchemy import Connection

    from democrai_sandbox.access.store.transactions import Database

    from .passwords import Passwords
    from .throttle import Attempt


class Doorkeeper:
    """Password check that does not reveal which users exist or are disabled."""

    def __init__(self, database: Database, passwords: Passwords, clock: Callable[[], datetime]) -> None:
        self._database = database
        self._passwords = passwords
        self._clock = clock

    def compare(self, name: str, password: str, address: str) -> tuple[Attempt, str]:
        """Return the attempt, to be settled, and the password hash.

        Raise ``SignInThrottled`` before any comparison, or ``SignInRefused``.
        """
        who = read_name(name)
        tried = self._database.act(partial(throttle.begin, name=who, address=address, now=self._clock()))
        kept = self._database.ask(partial(people.kept_password, person_id=who))
        try:
            right = self._passwords.matches(password, kept)
            found = self._strengthened(who, password, kept) if right and kept is not None else None
        except SignInThrottled:
            self._database.act(partial(throttle.withdraw, attempt=tried))
            raise
        if found is None:
            self._tell(tried, known=kept is not None)
            raise SignInRefused
        return tried, found

    def settle(self, tried: Attempt) -> None:
        """Remove the count of an attempt that was not a sign-in."""
        self._database.act(partial(throttle.settle, attempt=tried, now=self._clock()))

    def _strengthened(self, who: str, password: str, kept: str) -> str | None:
        """Hash a password again with the current cost; None if it was changed meanwhile."""
        if self._passwords.cost.made(kept):
            return kept
        better = self._passwords.keep(password)
        if self._database.act(partial(people.strengthen, person_id=who, before=kept, kept=better)):
            return better
        # Changed meanwhile, or another sign-in has stored a new hash at the same time.
        present = self._database.ask(partial(people.kept_password, person_id=who))
        return present if self._passwords.matches(password, present) else None

    def _tell(self, tried: Attempt, *, known: bool) -> None:
        """Audit the first, second, fourth... failure with the count, so that an attacker cannot fill the audit log.

        Unknown names are omitted: they may be a password in the wrong field, and the audit log is permanent.
        """
        if tried.failures & (tried.failures - 1):
            return
        after = {"person": tried.name if known else "", "address": tried.address, "failures": tried.failures}
        entry = Entry(AuditAction.ACCOUNT_SIGN_IN_FAILED, SYSTEM, after=after)
        self._database.act(partial(_append, entry=entry, now=self._clock()))


def read_name(name: str) -> str:
    """Return a typed name in its stored form; an overlong one matches no user."""
    return name[: LONGEST_NAME * 4].strip().lower()


def _append(connection: Connection, entry: Entry, now: datetime) -> None:
    Ledger(connection).close([entry], now=now)
