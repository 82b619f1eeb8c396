"""What ``democrai-sandbox db`` takes."""

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
        help="bring it to the schema that this version needs",
        description="Bring the database to the schema that this version needs, in one transaction; after a backup.",
        takes=_upgrade,
    )
    verbs.add_parser(
        "check",
        help="see that it answers and has the schema that is needed",
        description="See that the database answers and that its schema is one that this version works with.",
        takes=_check,
    )
    verbs.add_parser(
        "backup",
        help="copy a SQLite database to a file, while it is in use",
        description="Copy a SQLite database to a file, whole or not at all; nodes may go on. The keys are not in it.",
        takes=_backup,
    )
    verbs.add_parser(
        "rotate-key",
        help="exchange the key that encrypts what is stored",
        description="Exchange the key that encrypts what requests go on with and keys of models, and encrypt what is "
        "stored with it.",
        takes=_rotate_key,
    )


def _upgrade(parser: Parser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="say from which schema to which, and change nothing")
    add_yes(parser)
    add_database(parser)
    parser.set_defaults(run="db:run_upgrade")


def _check(parser: Parser) -> None:
    parser.add_argument("--audit", action="store_true", help="check the audit's chain of hashes too: reads all of it")
    add_database(parser)
    parser.set_defaults(run="db:run_check")


def _backup(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="where the copy goes; must not be there yet")
    add_database(parser)
    parser.set_defaults(run="db:run_backup")


def _rotate_key(parser: Parser) -> None:
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--introduce", action="store_true", help="only add a key, which encrypts nothing yet")
    how.add_argument("--use", metavar="ID", help="encrypt with this key of the file, and not with a new one")
    how.add_argument("--retire", action="store_true", help="remove the keys with which nothing is encrypted any more")
    parser.add_argument("--key-file", metavar="FILE", help="the keys; else the configuration names the file")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and change nothing")
    add_yes(parser)
    add_database(parser)
    parser.set_defaults(run="rotating:run_rotate")
