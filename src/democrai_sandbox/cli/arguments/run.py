"""Arguments of ``democrai-sandbox run``."""

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
        description="Run a file with Python code in a separate process, under a guard. It uses the streams of\n"
        "this command, and its exit status is returned; an uncaught denial exits with 1.\n"
        "With --json, the last line on standard error is the result.",
        takes=_script,
    )
    verbs.add_parser(
        "module",
        help="import a module and call one of its functions",
        description="Import a module in a separate process, under its manifest, and call one of its functions. Prints\n"
        "the result as JSON. The module gets a temporary data folder.",
        takes=_module,
    )
    verbs.add_parser(
        "program",
        help="run any program under the kernel layer",
        description="Run a program under Landlock and seccomp, derived from the rules. Rules that the kernel cannot\n"
        "enforce are listed on standard error. The program uses the standard streams of this command, and\n"
        "its exit status is returned. With --json, the last line on standard error is the result.",
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
    add_manifest(parser, "default: no access")
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="a variable for the program, in addition to a few such as PATH",
    )
    add_common(parser)
    parser.set_defaults(run="running:run_program")


def _add_kernel(parser: Parser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--kernel", action="store_true", default=None, help="fail if the kernel layer is not available")
    which.add_argument(
        "--no-kernel",
        dest="kernel",
        action="store_false",
        help="use only the guard in the process",
    )
