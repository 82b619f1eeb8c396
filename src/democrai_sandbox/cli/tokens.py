"""``democrai-sandbox admin token``: manage API tokens."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING

from democrai_sandbox.errors import CommandMisused, CommandRefused

from .admin import actor, office
from .arguments.admin import USUAL_SCOPES
from .arguments.common import TOKEN_FILE
from .asking import confirm
from .exits import Exit
from .files import whole
from .output import visible

if TYPE_CHECKING:
    import argparse

    from democrai_sandbox.host.accounts import Accounts, Token

    from .output import Output

_MOST_DAYS = 3650


def run_create(options: argparse.Namespace, output: Output) -> int:
    """Create a token."""
    if not 0 <= options.days <= _MOST_DAYS:
        raise CommandMisused(
            f"--days must be a number from 0 to {_MOST_DAYS}", fix="remove it, or use 0 for a token that never expires"
        )
    lifetime = timedelta(days=options.days) if options.days else None
    with office(options) as (accounts, settings):
        owner = _owner(accounts, options.user)
        token, secret = accounts.create_token(
            owner, options.label, options.scope or USUAL_SCOPES, lifetime, actor=actor()
        )
        saved = ""
        if options.save:
            try:
                saved = _saved(secret, settings.state_dir)
            except BaseException:
                accounts.revoke_token(token.id, actor())  # the token was not delivered
                raise
    if output.is_json:
        kept = {"saved": saved} if saved else {"secret": secret}
        output.data("admin.token.create/1", {"token": _as_dict(token), **kept})
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
    with whole(file, fix=fix) as stream:
        stream.write(f"{secret}\n".encode("ascii"))
    return file


def run_list(options: argparse.Namespace, output: Output) -> int:
    """List tokens."""
    with office(options) as (accounts, _):
        people = [accounts.person(options.user)] if options.user else accounts.people()
        tokens = [token for person in people for token in accounts.tokens_of(person.id)]
    if output.is_json:
        output.data("admin.token.list/1", {"tokens": [_as_dict(token) for token in tokens]})
        return Exit.OK
    rows = (
        (each.id, each.person_id, each.label, _day(each.last_used), _until(each), " ".join(sorted(each.scopes)))
        for each in tokens
    )
    output.table(("ID", "USER", "LABEL", "USED", "UNTIL", "SCOPES"), rows)
    return Exit.OK


def run_revoke(options: argparse.Namespace, output: Output) -> int:
    """Revoke a token."""
    with office(options) as (accounts, _):
        found = [each for person in accounts.people() for each in accounts.tokens_of(person.id)]
        token = next((each for each in found if each.id == options.id), None)
        if token is None:
            raise CommandRefused("the token does not exist", fix="use an id from admin token list")
        confirm(f"revoke the token {visible(token.label)!r} of {token.person_id}?", yes=options.yes)
        accounts.revoke_token(token.id, actor())
    if output.is_json:
        output.data("admin.token.revoke/1", {"token": _as_dict(token)})
    else:
        output.line(visible(f"revoked the token {token.label!r} of {token.person_id}"))
    return Exit.OK


def _until(token: Token) -> str:
    if token.ended_at is not None:
        return "revoked"
    return _day(token.expires_at) if token.expires_at else "never"


def _day(time: object) -> str:
    return f"{time:%Y-%m-%d}" if time else "-"


def _as_dict(token: Token) -> dict[str, object]:
    times = {"created_at": token.created_at, "expires_at": token.expires_at, "last_used": token.last_used}
    return {
        "id": token.id,
        "user": token.person_id,
        "label": token.label,
        "scopes": sorted(token.scopes),
        **{name: time.isoformat() if time else None for name, time in times.items()},
        "revoked": token.ended_at is not None,
    }
