"""Database of a command that works without a node: from the configuration or from ``--database``."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import CommandMisused, CommandRefused

from .connection import configuration, open_without_waiting

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from democrai_sandbox.access.store import SqlStore
    from democrai_sandbox.host.settings import HostSettings

_HIDDEN = "***"


def database_url(options: argparse.Namespace) -> str:
    """Return the URL of the database after checking its owner. It may contain a password."""
    from democrai_sandbox.access.store.database_location import is_secret  # noqa: PLC0415 - takes its time

    if options.database is None:
        url = configuration(options).settings.database
    else:
        url = options.database
        if _parsed(url).password == _HIDDEN:  # copied from an error, where passwords are hidden
            url = _parsed(url)._replace(password=None).render_as_string()
        parsed = _parsed(url)
        if parsed.password is not None or any(is_secret(name) for name in parsed.query):
            raise CommandMisused(
                "all users of this machine can read a password in a command line",
                fix="remove it, and set PGPASSWORD, use ~/.pgpass, or name a configuration with --config",
            )
    check_owner(url)
    return str(url)


def shown_database(url: str) -> str:
    """Return the URL without its password."""
    from democrai_sandbox.access.store.database_location import shown_url  # noqa: PLC0415 - takes its time

    return shown_url(_parsed(url))


def database_file(url: str) -> str:
    """Return the file of a SQLite database, or an empty text for a server."""
    parsed = _parsed(url)
    return str(parsed.database) if parsed.get_backend_name() == "sqlite" else ""


def check_owner(url: str) -> None:
    """Refuse a file of another user, whose node could not use the files that SQLite creates beside it.

    Also refuse a file that is not a database: opening it would change its permissions.
    """
    from democrai_sandbox.access.store.database_location import is_database  # noqa: PLC0415 - takes its time

    file = database_file(url)
    if not file:
        return
    try:
        with open(file, "rb", opener=open_without_waiting) as stream:
            owner, link = os.fstat(stream.fileno()).st_uid, os.lstat(file).st_uid
            is_one = is_database(stream)
    except FileNotFoundError:
        return
    except OSError as error:
        raise CommandRefused(
            f"the database {file} cannot be read: {error.strerror}", fix="run this as the owner of the file"
        ) from None
    if link not in {0, owner}:  # the owner of the link chooses the file that is opened
        raise CommandRefused(f"the link {file} belongs to {_user_name(link)}", fix="name the target of the link")
    if owner != os.geteuid():
        name = _user_name(owner)
        raise CommandRefused(f"the database {file} belongs to {name}", fix=f"run this as that user: sudo -u {name} ...")
    if not is_one:
        raise CommandRefused(f"{file} is not a SQLite database", fix="name another file")


@contextmanager
def open_database(url: str, settings: HostSettings | None = None, *, create: bool = False) -> Iterator[SqlStore]:
    """Open the store, also while a node uses it. ``create`` creates a missing database and its folders."""
    from democrai_sandbox.access.store import open_store  # noqa: PLC0415 - takes its time

    check_owner(url)
    file = database_file(url)
    if create and settings is not None:
        from democrai_sandbox.host.directories import prepare_directories  # noqa: PLC0415 - takes its time

        prepare_directories(settings)
    elif file and not os.path.exists(file):  # noqa: PTH110 - a text
        raise CommandRefused(
            f"the database {file} does not exist yet",
            fix="start democrai-sandbox serve once, or create the first administrator: democrai-sandbox admin create",
        )
    store = open_store(url, create=create)
    try:
        yield store
    finally:
        store.close()


def _parsed(url: str) -> Any:
    from democrai_sandbox.access.store.database_location import parse_url  # noqa: PLC0415 - takes its time
    from democrai_sandbox.errors import InvalidInputError  # noqa: PLC0415

    try:
        return parse_url(url, needs_folder=False)
    except InvalidInputError as error:
        raise CommandMisused("; ".join(each.message for each in error.problems), fix="see --help") from None


def _user_name(uid: int) -> str:
    import pwd  # noqa: PLC0415 - seldom needed

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"#{uid}"
