"""What ``democrai-sandbox shadow`` takes."""

from __future__ import annotations

from democrai_sandbox.cli.parsing import add_verbs

from .common import add_node, add_yes
from .values import a_subject, an_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from democrai_sandbox.cli.parsing import Parser

_START = "Have a subject run beside a candidate manifest, on all nodes. What it may do stays as it is."
_LIST = "List shadow runs, those that go on first."
_SHOW = "Show what the candidate would newly deny or allow. The exit status is 1 if it would newly deny something."
_STOP = "End a run, on all nodes; what was found is kept."


def add_to(parser: Parser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser("start", help="try a candidate", description=_START, takes=_start)
    verbs.add_parser("list", help="all runs", description=_LIST, takes=add_node, run="shadow:run_list")
    verbs.add_parser("show", help="what was found", description=_SHOW, takes=_show)
    verbs.add_parser("stop", help="end a run", description=_STOP, takes=_stop)


def _start(parser: Parser) -> None:
    parser.add_argument("--subject", metavar="KIND:NAME", type=a_subject, required=True, help="such as module:reports")
    parser.add_argument("--manifest", metavar="FILE", required=True, help="the candidate, with the name of the subject")
    parser.add_argument("--dry-run", action="store_true", help="only check the candidate")
    add_yes(parser)
    add_node(parser)
    parser.set_defaults(run="shadow:run_start")


def _show(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", type=an_id, help="of the run")
    add_node(parser)
    parser.set_defaults(run="shadow:run_show")


def _stop(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", type=an_id, help="of the run")
    parser.add_argument("--dry-run", action="store_true", help="only say what would end")
    add_yes(parser)
    add_node(parser)
    parser.set_defaults(run="shadow:run_stop")
