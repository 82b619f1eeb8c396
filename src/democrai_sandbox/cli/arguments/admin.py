"""What ``democrai-sandbox admin`` takes."""

from __future__ import annotations

from democrai_sandbox.cli.parsing import add_verbs

from .common import TOKEN_FILE, add_config, add_json, add_yes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from democrai_sandbox.cli.parsing import Parser

USUAL_SCOPES = (
    *("requests:read", "requests:decide", "approvals:read", "approvals:revoke", "subjects:read"),
    *("extensions:manage", "tasks:read", "audit:read", "status:read"),
)
"""Of a token, unless it is given others: what the other commands need."""
_DAYS = 90
_LABEL = "command line"
_CREATE = "Add somebody who can sign in, with a password that is asked for or read from standard input."
_PASSWD = "Give somebody another password, and end all their sessions. Tokens stay."  # noqa: S105 - what is done
_DISABLE = "Shut somebody out: their sessions end, and their tokens are of no use meanwhile."
_LIST = "List everybody who can sign in."
_TOKEN = "Tokens, by which programs come in."  # noqa: S105 - what they are
_CREATE_TOKEN = "Make a token that acts for somebody, and print it once. Without --scope: "  # noqa: S105 - what is done
_REVOKE_TOKEN = "End a token, and what was approved for what it did."  # noqa: S105 - what is done


def add_to(parser: Parser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser("create", help="add somebody who can sign in", description=_CREATE, takes=_create)
    verbs.add_parser("passwd", help="give somebody another password", description=_PASSWD, takes=_passwd)
    verbs.add_parser("disable", help="shut somebody out", description=_DISABLE, takes=_disable)
    verbs.add_parser("enable", help="let somebody in again", description="Let somebody in again.", takes=_enable)
    verbs.add_parser("list", help="list the people", description=_LIST, takes=_list)
    verbs.add_parser("token", help="tokens for programs", description=_TOKEN, takes=_token)


def _create(parser: Parser) -> None:
    parser.add_argument("--role", choices=("super",), help="super may approve and deny; without it one may look")
    parser.add_argument("--organization", metavar="ID", default="", help="whose people decide nothing")
    _add_name(parser)
    _add_generate(parser)
    parser.set_defaults(run="admin:run_create")


def _passwd(parser: Parser) -> None:
    _add_name(parser)
    _add_generate(parser)
    parser.set_defaults(run="admin:run_passwd")


def _disable(parser: Parser) -> None:
    _add_name(parser)
    add_yes(parser)
    parser.set_defaults(run="admin:run_disable")


def _enable(parser: Parser) -> None:
    _add_name(parser)
    parser.set_defaults(run="admin:run_enable")


def _list(parser: Parser) -> None:
    _add_common(parser)
    parser.set_defaults(run="admin:run_list")


def _add_name(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="small letters, digits, and . _ @ - between them")
    _add_common(parser)


def _add_generate(parser: Parser) -> None:
    parser.add_argument("--generate", action="store_true", help="make up a password, and print it once")


def _add_common(parser: Parser) -> None:
    add_config(parser)
    add_json(parser)


# ---- tokens ----------------------------------------------------------------------------------------------------------


def _token(parser: Parser) -> None:
    verbs = add_verbs(parser)
    verbs.add_parser(
        "create",
        help="make a token, and print it once",
        description=f"{_CREATE_TOKEN}{', '.join(USUAL_SCOPES)}.",
        takes=_create_token,
    )
    verbs.add_parser("list", help="list tokens", description="List tokens, without their secrets.", takes=_list_tokens)
    verbs.add_parser("revoke", help="end a token", description=_REVOKE_TOKEN, takes=_revoke_token)


def _create_token(parser: Parser) -> None:
    parser.add_argument("--user", metavar="NAME", help="for whom; needed where several people may decide")
    parser.add_argument("--label", metavar="TEXT", default=_LABEL, help=f"to tell it from others ({_LABEL})")
    parser.add_argument("--scope", metavar="SCOPE", action="append", help="what it is good for; may be repeated")
    parser.add_argument(
        "--days", metavar="N", type=int, default=_DAYS, help=f"for how long; 0 has no end ({_DAYS} without this)"
    )
    parser.add_argument(
        "--save", action="store_true", help=f"write it to {TOKEN_FILE} in the state folder, where the commands find it"
    )
    _add_common(parser)
    parser.set_defaults(run="tokens:run_create")


def _list_tokens(parser: Parser) -> None:
    parser.add_argument("--user", metavar="NAME", help="those of one person only")
    _add_common(parser)
    parser.set_defaults(run="tokens:run_list")


def _revoke_token(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", help="as admin token list shows it")
    add_yes(parser)
    _add_common(parser)
    parser.set_defaults(run="tokens:run_revoke")
