"""User management: add, change and disable users."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from democrai_sandbox.access.identity import SUPER
from democrai_sandbox.access.store.journal import SYSTEM

from . import people, sessions
from .entrance import Entrance
from .passwords import check_password, random_password
from .values import Credentials, Person

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from sqlalchemy import Connection

FIRST = "admin"


class Roster(Entrance):
    """Users who may sign in. The caller must check the permission of ``actor``."""

    def first_administrator(self, tell: Callable[[Credentials], None] | None = None) -> Credentials | None:
        """Add an administrator if no user exists; the returned password is not stored, and shown once.

        With ``tell``, add no user whose password could not be shown: its exception propagates.
        """
        if self._database.ask(people.is_anybody):
            return None
        found = Credentials(FIRST, random_password())
        person = self._new_person(found.name, SUPER, "", "")
        kept = self._passwords.keep(found.password)

        def add(connection: Connection) -> bool:
            added = people.add(connection, person, kept, actor=SYSTEM, only_first=True) is not None
            if added and tell is not None:
                tell(found)
            return added

        return found if self._database.act(add) else None

    def create_person(
        self,
        name: str,
        password: str,
        *,
        role: str = "",
        access_level: str = "",
        organization_id: str = "",
        actor: str,
    ) -> Person:
        """Add a user; raise ``InvalidInputError``, or ``AccountConflict`` for an existing name."""
        person = self._new_person(name, role, access_level, organization_id)
        kept = self._passwords.keep(check_password(password, name))
        self._database.act(partial(people.add, person=person, kept=kept, actor=actor))
        return person

    def people(self) -> tuple[Person, ...]:
        """Return all users by name."""
        return self._database.ask(people.listed)

    def person(self, user_id: str) -> Person:
        """Return a user; raise ``AccountUnknown``."""
        return self._database.ask(partial(people.find, person_id=user_id))

    def change_password(self, session_id: str, current: str, password: str) -> None:
        """Change the caller's password after checking the current one, and end all other sessions."""
        session = self._session(session_id)
        who = session.person_id
        check_password(password, who)
        self._compare_again(session, current)
        self._set_password(who, password, actor=who)
        self._database.act(partial(sessions.confirm, session_id=session_id, now=self._clock()))
        self.end_all(who, session_id)

    def reset_password(self, user_id: str, password: str = "", *, actor: str) -> str:
        """Set another password for a user, random by default, and end all their sessions; return it."""
        self.person(user_id)
        chosen = check_password(password, user_id) if password else random_password()
        self._set_password(user_id, chosen, actor=actor)
        self.end_all(user_id, actor=actor)
        return chosen

    def disable(self, user_id: str, *, actor: str) -> Person:
        """Disable a user; raise ``AccountConflict`` for the last administrator. Their tokens stop working meanwhile."""
        found = self._change(user_id, actor, disabled_at=self._clock())
        self.end_all(user_id, actor=actor)
        return found

    def enable(self, user_id: str, *, actor: str) -> Person:
        """Enable a user, who must sign in again."""
        return self._change(user_id, actor, disabled_at=None)

    def set_role(
        self, user_id: str, *, role: str = "", access_level: str = "", organization_id: str = "", actor: str
    ) -> Person:
        """Change a user's roles from the next HTTP request on; raise ``AccountConflict`` for the last administrator."""
        return self._change(
            user_id,
            actor,
            role=people.check_role(role, "/role"),
            access_level=people.check_role(access_level, "/access_level"),
            organization_id=people.check_organization(organization_id),
        )

    def _new_person(self, name: str, role: str, access_level: str, organization_id: str) -> Person:
        now = self._clock()
        return Person(
            people.check_name(name),
            people.check_role(role, "/role"),
            people.check_role(access_level, "/access_level"),
            people.check_organization(organization_id),
            created_at=now,
            password_at=now,
            disabled_at=None,
        )

    def _set_password(self, user_id: str, password: str, *, actor: str) -> None:
        kept = self._passwords.keep(password)
        self._database.act(partial(people.set_password, person_id=user_id, kept=kept, actor=actor, now=self._clock()))

    def _change(self, user_id: str, actor: str, **values: str | datetime | None) -> Person:
        return self._database.act(
            partial(people.change, person_id=user_id, values=values, actor=actor, now=self._clock())
        )
