"""Arguments of ``democrai-sandbox record``."""

from __future__ import annotations

from argparse import BooleanOptionalAction

from democrai_sandbox.cli.parsing import add_verbs

from .common import add_json, add_yes
from .subjects import add_call, add_common, add_manifest, add_script

TYPE_CHECKING = False
if TYPE_CHECKING:
    from democrai_sandbox.cli.parsing import Parser

_CALL_SECONDS = 120.0
_LIMITS = (
    "Every access is really allowed and recorded, so run it where it cannot do harm. Protected paths, files of the\n"
    "extension, and accesses that no manifest can allow stay refused for its Python code. Native code (ctypes) and\n"
    "programs that it starts are not restricted. Afterwards the smallest manifest is proposed."
)


def add_to(parser: Parser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser(
        "script",
        help="record a file with Python code",
        description=f"Record a file with Python code. {_LIMITS}",
        takes=_script,
    )
    for kind, article, takes in (("module", "a", _module), ("engine", "an", _engine), ("extractor", "an", _extractor)):
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


def _script(parser: Parser) -> None:
    add_script(parser)
    add_common(parser)
    _add_report(parser)
    _add_run(parser)
    parser.set_defaults(run="recording:run_script", verb="script")


def _module(parser: Parser) -> None:
    add_call(parser, methods=False)
    _add_extension(parser)
    parser.set_defaults(verb="module")


def _engine(parser: Parser) -> None:
    add_call(parser, methods=True)
    _add_phase(parser)
    _add_extension(parser)
    parser.set_defaults(verb="engine")


def _extractor(parser: Parser) -> None:
    _engine(parser)
    parser.set_defaults(verb="extractor")


def _suggest(parser: Parser) -> None:
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="files written by --trace")
    add_manifest(parser, "default: a new module manifest")
    _add_report(parser)
    add_json(parser)
    parser.set_defaults(run="recording:run_suggest", verb="suggest", check=None, trace=None)


def _add_extension(parser: Parser) -> None:
    add_common(parser, seconds=_CALL_SECONDS)
    _add_report(parser)
    _add_run(parser)
    parser.set_defaults(run="recording:run_extension")


def _add_phase(parser: Parser) -> None:
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


def _add_report(parser: Parser) -> None:
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


def _add_run(parser: Parser) -> None:
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
