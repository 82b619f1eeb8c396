"""What ``democrai-sandbox run`` takes."""

from __future__ import annotations

from democrai_sandbox.cli.parsing import add_verbs

from .subjects import add_call, add_common, add_manifest, add_script

TYPE_CHECKING = False
if TYPE_CHECKING:
    from democrai_sandbox.cli.parsing import Parser

_CALL_SECONDS = 30.0


def add_to(parser: Parser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser(
        "script",
        help="run a file with Python code",
        description="Run a file with Python code in a process of its own, under a guard. Its streams are those of\n"
        "this command, and so is its exit status; a denial that it does not catch ends it with 1.\n"
        "With --json, how it went is the last line on standard error.",
        takes=_script,
    )
    verbs.add_parser(
        "module",
        help="import a module, and call something of it",
        description="Import a module in a process of its own, under its manifest, and call something of it. Prints\n"
        "what that returns as JSON. Its data folder is empty at first, and gone afterwards.",
        takes=_module,
    )
    verbs.add_parser(
        "program",
        help="run any program, held by the kernel",
        description="Run a program under Landlock and seccomp, worked out from the rules. What the kernel cannot keep\n"
        "of them is said on standard error. Its streams and its exit status are those of this command.\n"
        "With --json, how it went is the last line on standard error.",
        takes=_program,
    )


def _script(parser: Parser) -> None:
    add_script(parser)
    _add_kernel(parser)
    add_common(parser)
    parser.set_defaults(run="running:run_script")


def _module(parser: Parser) -> None:
    add_call(parser, methods=False)
    _add_kernel(parser)
    add_common(parser, seconds=_CALL_SECONDS)
    parser.set_defaults(run="running:run_module")


def _program(parser: Parser) -> None:
    parser.add_argument("argv", nargs="+", metavar="ARGV", help="the program and its arguments, after --")
    add_manifest(parser, "without one nothing is declared")
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="a variable that it gets, besides a few like PATH",
    )
    add_common(parser)
    parser.set_defaults(run="running:run_program")


def _add_kernel(parser: Parser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--kernel", action="store_true", default=None, help="refuse to run it without the kernel layer")
    which.add_argument(
        "--no-kernel",
        dest="kernel",
        action="store_false",
        help="hold it by the guard in its process alone",
    )
