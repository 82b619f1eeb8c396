"""What ``democrai-sandbox record`` takes."""

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
    "Everything is allowed, for real, and written down: run it where that does no harm. The files of the host, of the\n"
    "extension itself, and what no manifest can allow stay shut to its Python code. Nothing holds native code that it\n"
    "calls (ctypes), nor programs that it starts. Then the smallest manifest is proposed."
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
            help=f"record what {article} {kind} does in a call",
            description=f"Record {article} {kind}: its import, and a call. {_LIMITS}",
            takes=takes,
        )
    verbs.add_parser(
        "suggest",
        help="propose a manifest from a trace",
        description="Propose the smallest manifest for what --trace wrote down. Runs nothing.",
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
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="files that --trace has written")
    add_manifest(parser, "without one a new module's is made")
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
        help="runtime (the default), or install: the requests of pip beyond its index. Files, and what packages are\n"
        "built with, are not observed then, but held to the manifest",
    )
    parser.add_argument(
        "--setting", action="append", default=[], metavar="NAME=VALUE", help="a value of its stored configuration"
    )


def _add_report(parser: Parser) -> None:
    """Add what becomes of what was seen."""
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="write the proposed manifest to this file, and the comparison to standard output",
    )
    parser.add_argument(
        "--generalise",
        type=int,
        metavar="N",
        help="put more than N files of one folder, or paths of one site, together into what they have in common",
    )
    add_yes(parser)


def _add_run(parser: Parser) -> None:
    """Add what there is where something is run."""
    parser.add_argument(
        "--check",
        action=BooleanOptionalAction,
        help="repeat it under the proposal, 1 if that is not enough, and without each entry: what is not needed is\n"
        "left out. By default, if it only reads; with --check, also if it writes, sends or starts programs",
    )
    parser.add_argument("--trace", metavar="FILE", help="write down all that was seen, one JSON document on a line")
