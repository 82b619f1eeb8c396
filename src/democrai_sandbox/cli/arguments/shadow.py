"""Arguments of ``democrai-sandbox shadow``."""

from __future__ import annotations

from democrai_sandbox.cli.parsing import add_verbs

from .common import add_node, add_yes
from .values import a_subject, an_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from democrai_sandbox.cli.parsing import Parser

_START = "Start a shadow run on all nodes: compare a candidate manifest with the current one. The current one decides."
_LIST = "List shadow runs, active ones first."
_SHOW = "Show the accesses that the candidate would newly deny or allow. The exit status is 1 if it would deny one."
_STOP = "Stop a shadow run on all nodes. Its findings are kept."


def add_to(parser: Parser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser("start", help="start a shadow run", description=_START, takes=_start)
    verbs.add_parser("list", help="list shadow runs", description=_LIST, takes=add_node, run="shadow:run_list")
    verbs.add_parser("show", help="show the findings", description=_SHOW, takes=_show)
    verbs.add_parser("stop", help="stop a shadow run", description=_STOP, takes=_stop)


def _start(parser: Parser) -> None:
    parser.add_argument("--subject", metavar="KIND:NAME", type=a_subject, required=True, help="such as module:reports")
    parser.add_argument(
        "--manifest", metavar="FILE", required=True, help="the candidate; its name must be that of the subject"
    )
    parser.add_argument("--dry-run", action="store_true", help="only check the candidate")
    add_yes(parser)
    add_node(parser)
    parser.set_defaults(run="shadow:run_start")


def _show(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", type=an_id, help="id of the shadow run")
    add_node(parser)
    parser.set_defaults(run="shadow:run_show")


def _stop(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", type=an_id, help="id of the shadow run")
    parser.add_argument("--dry-run", action="store_true", help="show what would be stopped, and change nothing")
    add_yes(parser)
    add_node(parser)
    parser.set_defaults(run="shadow:run_stop")
