"""Arguments of ``democrai-sandbox models``."""

from __future__ import annotations

from democrai_sandbox.cli.parsing import add_verbs

from .common import add_node, add_yes
from .values import a_setting, a_text, milliseconds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from democrai_sandbox.cli.parsing import Parser

_LIST = (
    "List models and the agents that use them. The exit status is 1 if an agent uses a missing model. Keys are never "
    "shown."
)
_ADD = (
    "Add a model on all nodes. The key is read from the terminal, standard input or a file; the node stores it "
    "encrypted. Agents must be allowed to send to the endpoint."
)
_CHANGE = "Change a model on all nodes. The name cannot be changed. A new endpoint needs the key again."
_REMOVE = "Remove a model and its key on all nodes. Agents that use it fail afterwards."


def add_to(parser: Parser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser("list", help="list all models", description=_LIST, takes=add_node, run="models:run_list")
    verbs.add_parser("add", help="add a model", description=_ADD, takes=_add)
    verbs.add_parser("change", help="change a model", description=_CHANGE, takes=_change)
    verbs.add_parser("remove", help="remove a model", description=_REMOVE, takes=_remove)


def _add(parser: Parser) -> None:
    _add_name(parser)
    _add_facts(parser, required=True)
    add_yes(parser)
    add_node(parser)
    parser.set_defaults(run="models:run_add", no_key=False)


def _change(parser: Parser) -> None:
    _add_name(parser)
    _add_facts(parser, required=False)
    add_yes(parser)
    add_node(parser)
    parser.set_defaults(run="models:run_change")


def _remove(parser: Parser) -> None:
    _add_name(parser)
    add_yes(parser)
    add_node(parser)
    parser.set_defaults(run="models:run_remove")


def _add_name(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", type=a_text, help="name of the model in declarations of agents")


def _add_facts(parser: Parser, *, required: bool) -> None:
    parser.add_argument(
        "--endpoint", metavar="URL", type=a_text, required=required, help="URL before /chat/completions"
    )
    parser.add_argument(
        "--model", metavar="TEXT", type=a_text, required=required, help="name of the model at the endpoint"
    )
    key = parser.add_mutually_exclusive_group()
    key.add_argument("--ask-key", action="store_true", help="ask for the key, or read it from standard input")
    key.add_argument("--api-key-file", metavar="FILE", help="local file whose first line is the key")
    if not required:
        key.add_argument("--no-key", action="store_true", help="remove the key")
    parser.add_argument("--timeout-ms", metavar="N", type=milliseconds, help="timeout of an answer in milliseconds")
    parser.add_argument(
        "--option",
        metavar="NAME=VALUE",
        type=a_setting,
        action="append",
        default=[],
        help="sent with each HTTP request, such as temperature=0.2; may be repeated; replaces all options",
    )
