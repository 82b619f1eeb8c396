"""``democrai-sandbox db``: looking after the database, and after the keys of what is encrypted in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from democrai_sandbox.errors import CommandRefused

from .asking import add_yes, confirm
from .databases import add_database, database_file, database_url, opened, shown
from .exits import Exit
from .output import Mood, visible
from .parsing import add_verbs
from .places import add_json
from .rotating import add_rotation

if TYPE_CHECKING:
    import argparse

    from democrai_sandbox.access.audit import AuditReport
    from democrai_sandbox.access.store.schema import Schema

    from .output import Output


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    upgrade = verbs.add_parser(
        "upgrade",
        help="bring it to the schema that this version needs",
        description="Bring the database to the schema that this version needs, in one transaction; after a backup.",
    )
    upgrade.add_argument("--dry-run", action="store_true", help="say from which schema to which, and change nothing")
    add_yes(upgrade)
    upgrade.set_defaults(run=_upgrade)
    check = verbs.add_parser(
        "check",
        help="see that it answers and has the schema that is needed",
        description="See that the database answers and that its schema is one that this version works with.",
    )
    check.add_argument("--audit", action="store_true", help="check the audit's chain of hashes too: reads all of it")
    check.set_defaults(run=_check)
    backup = verbs.add_parser(
        "backup",
        help="copy a SQLite database to a file, while it is in use",
        description="Copy a SQLite database to a file, whole or not at all; nodes may go on. The keys are not in it.",
    )
    backup.add_argument("file", metavar="FILE", help="where the copy goes; must not be there yet")
    backup.set_defaults(run=_backup)
    rotate = verbs.add_parser(
        "rotate-key",
        help="exchange the key that encrypts what requests go on with",
        description="Exchange the key that encrypts what requests go on with, and encrypt what is stored with it.",
    )
    add_rotation(rotate)
    for verb in (upgrade, check, backup, rotate):
        add_database(verb)
        add_json(verb)


def _upgrade(options: argparse.Namespace, output: Output) -> int:
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
        return _told(output, result, f"nothing to do: somebody else upgraded it {way} meanwhile")
    return _told(output, {**result, "changed": True}, f"upgraded {visible(shown(url))} {way}")


def _schema(url: str) -> Schema:
    """Return the schema that a database has, which may be any. Nothing is changed."""
    from democrai_sandbox.access.store.peeking import peek_schema  # noqa: PLC0415 - takes its time
    from democrai_sandbox.access.store.urls import parse_url  # noqa: PLC0415
    from democrai_sandbox.errors import InvalidInputError  # noqa: PLC0415

    try:
        parse_url(url, must_exist=True)
    except InvalidInputError as error:
        raise CommandRefused(
            "; ".join(each.message for each in error.problems), fix="start democrai-sandbox serve once: it makes one"
        ) from None
    return peek_schema(url)


def _told(output: Output, result: dict[str, object], text: str) -> int:
    if output.is_json:
        output.data("db.upgrade/1", result)
    else:
        output.line(text)
    return Exit.OK


def _check(options: argparse.Namespace, output: Output) -> int:
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
        output.line(f"schema {found.version}, as is needed", Mood.OK)
    else:
        output.line(f"schema {found.version or 'of nothing'}, and {HEAD} is needed", Mood.BAD)
        output.say("democrai-sandbox db upgrade brings it there, unless a newer version made it")
    if audit is not None and audit.ok:
        output.line(f"audit: {audit.count} records, the chain is whole", Mood.OK)
    elif audit is not None:
        output.line(f"audit: the chain breaks at record {audit.first_bad}: {visible(audit.what)}", Mood.BAD)
    return Exit.OK if is_well else Exit.FAILED


def _audited(url: str, output: Output) -> AuditReport:
    from democrai_sandbox.access.audit import verify_store  # noqa: PLC0415 - takes its time

    with opened(url) as store:
        output.progress("reading the audit")
        return verify_store(store)


def _audit(report: AuditReport) -> dict[str, object]:
    return {"ok": report.ok, "records": report.count, "first_bad": report.first_bad, "what": report.what}


def _backup(options: argparse.Namespace, output: Output) -> int:
    from democrai_sandbox.access.store.copying import copy_database  # noqa: PLC0415 - takes its time

    url = database_url(options)
    file = database_file(url)
    if not file:
        raise CommandRefused("this copies a SQLite database", fix="use pg_dump for PostgreSQL")
    if not _schema(url).version:  # any that there is: an older one is copied before it is upgraded
        raise CommandRefused(f"the database {shown(url)} has nothing of ours in it", fix="name another one")
    output.progress("copying")
    size = copy_database(file, options.file)
    if output.is_json:
        output.data("db.backup/1", {"database": shown(url), "file": options.file, "bytes": size})
    else:
        output.line(f"{visible(options.file)}: {size} bytes")
        output.say("the key file is not in it: keep a copy of that as well, apart from this one")
    return Exit.OK
