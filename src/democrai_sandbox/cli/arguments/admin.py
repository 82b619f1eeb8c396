"""Arguments of ``democrai-sandbox admin``."""

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
"""Default scopes of a token: those that the other commands need."""
_DAYS = 90
_LABEL = "command line"
_CREATE = "Add a user. The password is read from the terminal or from standard input."
_PASSWD = "Set a new password for a user and end all sessions of the user. Tokens keep working."  # noqa: S105 - a help text
_DISABLE = "Disable a user: all sessions end, and tokens stop working until the user is enabled again."
_LIST = "List all users."
_TOKEN = "Manage API tokens for programs."  # noqa: S105 - a help text
_CREATE_TOKEN = "Create a token for a user and print it once. Default scopes: "  # noqa: S105 - a help text
_REVOKE_TOKEN = "Revoke a token, and end the session approvals of its calls."  # noqa: S105 - a help text


def add_to(parser: Parser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser("create", help="add a user", description=_CREATE, takes=_create)
    verbs.add_parser("passwd", help="set a new password", description=_PASSWD, takes=_passwd)
    verbs.add_parser("disable", help="disable a user", description=_DISABLE, takes=_disable)
    verbs.add_parser("enable", help="enable a disabled user", description="Enable a disabled user.", takes=_enable)
    verbs.add_parser("list", help="list users", description=_LIST, takes=_list)
    verbs.add_parser("token", help="manage API tokens", description=_TOKEN, takes=_token)


def _create(parser: Parser) -> None:
    parser.add_argument(
        "--role", choices=("super",), help="super may approve and deny; without a role, the user may only read"
    )
    parser.add_argument(
        "--organization", metavar="ID", default="", help="organization of the user; its users may not decide"
    )
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
    parser.add_argument("name", metavar="NAME", help="lowercase letters and digits, with . _ @ - between them")
    _add_common(parser)


def _add_generate(parser: Parser) -> None:
    parser.add_argument("--generate", action="store_true", help="generate a password and print it once")


def _add_common(parser: Parser) -> None:
    add_config(parser)
    add_json(parser)


# ---- tokens ----------------------------------------------------------------------------------------------------------


def _token(parser: Parser) -> None:
    verbs = add_verbs(parser)
    verbs.add_parser(
        "create",
        help="create a token and print it once",
        description=f"{_CREATE_TOKEN}{', '.join(USUAL_SCOPES)}.",
        takes=_create_token,
    )
    verbs.add_parser("list", help="list tokens", description="List tokens, without their secrets.", takes=_list_tokens)
    verbs.add_parser("revoke", help="revoke a token", description=_REVOKE_TOKEN, takes=_revoke_token)


def _create_token(parser: Parser) -> None:
    parser.add_argument("--user", metavar="NAME", help="owner of the token; required if several users may decide")
    parser.add_argument(
        "--label", metavar="TEXT", default=_LABEL, help=f"name of the token in lists (default: {_LABEL})"
    )
    parser.add_argument("--scope", metavar="SCOPE", action="append", help="a scope of the token; may be repeated")
    parser.add_argument(
        "--days",
        metavar="N",
        type=int,
        default=_DAYS,
        help=f"days until the token expires; 0 for never (default: {_DAYS})",
    )
    parser.add_argument(
        "--save", action="store_true", help=f"write it to {TOKEN_FILE} in the state folder, where commands look for it"
    )
    _add_common(parser)
    parser.set_defaults(run="tokens:run_create")


def _list_tokens(parser: Parser) -> None:
    parser.add_argument("--user", metavar="NAME", help="only tokens of this user")
    _add_common(parser)
    parser.set_defaults(run="tokens:run_list")


def _revoke_token(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", help="id from admin token list")
    add_yes(parser)
    _add_common(parser)
    parser.set_defaults(run="tokens:run_revoke")
