"""Arguments of ``democrai-sandbox db``."""

from __future__ import annotations

from democrai_sandbox.cli.parsing import add_verbs

from .common import add_database, add_yes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from democrai_sandbox.cli.parsing import Parser


def add_to(parser: Parser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser(
        "upgrade",
        help="upgrade the schema to this version",
        description="Upgrade the database schema to this version, in one transaction. Make a backup first.",
        takes=_upgrade,
    )
    verbs.add_parser(
        "check",
        help="check the connection and the schema",
        description="Check that the database answers and that this version supports its schema.",
        takes=_check,
    )
    verbs.add_parser(
        "backup",
        help="copy a SQLite database while it is in use",
        description="Copy a SQLite database to a file while nodes run. The copy does not contain the keys.",
        takes=_backup,
    )
    verbs.add_parser(
        "rotate-key",
        help="replace the encryption key",
        description="Replace the key that encrypts resume contexts and model keys, and re-encrypt the stored data.",
        takes=_rotate_key,
    )


def _upgrade(parser: Parser) -> None:
    parser.add_argument(
        "--dry-run", action="store_true", help="show the current and the new schema, and change nothing"
    )
    add_yes(parser)
    add_database(parser)
    parser.set_defaults(run="db:run_upgrade")


def _check(parser: Parser) -> None:
    parser.add_argument(
        "--audit", action="store_true", help="also verify the hash chain of the audit log, which reads all records"
    )
    add_database(parser)
    parser.set_defaults(run="db:run_check")


def _backup(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="the copy; must not exist")
    add_database(parser)
    parser.set_defaults(run="db:run_backup")


def _rotate_key(parser: Parser) -> None:
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--introduce", action="store_true", help="only add a new key, without using it yet")
    how.add_argument("--use", metavar="ID", help="encrypt with this key of the key file instead of a new one")
    how.add_argument("--retire", action="store_true", help="remove keys that no longer encrypt anything")
    parser.add_argument("--key-file", metavar="FILE", help="key file (default: from the configuration)")
    parser.add_argument("--dry-run", action="store_true", help="show what would be done, and change nothing")
    add_yes(parser)
    add_database(parser)
    parser.set_defaults(run="rotating:run_rotate")
