"""Arguments that ``run`` and ``record`` share: the code, its manifest and its parameters."""

from __future__ import annotations

from .common import add_config, add_json
from .values import seconds as number_of_seconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from democrai_sandbox.cli.parsing import Parser

SURFACES = ("action", "command", "task", "tool")
"""Functions of a module that can be called by name."""


def add_common(parser: Parser, *, seconds: float | None = None) -> None:
    """Add the options of every verb."""
    usual = "no limit" if seconds is None else f"{seconds:g}"
    parser.add_argument(
        "--timeout",
        type=number_of_seconds,
        default=seconds,
        metavar="SECONDS",
        help=f"timeout (default: {usual})",
    )
    add_config(parser)
    add_json(parser)


def add_manifest(parser: Parser, otherwise: str) -> None:
    """Add ``--manifest``."""
    parser.add_argument(
        "--manifest",
        metavar="FILE",
        help=f"a manifest, or a file with only access and allowed_imports; {otherwise}",
    )


def add_environment(parser: Parser) -> None:
    """Add the options for packages and environment variables."""
    parser.add_argument(
        "--environment", metavar="FOLDER", help="virtual environment with its packages (default: that of this command)"
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="pass this variable, with its current or the given value; a few such as PATH are always passed",
    )


def add_script(parser: Parser) -> None:
    """Add the file and its arguments."""
    parser.add_argument("file", metavar="FILE", help="a file with Python code")
    parser.add_argument("arguments", nargs="...", metavar="ARGUMENT", help="arguments of the script")
    add_manifest(parser, "default: no access")
    add_environment(parser)


def add_call(parser: Parser, *, methods: bool) -> None:
    """Add the options for the called function of an extension."""
    parser.add_argument("folder", metavar="FOLDER", help="the folder of the extension, with its manifest.json")
    if methods:
        parser.add_argument(
            "--method", metavar="NAME", help="the method to call; without it, the extension is only imported"
        )
    else:
        which = parser.add_mutually_exclusive_group()
        which.add_argument("--render", action="store_true", help="render its page")
        for surface in SURFACES:
            which.add_argument(f"--{surface}", metavar="NAME", help=f"the {surface} to call")
    parser.add_argument(
        "--param",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter: JSON such as 3 or [1, 2], otherwise text",
    )
    parser.add_argument("--params", metavar="JSON", help="all parameters as a JSON object")
    add_environment(parser)
