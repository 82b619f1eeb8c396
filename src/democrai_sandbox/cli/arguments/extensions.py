"""Arguments of ``democrai-sandbox extensions``."""

from __future__ import annotations

from democrai_sandbox.cli.parsing import add_verbs

from .common import add_node, add_yes
from .values import a_setting, a_subject, a_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from democrai_sandbox.cli.parsing import Parser

_LIST = "List modules, engines and extractors, with their state."
_INSTALL = "Install the environment of an engine or extractor, and wait until it is ready."
_SETTINGS = "Show the settings of an engine or extractor. Values that look secret are hidden."
_SET = "Set or remove settings of an engine or extractor on all nodes. The next call starts a worker with them."


def add_to(parser: Parser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser("list", help="list all extensions", description=_LIST, takes=add_node, run="extensions:run_list")
    verbs.add_parser("install", help="install an engine or extractor", description=_INSTALL, takes=_install)
    verbs.add_parser(
        "settings",
        help="show settings",
        description=_SETTINGS,
        takes=_settings,
        run="extensions:run_settings",
    )
    verbs.add_parser("set", help="change settings", description=_SET, takes=_set)


def _install(parser: Parser) -> None:
    _add_subject(parser)
    parser.add_argument("--again", action="store_true", help="rebuild the environment even if it is ready")
    parser.add_argument("--no-wait", action="store_true", help="start and return; extensions list shows the result")
    add_node(parser)
    parser.set_defaults(run="extensions:run_install")


def _settings(parser: Parser) -> None:
    _add_subject(parser)
    add_node(parser)


def _set(parser: Parser) -> None:
    _add_subject(parser)
    parser.add_argument(
        "values", metavar="NAME=VALUE", nargs="*", type=a_setting, help="a text, or JSON such as 3 or true"
    )
    parser.add_argument(
        "--secret", metavar="NAME", type=a_text, help="ask for the value, or read it from standard input"
    )
    parser.add_argument(
        "--unset", metavar="NAME", action="append", default=[], type=a_text, help="remove this setting; may be repeated"
    )
    add_yes(parser)
    add_node(parser)
    parser.set_defaults(run="extensions:run_set")


def _add_subject(parser: Parser) -> None:
    parser.add_argument("subject", metavar="KIND:NAME", type=a_subject, help="such as engine:whisper")
