"""Arguments of ``democrai-sandbox explain``."""

from __future__ import annotations

from .common import add_node
from .values import a_subject
from .words import OPERATIONS, RESOURCE_TYPES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from democrai_sandbox.cli.parsing import Parser

_DESCRIPTION = """\
Explain an error line and the current state, or predict an access of a subject: the layer and rule that decide, and the
declaration or approval that would change it. Changes nothing.

  explain 'sandbox_filesystem_denied:reports:/etc/passwd'      a line; - reads it from standard input
  explain --code sandbox_network_denied                        a code
  explain --subject module:reports --operation receive --target https://api.example.com/v1

If no node answers, a line is explained from the error catalog alone."""


def add_to(parser: Parser) -> None:
    """Add the arguments."""
    parser.description = _DESCRIPTION
    parser.add_argument(
        "line", metavar="LINE", nargs="?", help="an error, a log line or a traceback; - for standard input"
    )
    parser.add_argument("--code", metavar="CODE", help="explain a code without asking a node")
    parser.add_argument("--subject", metavar="KIND:NAME", type=a_subject, help="the subject, such as module:reports")
    parser.add_argument("--operation", choices=OPERATIONS, help="the operation")
    parser.add_argument("--target", metavar="TARGET", help="a URL, a host, a path or a program")
    parser.add_argument("--resource-type", choices=RESOURCE_TYPES, help="default: derived from the operation")
    parser.add_argument(
        "--chain", metavar="A,B", default="", help="call chain: the enclosing subjects, outermost first"
    )
    parser.add_argument("--install", action="store_true", help="in the install phase of an engine or extractor")
    parser.add_argument("--session", metavar="KEY", default="", help="in this session")
    parser.add_argument("--user", metavar="ID", default="", help="for this user")
    parser.add_argument("--manifest", metavar="FILE", help="check against this manifest only, without asking a node")
    parser.add_argument("--offline", action="store_true", help="explain a line without asking a node")
    add_node(parser)
    parser.set_defaults(run="explaining:run")
