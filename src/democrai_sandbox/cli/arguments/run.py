"""Arguments of the commands that run code: ``run`` and ``record``."""

from __future__ import annotations

from argparse import BooleanOptionalAction

from democrai_sandbox.cli.parser import add_verbs

from .options import add_call, add_json, add_manifest, add_run_options, add_script, add_yes

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from democrai_sandbox.cli.parser import CommandParser


_CALL_SECONDS = 30.0


def run_arguments(parser: CommandParser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser(
        "script",
        help="run a file with Python code",
        description="Run a file with Python code in a separate process, under a guard. It uses the streams of\n"
        "this command, and its exit status is returned; an uncaught denial exits with 1.\n"
        "With --json, the last line on standard error is the result.",
        takes=_run_script,
    )
    verbs.add_parser(
        "module",
        help="import a module and call one of its functions",
        description="Import a module in a separate process, under its manifest, and call one of its functions. Prints\n"
        "the result as JSON. The module gets a temporary data folder.",
        takes=_run_module,
    )
    verbs.add_parser(
        "program",
        help="run any program under the kernel layer",
        description="Run a program under Landlock and seccomp, derived from the rules. Rules that the kernel cannot\n"
        "enforce are listed on standard error. The program uses the standard streams of this command, and\n"
        "its exit status is returned. With --json, the last line on standard error is the result.",
        takes=_run_program,
    )


def _run_script(parser: CommandParser) -> None:
    add_script(parser)
    _add_kernel(parser)
    add_run_options(parser)
    parser.set_defaults(run="run:run_script")


def _run_module(parser: CommandParser) -> None:
    add_call(parser, methods=False)
    _add_kernel(parser)
    add_run_options(parser, seconds=_CALL_SECONDS)
    parser.set_defaults(run="run:run_module")


def _run_program(parser: CommandParser) -> None:
    parser.add_argument("argv", nargs="+", metavar="ARGV", help="the program and its arguments, after --")
    add_manifest(parser, "default: no access")
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="a variable for the program, in addition to a few such as PATH",
    )
    add_run_options(parser)
    parser.set_defaults(run="run:run_program")


def _add_kernel(parser: CommandParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--kernel", action="store_true", default=None, help="fail if the kernel layer is not available")
    which.add_argument(
        "--no-kernel",
        dest="kernel",
        action="store_false",
        help="use only the guard in the process",
    )


_RECORDED_CALL_SECONDS = 120.0
_LIMITS = (
    "Every access is really allowed and recorded, so run it where it cannot do harm. Protected paths, files of the\n"
    "extension, and accesses that no manifest can allow stay refused for its Python code. Native code (ctypes) and\n"
    "programs that it starts are not restricted. Afterwards the smallest manifest is proposed."
)


def record_arguments(parser: CommandParser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser(
        "script",
        help="record a file with Python code",
        description=f"Record a file with Python code. {_LIMITS}",
        takes=_record_script,
    )
    for kind, article, takes in (
        ("module", "a", _record_module),
        ("engine", "an", _record_engine),
        ("extractor", "an", _record_extractor),
    ):
        verbs.add_parser(
            kind,
            help=f"record a call of {article} {kind}",
            description=f"Record {article} {kind}: its import, and a call. {_LIMITS}",
            takes=takes,
        )
    verbs.add_parser(
        "suggest",
        help="propose a manifest from a trace",
        description="Propose the smallest manifest for a file written by --trace. Runs nothing.",
        takes=_suggest,
    )


def _record_script(parser: CommandParser) -> None:
    add_script(parser)
    add_run_options(parser)
    _add_report(parser)
    _add_run(parser)
    parser.set_defaults(run="record:run_script", verb="script")


def _record_module(parser: CommandParser) -> None:
    add_call(parser, methods=False)
    _add_extension(parser)
    parser.set_defaults(verb="module")


def _record_engine(parser: CommandParser) -> None:
    add_call(parser, methods=True)
    _add_phase(parser)
    _add_extension(parser)
    parser.set_defaults(verb="engine")


def _record_extractor(parser: CommandParser) -> None:
    _record_engine(parser)
    parser.set_defaults(verb="extractor")


def _suggest(parser: CommandParser) -> None:
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="files written by --trace")
    add_manifest(parser, "default: a new module manifest")
    _add_report(parser)
    add_json(parser)
    parser.set_defaults(run="record:run_suggest", verb="suggest", check=None, trace=None)


def _add_extension(parser: CommandParser) -> None:
    add_run_options(parser, seconds=_RECORDED_CALL_SECONDS)
    _add_report(parser)
    _add_run(parser)
    parser.set_defaults(run="record:run_extension")


def _add_phase(parser: CommandParser) -> None:
    parser.add_argument(
        "--phase",
        choices=("runtime", "install"),
        default="runtime",
        help="runtime (the default), or install: HTTP requests of pip beyond its index. Files and build steps are\n"
        "then not observed, but checked against the manifest",
    )
    parser.add_argument(
        "--setting", action="append", default=[], metavar="NAME=VALUE", help="a value of the stored settings"
    )


def _add_report(parser: CommandParser) -> None:
    """Add the options of the proposal."""
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="write the proposed manifest to this file and the comparison to standard output",
    )
    parser.add_argument(
        "--generalise",
        type=int,
        metavar="N",
        help="replace more than N files of one folder, or paths of one site, by their common prefix",
    )
    add_yes(parser)


def _add_run(parser: CommandParser) -> None:
    """Add the options of a run."""
    parser.add_argument(
        "--check",
        action=BooleanOptionalAction,
        help="repeat the run under the proposal (status 1 if that fails) and without each entry, and remove unneeded\n"
        "entries. Default: if it only reads; with --check, also if it writes, sends or starts programs",
    )
    parser.add_argument(
        "--trace", metavar="FILE", help="write every observation to this file, one JSON document per line"
    )
