"""Arguments of ``democrai-sandbox mcp``."""

from __future__ import annotations

from democrai_sandbox.cli.parsing import add_verbs

from .common import add_node, add_yes
from .filters import one_of
from .values import a_text, milliseconds
from .words import MCP_TRANSPORTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from democrai_sandbox.cli.parsing import Parser

_LIST = "List registered MCP servers, and whether their endpoints also need an approval."
_ADD = "Register an MCP server on all nodes. Its guard allows only this endpoint."
_CHANGE = "Change an MCP server on all nodes. The name cannot be changed."
_REMOVE = "Remove an MCP server on all nodes. Approvals of its endpoint remain."


def add_to(parser: Parser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser("list", help="list all servers", description=_LIST, takes=add_node, run="mcp:run_list")
    verbs.add_parser("add", help="register a server", description=_ADD, takes=_add)
    verbs.add_parser("change", help="change a server", description=_CHANGE, takes=_change)
    verbs.add_parser("remove", help="remove a server", description=_REMOVE, takes=_remove)


def _add(parser: Parser) -> None:
    _add_name(parser)
    parser.add_argument("--endpoint", metavar="URL", type=a_text, required=True, help="URL of the server")
    _add_facts(parser)
    parser.add_argument("--disabled", action="store_true", help="register it without enabling it")
    add_yes(parser)
    add_node(parser)
    parser.set_defaults(run="mcp:run_add")


def _change(parser: Parser) -> None:
    _add_name(parser)
    parser.add_argument("--endpoint", metavar="URL", type=a_text, help="URL of the server")
    _add_facts(parser)
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--enable", action="store_true", help="let modules use it")
    either.add_argument("--disable", action="store_true", help="do not let modules use it")
    add_yes(parser)
    add_node(parser)
    parser.set_defaults(run="mcp:run_change")


def _remove(parser: Parser) -> None:
    _add_name(parser)
    add_yes(parser)
    add_node(parser)
    parser.set_defaults(run="mcp:run_remove")


def _add_name(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", type=a_text, help="name of the server in calls of modules")


def _add_facts(parser: Parser) -> None:
    parser.add_argument("--transport", **one_of(MCP_TRANSPORTS, "TRANSPORT", "transport"))
    parser.add_argument("--timeout-ms", metavar="N", type=milliseconds, help="timeout of a call in milliseconds")
