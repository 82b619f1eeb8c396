"""``democrai-sandbox admin``: users and API tokens, directly in the database.

It works without a node and beside one. An application that manages its own users does not use these accounts.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.errors import CommandMisused, CommandRefused

from .asking import confirm, is_answerable, secret
from .databases import opened
from .exits import Exit
from .output import Mood, visible
from .places import configuration

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from democrai_sandbox.host.accounts import Accounts, Person
    from democrai_sandbox.host.settings import HostSettings

    from .output import Output

_STATES = {"disabled": Mood.WARNING}


class Office(NamedTuple):
    """Accounts of a configuration."""

    accounts: Accounts
    settings: HostSettings


@contextmanager
def office(options: argparse.Namespace, *, create: bool = False) -> Iterator[Office]:
    """Open the accounts; ``create`` creates a missing database."""
    settings = configuration(options).settings
    with opened(settings.database, settings, create=create) as store:
        from democrai_sandbox.access.node import utc_now  # noqa: PLC0415 - takes its time
        from democrai_sandbox.host.accounts import Accounts  # noqa: PLC0415

        # Other nodes notice the change when they poll, after a second at most by default.
        accounts = Accounts(
            store.database,
            settings,
            on_session_end=lambda session: store.end_session(session, actor=actor(), now=utc_now()),
        )
        yield Office(accounts, settings)


def actor() -> str:
    """Return the user name for the audit log."""
    import pwd  # noqa: PLC0415 - seldom needed

    try:
        return f"cli:{pwd.getpwuid(os.getuid()).pw_name}"
    except KeyError:
        return f"cli:#{os.getuid()}"


def run_create(options: argparse.Namespace, output: Output) -> int:
    """Add a user."""
    from democrai_sandbox.host.accounts.people import check_name  # noqa: PLC0415 - takes its time

    name = check_name(options.name)  # before the user types a password
    password = _password(options, name)
    with office(options, create=True) as (accounts, settings):
        person = accounts.create_person(
            name, password, role=options.role or "", organization_id=options.organization, actor=actor()
        )
        decides = any(one.may_decide for one in accounts.people())
    _tell(output, "admin.create/1", person, f"added {person.id}", password if options.generate else "")
    if not decides:
        output.say("no user may decide yet: add one with --role super", Mood.WARNING)
    if not settings.console.enabled:
        output.say("console.enabled is off: users cannot sign in with a password, but programs can use tokens")
    return Exit.OK


def run_passwd(options: argparse.Namespace, output: Output) -> int:
    """Set a new password."""
    with office(options) as (accounts, _):
        person = accounts.person(options.name)
        password = _password(options, person.id)
        accounts.reset_password(person.id, password, actor=actor())
    told = f"{person.id} has a new password and is signed out everywhere"
    _tell(output, "admin.passwd/1", person, told, password if options.generate else "")
    return Exit.OK


def run_disable(options: argparse.Namespace, output: Output) -> int:
    """Disable a user."""
    with office(options) as (accounts, _):
        person = accounts.person(options.name)
        confirm(f"disable {person.id} and end all sessions of this user?", yes=options.yes)
        person = accounts.disable(person.id, actor=actor())
    _tell(output, "admin.disable/1", person, f"{person.id} is disabled")
    return Exit.OK


def run_enable(options: argparse.Namespace, output: Output) -> int:
    """Enable a disabled user."""
    with office(options) as (accounts, _):
        person = accounts.enable(options.name, actor=actor())
    _tell(output, "admin.enable/1", person, f"{person.id} can sign in again")
    return Exit.OK


def run_list(options: argparse.Namespace, output: Output) -> int:
    """List users."""
    with office(options) as (accounts, _):
        people = accounts.people()
    if output.is_json:
        output.data("admin.list/1", {"people": [_as_dict(person) for person in people]})
        return Exit.OK
    rows = (
        (each.id, each.role or each.access_level or "-", _state(each), f"{each.created_at:%Y-%m-%d}") for each in people
    )
    output.table(("NAME", "ROLE", "STATE", "SINCE"), rows, _STATES)
    return Exit.OK


def _state(person: Person) -> str:
    if person.disabled_at is not None:
        return "disabled"
    return "may decide" if person.may_decide else "may read"


def _tell(output: Output, schema: str, person: Person, text: str, password: str = "") -> None:
    if output.is_json:
        output.data(schema, {"person": _as_dict(person), **({"password": password} if password else {})})
    elif password:
        output.say(text)
        output.line(password)
    else:
        output.line(visible(text))


def _as_dict(person: Person) -> dict[str, object]:
    return {
        "name": person.id,
        "role": person.role,
        "access_level": person.access_level,
        "organization_id": person.organization_id,
        "may_decide": person.may_decide,
        "disabled": person.disabled_at is not None,
        "created_at": person.created_at.isoformat(),
    }


def _password(options: argparse.Namespace, name: str) -> str:
    """Return a valid password: generated, typed twice, or the first line of standard input."""
    from democrai_sandbox.host.accounts.passwords import check_password, random_password  # noqa: PLC0415 - takes long

    if options.generate:
        return random_password()
    password = secret(f"password for {name}: ")
    if not password:
        raise CommandMisused("no password was given", fix="type one, write it to standard input, or add --generate")
    check_password(password, name)
    if is_answerable() and secret("repeat the password: ") != password:
        raise CommandRefused("the passwords differ, and nothing was changed")
    return password
