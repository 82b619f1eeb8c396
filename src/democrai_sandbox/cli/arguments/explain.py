"""What ``democrai-sandbox explain`` takes."""

from __future__ import annotations

from .common import add_node
from .values import a_subject
from .words import OPERATIONS, RESOURCE_TYPES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from democrai_sandbox.cli.parsing import Parser

_DESCRIPTION = """\
Say what an error line means and how things stand now, or what would happen if a subject did something: which layer
decides, by which rule, and what to declare or whom to ask. Changes nothing.

  explain 'sandbox_filesystem_denied:reports:/etc/passwd'      a line; - reads it from standard input
  explain --code sandbox_network_denied                        a code
  explain --subject module:reports --operation receive --target https://api.example.com/v1

Without a node, a line is explained from the catalogue of errors, and it is said that no node was asked."""


def add_to(parser: Parser) -> None:
    """Add what the command takes."""
    parser.description = _DESCRIPTION
    parser.add_argument("line", metavar="LINE", nargs="?", help="an error, a log line or a traceback; - reads it")
    parser.add_argument("--code", metavar="CODE", help="explain a code; no node is asked")
    parser.add_argument(
        "--subject", metavar="KIND:NAME", type=a_subject, help="who would do it, such as module:reports"
    )
    parser.add_argument("--operation", choices=OPERATIONS, help="what it would do")
    parser.add_argument("--target", metavar="TARGET", help="a URL, a host, a path or a program")
    parser.add_argument("--resource-type", choices=RESOURCE_TYPES, help="else told by the operation")
    parser.add_argument("--chain", metavar="A,B", default="", help="the subjects around it, outermost first")
    parser.add_argument("--install", action="store_true", help="while an engine or extractor is being installed")
    parser.add_argument("--session", metavar="KEY", default="", help="in this session")
    parser.add_argument("--user", metavar="ID", default="", help="for this user")
    parser.add_argument("--manifest", metavar="FILE", help="by this manifest alone; no node is asked")
    parser.add_argument("--offline", action="store_true", help="explain a line without asking a node")
    add_node(parser)
    parser.set_defaults(run="explaining:run")
