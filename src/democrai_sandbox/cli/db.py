"""``democrai-sandbox db``: maintain the database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from democrai_sandbox.errors import CommandRefused

from .asking import confirm
from .databases import database_file, database_url, opened, shown
from .exits import Exit
from .output import Mood, visible

if TYPE_CHECKING:
    import argparse

    from democrai_sandbox.access.audit import AuditReport
    from democrai_sandbox.access.store.schema import Schema

    from .output import Output


def run_upgrade(options: argparse.Namespace, output: Output) -> int:
    """Upgrade the schema."""
    from democrai_sandbox.access.store.schema import HEAD, upgrade_schema  # noqa: PLC0415 - takes its time

    url = database_url(options)
    before = _schema(url)
    result = {"database": shown(url), "from": before.version, "to": HEAD, "changed": False}
    if HEAD in before.nodes:
        return _told(output, result, f"nothing to do: the schema is {before.version}")
    way = f"from {before.version or 'nothing'} to {HEAD}"
    if options.dry_run:
        return _told(output, result, f"would upgrade {visible(shown(url))} {way}")
    confirm(f"upgrade the database {visible(shown(url))} {way}?", yes=options.yes)
    output.progress("upgrading; this may take a while")
    if upgrade_schema(url) == HEAD:
        return _told(output, result, f"nothing to do: another process upgraded it {way}")
    return _told(output, {**result, "changed": True}, f"upgraded {visible(shown(url))} {way}")


def _schema(url: str) -> Schema:
    """Return the schema of a database, without changing it."""
    from democrai_sandbox.access.store.peeking import peek_schema  # noqa: PLC0415 - takes its time
    from democrai_sandbox.access.store.urls import parse_url  # noqa: PLC0415
    from democrai_sandbox.errors import InvalidInputError  # noqa: PLC0415

    try:
        parse_url(url, must_exist=True)
    except InvalidInputError as error:
        raise CommandRefused(
            "; ".join(each.message for each in error.problems),
            fix="start democrai-sandbox serve once: it creates the database",
        ) from None
    return peek_schema(url)


def _told(output: Output, result: dict[str, object], text: str) -> int:
    if output.is_json:
        output.data("db.upgrade/1", result)
    else:
        output.line(text)
    return Exit.OK


def run_check(options: argparse.Namespace, output: Output) -> int:
    """Check the connection and the schema."""
    from democrai_sandbox.access.store.schema import HEAD  # noqa: PLC0415 - takes its time

    url = database_url(options)
    found = _schema(url)
    fits = HEAD in found.nodes
    audit = _audited(url, output) if options.audit and fits else None
    is_well = fits and (audit is None or audit.ok)
    if output.is_json:
        output.data(
            "db.check/1",
            {
                "ok": is_well,
                "database": shown(url),
                "version": found.version,
                "needed": HEAD,
                "audit": None if audit is None else _audit(audit),
            },
        )
        return Exit.OK if is_well else Exit.FAILED
    output.line(f"{visible(shown(url))} answers")
    if fits:
        output.line(f"schema {found.version} is current", Mood.OK)
    else:
        output.line(f"schema {found.version or 'missing'}, but {HEAD} is required", Mood.BAD)
        output.say("run democrai-sandbox db upgrade, unless a newer version created it")
    if audit is not None and audit.ok:
        output.line(f"audit: {audit.count} records, the hash chain is valid", Mood.OK)
    elif audit is not None:
        output.line(f"audit: the hash chain is broken at record {audit.first_bad}: {visible(audit.what)}", Mood.BAD)
    return Exit.OK if is_well else Exit.FAILED


def _audited(url: str, output: Output) -> AuditReport:
    from democrai_sandbox.access.audit import verify_store  # noqa: PLC0415 - takes its time

    with opened(url) as store:
        output.progress("reading the audit")
        return verify_store(store)


def _audit(report: AuditReport) -> dict[str, object]:
    return {"ok": report.ok, "records": report.count, "first_bad": report.first_bad, "what": report.what}


def run_backup(options: argparse.Namespace, output: Output) -> int:
    """Copy a SQLite database to a file."""
    from democrai_sandbox.access.store.copying import copy_database  # noqa: PLC0415 - takes its time

    url = database_url(options)
    file = database_file(url)
    if not file:
        raise CommandRefused("db backup copies SQLite databases only", fix="use pg_dump for PostgreSQL")
    if not _schema(url).version:  # any version: an older database is copied before it is upgraded
        raise CommandRefused(f"the database {shown(url)} is not a database of democrai-sandbox", fix="name another one")
    output.progress("copying")
    size = copy_database(file, options.file)
    if output.is_json:
        output.data("db.backup/1", {"database": shown(url), "file": options.file, "bytes": size})
    else:
        output.line(f"{visible(options.file)}: {size} bytes")
        output.say("the copy does not contain the key file: back it up as well, in another place")
    return Exit.OK
