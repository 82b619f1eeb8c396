"""``democrai-sandbox admin``: users and API tokens, directly in the database.

It works without a node and beside one. An application that manages its own users does not use these accounts.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.cli.arguments.host import USUAL_SCOPES
from democrai_sandbox.cli.arguments.options import TOKEN_FILE
from democrai_sandbox.errors import CommandMisused, CommandRefused

from .confirmation import confirm, is_answerable, secret
from .connection import configuration
from .files import write_whole
from .open_database import open_database
from .output import Exit, Mood, visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from democrai_sandbox.host.accounts import Accounts, Person, Token
    from democrai_sandbox.host.settings import HostSettings

    from .output import CommandOutput

_STATES = {"disabled": Mood.WARNING}


class OpenAccounts(NamedTuple):
    """Accounts of a configuration."""

    accounts: Accounts
    settings: HostSettings


@contextmanager
def open_accounts(options: argparse.Namespace, *, create: bool = False) -> Iterator[OpenAccounts]:
    """Open the accounts; ``create`` creates a missing database."""
    settings = configuration(options).settings
    with open_database(settings.database, settings, create=create) as store:
        from democrai_sandbox.access.node import utc_now  # noqa: PLC0415 - takes its time
        from democrai_sandbox.host.accounts import Accounts  # noqa: PLC0415

        # Other nodes notice the change when they poll, after a second at most by default.
        accounts = Accounts(
            store.database,
            settings,
            on_session_end=lambda session: store.end_session(session, actor=audit_actor(), now=utc_now()),
        )
        yield OpenAccounts(accounts, settings)


def audit_actor() -> str:
    """Return the user name for the audit log."""
    import pwd  # noqa: PLC0415 - seldom needed

    try:
        return f"cli:{pwd.getpwuid(os.getuid()).pw_name}"
    except KeyError:
        return f"cli:#{os.getuid()}"


def run_create(options: argparse.Namespace, output: CommandOutput) -> int:
    """Add a user."""
    from democrai_sandbox.host.accounts.store import check_name  # noqa: PLC0415 - takes its time

    name = check_name(options.name)  # before the user types a password
    password = _password(options, name)
    with open_accounts(options, create=True) as (accounts, settings):
        person = accounts.create_person(
            name, password, role=options.role or "", organization_id=options.organization, actor=audit_actor()
        )
        decides = any(one.may_decide for one in accounts.people())
    _report_user(output, "admin.create/1", person, f"added {person.id}", password if options.generate else "")
    if not decides:
        output.say("no user may decide yet: add one with --role super", Mood.WARNING)
    if not settings.console.enabled:
        output.say("console.enabled is off: users cannot sign in with a password, but programs can use tokens")
    return Exit.OK


def run_passwd(options: argparse.Namespace, output: CommandOutput) -> int:
    """Set a new password."""
    with open_accounts(options) as (accounts, _):
        person = accounts.person(options.name)
        password = _password(options, person.id)
        accounts.reset_password(person.id, password, actor=audit_actor())
    told = f"{person.id} has a new password and is signed out everywhere"
    _report_user(output, "admin.passwd/1", person, told, password if options.generate else "")
    return Exit.OK


def run_disable(options: argparse.Namespace, output: CommandOutput) -> int:
    """Disable a user."""
    with open_accounts(options) as (accounts, _):
        person = accounts.person(options.name)
        confirm(f"disable {person.id} and end all sessions of this user?", yes=options.yes)
        person = accounts.disable(person.id, actor=audit_actor())
    _report_user(output, "admin.disable/1", person, f"{person.id} is disabled")
    return Exit.OK


def run_enable(options: argparse.Namespace, output: CommandOutput) -> int:
    """Enable a disabled user."""
    with open_accounts(options) as (accounts, _):
        person = accounts.enable(options.name, actor=audit_actor())
    _report_user(output, "admin.enable/1", person, f"{person.id} can sign in again")
    return Exit.OK


def run_list(options: argparse.Namespace, output: CommandOutput) -> int:
    """List users."""
    with open_accounts(options) as (accounts, _):
        people = accounts.people()
    if output.is_json:
        output.data("admin.list/1", {"people": [_user_dict(person) for person in people]})
        return Exit.OK
    rows = (
        (each.id, each.role or each.access_level or "-", _user_state(each), f"{each.created_at:%Y-%m-%d}")
        for each in people
    )
    output.table(("NAME", "ROLE", "STATE", "SINCE"), rows, _STATES)
    return Exit.OK


def _user_state(person: Person) -> str:
    if person.disabled_at is not None:
        return "disabled"
    return "may decide" if person.may_decide else "may read"


def _report_user(output: CommandOutput, schema: str, person: Person, text: str, password: str = "") -> None:
    if output.is_json:
        output.data(schema, {"person": _user_dict(person), **({"password": password} if password else {})})
    elif password:
        output.say(text)
        output.line(password)
    else:
        output.line(visible(text))


def _user_dict(person: Person) -> dict[str, object]:
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


_MOST_DAYS = 3650


def run_create_token(options: argparse.Namespace, output: CommandOutput) -> int:
    """Create a token."""
    if not 0 <= options.days <= _MOST_DAYS:
        raise CommandMisused(
            f"--days must be a number from 0 to {_MOST_DAYS}", fix="remove it, or use 0 for a token that never expires"
        )
    lifetime = timedelta(days=options.days) if options.days else None
    with open_accounts(options) as (accounts, settings):
        owner = _owner(accounts, options.user)
        token, secret = accounts.create_token(
            owner, options.label, options.scope or USUAL_SCOPES, lifetime, actor=audit_actor()
        )
        saved = ""
        if options.save:
            try:
                saved = _saved(secret, settings.state_dir)
            except BaseException:
                accounts.revoke_token(token.id, audit_actor())  # the token was not delivered
                raise
    if output.is_json:
        kept = {"saved": saved} if saved else {"secret": secret}
        output.data("admin.token.create/1", {"token": _token_dict(token), **kept})
    elif saved:
        output.line(visible(f"the token for {owner} is in {saved}"))
    else:
        output.say(f"token for {owner}, shown only once:")
        output.line(secret)
    return Exit.OK


def _owner(accounts: Accounts, name: str | None) -> str:
    """Return the owner of a token: the named user, or the only user who may decide."""
    if name is not None:
        return accounts.person(name).id
    able = [person.id for person in accounts.people() if person.may_decide]
    if len(able) == 1:
        return able[0]
    if not able:
        raise CommandRefused("no user may decide yet", fix="democrai-sandbox admin create NAME --role super")
    raise CommandMisused("several users may decide", fix=f"add --user with one of {', '.join(able)}")


def _saved(secret: str, folder: str) -> str:
    """Write the token to the default file, readable by its owner only."""
    file, fix = f"{folder}/{TOKEN_FILE}", "check the owner of the folder"
    try:
        os.makedirs(folder, 0o700, exist_ok=True)  # noqa: PTH103 - a text
        is_ours = os.stat(folder).st_uid == os.geteuid()  # noqa: PTH116 - the same
    except OSError as error:
        raise CommandRefused(f"{visible(file)} cannot be written: {error.strerror}", fix=fix) from None
    if not is_ours:
        raise CommandRefused(f"the state folder {folder} belongs to another user", fix="run this as its owner")
    with write_whole(file, fix=fix) as stream:
        stream.write(f"{secret}\n".encode("ascii"))
    return file


def run_list_tokens(options: argparse.Namespace, output: CommandOutput) -> int:
    """List tokens."""
    with open_accounts(options) as (accounts, _):
        people = [accounts.person(options.user)] if options.user else accounts.people()
        tokens = [token for person in people for token in accounts.tokens_of(person.id)]
    if output.is_json:
        output.data("admin.token.list/1", {"tokens": [_token_dict(token) for token in tokens]})
        return Exit.OK
    rows = (
        (each.id, each.person_id, each.label, _day(each.last_used), _until(each), " ".join(sorted(each.scopes)))
        for each in tokens
    )
    output.table(("ID", "USER", "LABEL", "USED", "UNTIL", "SCOPES"), rows)
    return Exit.OK


def run_revoke_token(options: argparse.Namespace, output: CommandOutput) -> int:
    """Revoke a token."""
    with open_accounts(options) as (accounts, _):
        found = [each for person in accounts.people() for each in accounts.tokens_of(person.id)]
        token = next((each for each in found if each.id == options.id), None)
        if token is None:
            raise CommandRefused("the token does not exist", fix="use an id from admin token list")
        confirm(f"revoke the token {visible(token.label)!r} of {token.person_id}?", yes=options.yes)
        accounts.revoke_token(token.id, audit_actor())
    if output.is_json:
        output.data("admin.token.revoke/1", {"token": _token_dict(token)})
    else:
        output.line(visible(f"revoked the token {token.label!r} of {token.person_id}"))
    return Exit.OK


def _until(token: Token) -> str:
    if token.ended_at is not None:
        return "revoked"
    return _day(token.expires_at) if token.expires_at else "never"


def _day(time: object) -> str:
    return f"{time:%Y-%m-%d}" if time else "-"


def _token_dict(token: Token) -> dict[str, object]:
    times = {"created_at": token.created_at, "expires_at": token.expires_at, "last_used": token.last_used}
    return {
        "id": token.id,
        "user": token.person_id,
        "label": token.label,
        "scopes": sorted(token.scopes),
        **{name: time.isoformat() if time else None for name, time in times.items()},
        "revoked": token.ended_at is not None,
    }
