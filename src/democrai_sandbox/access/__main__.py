"""Looking after the database by hand: ``python -m democrai_sandbox.access upgrade|verify|export URL``."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from democrai_sandbox.errors import SandboxError, StoreUnavailable

from .audit import export, verify_store
from .store import open_store
from .store.schema import HEAD, upgrade_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

_HELP = """\
upgrade  bring the database to the schema that this version needs, in one transaction
verify   check the audit's chain of hashes; ends with 1 when it is broken
export   write the audit to standard output, one JSON object per line

A password need not stand in the URL: PGPASSWORD and ~/.pgpass are read as by every PostgreSQL program."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m democrai_sandbox.access",
        description="Look after the database of the access-policy service.",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=("upgrade", "verify", "export"))
    parser.add_argument("url", help="sqlite:////path/to/file or postgresql://user@host/name")
    given = parser.parse_args(arguments)
    try:
        return {"upgrade": _upgrade, "verify": _verify, "export": _export}[given.command](given.url)
    except StoreUnavailable as error:
        return _fail(f"the database cannot be reached: {error.__cause__ or error}")
    except SandboxError as error:
        return _fail(error.diagnostics())


def _upgrade(url: str) -> int:
    before = upgrade_schema(url)
    return _say("nothing to do" if before == HEAD else f"upgraded from {before or 'nothing'} to {HEAD}")


def _verify(url: str) -> int:
    store = open_store(url, create=False)
    try:
        report = verify_store(store)
    finally:
        store.close()
    if report.ok:
        return _say(f"{report.count} records, the chain is whole")
    return _fail(f"the chain breaks at record {report.first_bad}: {report.what}")


def _export(url: str) -> int:
    store = open_store(url, create=False)
    try:
        export(store.audit_rows(), sys.stdout)
    finally:
        store.close()
    return 0


def _say(message: str) -> int:
    sys.stdout.write(message + "\n")
    return 0


def _fail(message: str) -> int:
    sys.stderr.write(message + "\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
