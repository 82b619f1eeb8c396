"""Options that many commands have: which configuration, node and database is meant, and how it is answered."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from democrai_sandbox.cli.parsing import Parser

URL_VARIABLE = "DEMOCRAI_URL"
TOKEN_VARIABLE = "DEMOCRAI_TOKEN"  # noqa: S105 - the name of it
TOKEN_FILE = "cli.token"  # noqa: S105 - the name of it
"""Below the state folder; ``admin token create --save`` writes it."""


def add_config(parser: Parser) -> None:
    """Add ``--config``."""
    parser.add_argument("--config", metavar="FILE", help="a YAML file; DEMOCRAI_CONFIG_FILE names one too")


def add_json(parser: Parser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="data for programs instead of text")


def add_yes(parser: Parser) -> None:
    """Add ``--yes``."""
    parser.add_argument("--yes", action="store_true", help="do it without asking; needed where there is no terminal")


def add_node(parser: Parser) -> None:
    """Add what tells which node is asked, and by whom; and ``--json``."""
    add_config(parser)
    parser.add_argument(
        "--url", metavar="URL", help=f"the node; {URL_VARIABLE} names it too, else the configuration does"
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help=f"a file with a token; else {TOKEN_VARIABLE} holds one, or {TOKEN_FILE} in the state folder",
    )
    add_json(parser)


def add_database(parser: Parser) -> None:
    """Add what tells which database is meant; and ``--json``."""
    add_config(parser)
    parser.add_argument(
        "--database",
        metavar="URL",
        help="this database instead: sqlite:////path/to/file or postgresql://user@host/name, without a password",
    )
    add_json(parser)
