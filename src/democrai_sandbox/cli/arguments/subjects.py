"""What ``run`` and ``record`` take: whose code it is, under which manifest, and with which parameters."""

from __future__ import annotations

from .common import add_config, add_json
from .values import seconds as number_of_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from democrai_sandbox.cli.parsing import Parser

SURFACES = ("action", "command", "task", "tool")
"""What of a module can be called by its name."""


def add_common(parser: Parser, *, seconds: float | None = None) -> None:
    """Add what every verb has."""
    usual = "no limit" if seconds is None else f"{seconds:g}"
    parser.add_argument(
        "--timeout",
        type=number_of_seconds,
        default=seconds,
        metavar="SECONDS",
        help=f"end it after so long; {usual} by default",
    )
    add_config(parser)
    add_json(parser)


def add_manifest(parser: Parser, otherwise: str) -> None:
    """Add ``--manifest``."""
    parser.add_argument(
        "--manifest",
        metavar="FILE",
        help=f"a manifest, or a file with nothing but access and allowed_imports; {otherwise}",
    )


def add_environment(parser: Parser) -> None:
    """Add what surrounds Python code: its packages and variables."""
    parser.add_argument(
        "--environment", metavar="FOLDER", help="a virtual environment with its packages; this program's own by default"
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="a variable that it gets, with the present value unless one is given; a few such as PATH it gets anyway",
    )


def add_script(parser: Parser) -> None:
    """Add the file and its arguments."""
    parser.add_argument("file", metavar="FILE", help="a file with Python code")
    parser.add_argument("arguments", nargs="...", metavar="ARGUMENT", help="what the script gets as its arguments")
    add_manifest(parser, "without one nothing is declared")
    add_environment(parser)


def add_call(parser: Parser, *, methods: bool) -> None:
    """Add what of an extension is called."""
    parser.add_argument("folder", metavar="FOLDER", help="the folder of the extension, with its manifest.json")
    if methods:
        parser.add_argument("--method", metavar="NAME", help="the method to call; without one it is only imported")
    else:
        which = parser.add_mutually_exclusive_group()
        which.add_argument("--render", action="store_true", help="have it render its page")
        for surface in SURFACES:
            which.add_argument(f"--{surface}", metavar="NAME", help=f"the {surface} to call")
    parser.add_argument(
        "--param",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter: JSON such as 3 or [1, 2], and a text if it is none",
    )
    parser.add_argument("--params", metavar="JSON", help="all parameters, as an object")
    add_environment(parser)
