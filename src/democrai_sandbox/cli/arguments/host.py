"""Arguments of the commands ``serve``, ``status``, ``doctor``, ``config``, ``db``, ``helper`` and ``admin``."""

from __future__ import annotations

import os

from democrai_sandbox.cli.parser import add_verbs

from .choices import LOG_FORMATS
from .options import TOKEN_FILE, add_config, add_database, add_json, add_node, add_yes

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from democrai_sandbox.cli.parser import CommandParser


def serve_arguments(parser: CommandParser) -> None:
    """Add the arguments."""
    parser.add_argument("--config", metavar="FILE", help="configuration file (default: DEMOCRAI_CONFIG_FILE; optional)")
    parser.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        help="log format on standard error: text (default on a terminal) or json",
    )
    parser.set_defaults(run="serve:run_serve")


_STATUS = """\
Show what a node enforces now: the measured state of every layer, with a fix for each problem.
The exit status is 1 if a control that the configuration enables does not work, and 3 if no node answers."""


def status_arguments(parser: CommandParser) -> None:
    """Add the arguments."""
    parser.description = _STATUS
    add_node(parser)
    parser.set_defaults(run="status:run_status")


_DOCTOR = """\
Test what this machine and this configuration can enforce, in temporary processes, and print a fix for every failed
check. Changes nothing and does not need root; checks that need root are marked. The exit status is 1 if the
configuration enables a control that does not work."""


def doctor_arguments(parser: CommandParser) -> None:
    """Add the arguments."""
    parser.description = _DOCTOR
    add_config(parser)
    parser.add_argument(
        "--egress",
        action="store_true",
        help="also start the helper, and test an empty allowlist on a temporary process",
    )
    parser.add_argument("--attempts", action="store_true", help="list every forbidden operation that was tested")
    add_json(parser)
    parser.set_defaults(run="status:run_doctor")


_SHOW_CONFIG = "Print every value of the configuration, with passwords hidden. Changes nothing."
_CHECK_CONFIG = "Check the configuration as serve does, and list every problem. Changes nothing."


def config_arguments(parser: CommandParser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser("show", help="print every value", description=_SHOW_CONFIG, takes=_show_config)
    verbs.add_parser("check", help="list every problem", description=_CHECK_CONFIG, takes=_check_config)


def _show_config(parser: CommandParser) -> None:
    parser.add_argument(
        "--origin", action="store_true", help="show the origin of each value: file and line, or variable"
    )
    parser.add_argument("--given", action="store_true", help="omit default values")
    add_config(parser)
    add_json(parser)
    parser.set_defaults(run="config:run_show")


def _check_config(parser: CommandParser) -> None:
    add_config(parser)
    add_json(parser)
    parser.set_defaults(run="config:run_check")


def db_arguments(parser: CommandParser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser(
        "upgrade",
        help="upgrade the schema to this version",
        description="Upgrade the database schema to this version, in one transaction. Make a backup first.",
        takes=_upgrade_database,
    )
    verbs.add_parser(
        "check",
        help="check the connection and the schema",
        description="Check that the database answers and that this version supports its schema.",
        takes=_check_database,
    )
    verbs.add_parser(
        "backup",
        help="copy a SQLite database while it is in use",
        description="Copy a SQLite database to a file while nodes run. The copy does not contain the keys.",
        takes=_back_up_database,
    )
    verbs.add_parser(
        "rotate-key",
        help="replace the encryption key",
        description="Replace the key that encrypts resume contexts and model keys, and re-encrypt the stored data.",
        takes=_rotate_key,
    )


def _upgrade_database(parser: CommandParser) -> None:
    parser.add_argument(
        "--dry-run", action="store_true", help="show the current and the new schema, and change nothing"
    )
    add_yes(parser)
    add_database(parser)
    parser.set_defaults(run="db:run_upgrade")


def _check_database(parser: CommandParser) -> None:
    parser.add_argument(
        "--audit", action="store_true", help="also verify the hash chain of the audit log, which reads all records"
    )
    add_database(parser)
    parser.set_defaults(run="db:run_check")


def _back_up_database(parser: CommandParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the copy; must not exist")
    add_database(parser)
    parser.set_defaults(run="db:run_backup")


def _rotate_key(parser: CommandParser) -> None:
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--introduce", action="store_true", help="only add a new key, without using it yet")
    how.add_argument("--use", metavar="ID", help="encrypt with this key of the key file instead of a new one")
    how.add_argument("--retire", action="store_true", help="remove keys that no longer encrypt anything")
    parser.add_argument("--key-file", metavar="FILE", help="key file (default: from the configuration)")
    parser.add_argument("--dry-run", action="store_true", help="show what would be done, and change nothing")
    add_yes(parser)
    add_database(parser)
    parser.set_defaults(run="db:run_rotate_key")


def helper_arguments(parser: CommandParser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser(
        "run",
        help="run the helper of an application, in the foreground",
        description="Run the helper of an application: apply its allowlist, and end with it. Needs root, or sudo "
        "without a password. serve starts the helper itself; use this command for process managers and for debugging.",
        takes=_run_helper,
    )
    verbs.add_parser(
        "status",
        help="list running helpers and their allowlists",
        description="List the running helpers of this configuration, their allowlists and, as root, the rules that "
        "are in the packet filter. Changes nothing.",
        takes=_helper_status,
    )
    verbs.add_parser(
        "apply",
        help="print the packet filter rules of a policy file",
        description="Read a policy file as the helper does, resolve its names, and print the rules for the "
        "packet filter. Only the helper itself can apply rules.",
        takes=_apply_policy,
    )
    for name, program in (("sudoers", "sudo"), ("polkit", "pkexec")):
        verbs.add_parser(
            name,
            help=f"print the rule that lets a user start the helper through {program}",
            description=f"Print the rule that lets a user start the helper through {program}. Installs nothing.",
            takes=_add_user,
            run=f"helper:run_{name}",
        )
    verbs.add_parser(
        "systemd",
        help="print the unit that runs the helper for a service",
        description="Print the unit that runs the helper for a service. Installs nothing.",
        takes=_systemd,
    )


def _run_helper(parser: CommandParser) -> None:
    parser.add_argument("--parent-pid", metavar="PID", required=True, help="process id of the application")
    parser.add_argument("--socket", metavar="PATH", help="socket of the helper (default: from the configuration)")
    parser.add_argument("--policy-file", metavar="PATH", help="policy file (default: from the configuration)")
    parser.add_argument("--refresh-seconds", metavar="N", help="resolve names again every N seconds; 0 for never")
    parser.add_argument("--debug", action="store_true", help="log every step")
    add_config(parser)
    parser.set_defaults(run="helper:run_helper")


def _helper_status(parser: CommandParser) -> None:
    add_config(parser)
    add_json(parser)
    parser.set_defaults(run="helper:run_status")


def _apply_policy(parser: CommandParser) -> None:
    own = str(os.getpid())
    parser.add_argument(
        "file", metavar="FILE", help="a policy file, such as os_sandbox_allowlist_PID.json in the data folder"
    )
    parser.add_argument("--dry-run", action="store_true", required=True, help="apply nothing; required")
    parser.add_argument("--parent-pid", metavar="PID", default=own, help="process id to use in the names of the rules")
    add_json(parser)
    parser.set_defaults(run="helper:run_apply")


def _add_user(parser: CommandParser) -> None:
    parser.add_argument(
        "--user", metavar="NAME", help="user that runs the application (default: the current user, unless root)"
    )
    add_json(parser)


def _systemd(parser: CommandParser) -> None:
    parser.add_argument("--state-dir", metavar="DIR", help="replaces state_dir of the configuration")
    parser.add_argument("--data-dir", metavar="DIR", help="replaces data_dir of the configuration")
    parser.add_argument("--refresh-seconds", metavar="N", help="replaces the time between name resolutions")
    add_config(parser)
    add_json(parser)
    parser.set_defaults(run="helper:run_systemd")


USUAL_SCOPES = (
    *("requests:read", "requests:decide", "approvals:read", "approvals:revoke", "subjects:read"),
    *("extensions:manage", "tasks:read", "audit:read", "status:read"),
)
"""Default scopes of a token: those that the other commands need."""
_TOKEN_DAYS = 90
_LABEL = "command line"
_CREATE_USER = "Add a user. The password is read from the terminal or from standard input."
_SET_PASSWORD = "Set a new password for a user and end all sessions of the user. Tokens keep working."  # noqa: S105 - a help text
_DISABLE_USER = "Disable a user: all sessions end, and tokens stop working until the user is enabled again."
_LIST_USERS = "List all users."
_TOKEN = "Manage API tokens for programs."  # noqa: S105 - a help text
_CREATE_TOKEN = "Create a token for a user and print it once. Default scopes: "  # noqa: S105 - a help text
_REVOKE_TOKEN = "Revoke a token, and end the session approvals of its calls."  # noqa: S105 - a help text


def admin_arguments(parser: CommandParser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser("create", help="add a user", description=_CREATE_USER, takes=_create_user)
    verbs.add_parser("passwd", help="set a new password", description=_SET_PASSWORD, takes=_set_password)
    verbs.add_parser("disable", help="disable a user", description=_DISABLE_USER, takes=_disable_user)
    verbs.add_parser("enable", help="enable a disabled user", description="Enable a disabled user.", takes=_enable_user)
    verbs.add_parser("list", help="list users", description=_LIST_USERS, takes=_list_users)
    verbs.add_parser("token", help="manage API tokens", description=_TOKEN, takes=_token)


def _create_user(parser: CommandParser) -> None:
    parser.add_argument(
        "--role", choices=("super",), help="super may approve and deny; without a role, the user may only read"
    )
    parser.add_argument(
        "--organization", metavar="ID", default="", help="organization of the user; its users may not decide"
    )
    _add_name(parser)
    _add_generate(parser)
    parser.set_defaults(run="admin:run_create")


def _set_password(parser: CommandParser) -> None:
    _add_name(parser)
    _add_generate(parser)
    parser.set_defaults(run="admin:run_passwd")


def _disable_user(parser: CommandParser) -> None:
    _add_name(parser)
    add_yes(parser)
    parser.set_defaults(run="admin:run_disable")


def _enable_user(parser: CommandParser) -> None:
    _add_name(parser)
    parser.set_defaults(run="admin:run_enable")


def _list_users(parser: CommandParser) -> None:
    _add_admin_options(parser)
    parser.set_defaults(run="admin:run_list")


def _add_name(parser: CommandParser) -> None:
    parser.add_argument("name", metavar="NAME", help="lowercase letters and digits, with . _ @ - between them")
    _add_admin_options(parser)


def _add_generate(parser: CommandParser) -> None:
    parser.add_argument("--generate", action="store_true", help="generate a password and print it once")


def _add_admin_options(parser: CommandParser) -> None:
    add_config(parser)
    add_json(parser)


# ---- tokens ----------------------------------------------------------------------------------------------------------


def _token(parser: CommandParser) -> None:
    verbs = add_verbs(parser)
    verbs.add_parser(
        "create",
        help="create a token and print it once",
        description=f"{_CREATE_TOKEN}{', '.join(USUAL_SCOPES)}.",
        takes=_create_token,
    )
    verbs.add_parser("list", help="list tokens", description="List tokens, without their secrets.", takes=_list_tokens)
    verbs.add_parser("revoke", help="revoke a token", description=_REVOKE_TOKEN, takes=_revoke_token)


def _create_token(parser: CommandParser) -> None:
    parser.add_argument("--user", metavar="NAME", help="owner of the token; required if several users may decide")
    parser.add_argument(
        "--label", metavar="TEXT", default=_LABEL, help=f"name of the token in lists (default: {_LABEL})"
    )
    parser.add_argument("--scope", metavar="SCOPE", action="append", help="a scope of the token; may be repeated")
    parser.add_argument(
        "--days",
        metavar="N",
        type=int,
        default=_TOKEN_DAYS,
        help=f"days until the token expires; 0 for never (default: {_TOKEN_DAYS})",
    )
    parser.add_argument(
        "--save", action="store_true", help=f"write it to {TOKEN_FILE} in the state folder, where commands look for it"
    )
    _add_admin_options(parser)
    parser.set_defaults(run="admin:run_create_token")


def _list_tokens(parser: CommandParser) -> None:
    parser.add_argument("--user", metavar="NAME", help="only tokens of this user")
    _add_admin_options(parser)
    parser.set_defaults(run="admin:run_list_tokens")


def _revoke_token(parser: CommandParser) -> None:
    parser.add_argument("id", metavar="ID", help="id from admin token list")
    add_yes(parser)
    _add_admin_options(parser)
    parser.set_defaults(run="admin:run_revoke_token")
