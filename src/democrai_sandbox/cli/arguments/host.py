"""Arguments of the commands ``serve``, ``status``, ``doctor``, ``config``, ``db``, ``helper`` and ``admin``."""

from __future__ import annotations

import os

from .choices import LOG_FORMATS
from .options import (
    CONFIG,
    DATABASE,
    JSON,
    LOCAL,
    NODE,
    TOKEN_FILE,
    YES,
    argument,
    arguments,
    either,
    flag,
    verb,
    verbs,
)

serve_arguments = arguments(
    "serve:run_serve",
    argument("--config", "FILE", "configuration file (default: DEMOCRAI_CONFIG_FILE; optional)"),
    argument(
        "--log-format",
        None,
        "log format on standard error: text (default on a terminal) or json",
        choices=LOG_FORMATS,
    ),
)

_STATUS = """\
Show what a node enforces now: the measured state of every layer, with a fix for each problem.
The exit status is 1 if a control that the configuration enables does not work, and 3 if no node answers."""

status_arguments = arguments("explain:run_status", *NODE, description=_STATUS)

_DOCTOR = """\
Test what this machine and this configuration can enforce, in temporary processes, and print a fix for every failed
check. Changes nothing and does not need root; checks that need root are marked. The exit status is 1 if the
configuration enables a control that does not work."""

doctor_arguments = arguments(
    "explain:run_doctor",
    CONFIG,
    flag("--egress", "also start the helper, and test an empty allowlist on a temporary process"),
    flag("--attempts", "list every forbidden operation that was tested"),
    JSON,
    description=_DOCTOR,
)

config_arguments = verbs(
    verb(
        "show",
        "print every value",
        "Print every value of the configuration, with passwords hidden. Changes nothing.",
        "serve:run_show",
        flag("--origin", "show the origin of each value: file and line, or variable"),
        flag("--given", "omit default values"),
    ),
    verb(
        "check",
        "list every problem",
        "Check the configuration as serve does, and list every problem. Changes nothing.",
        "serve:run_check",
    ),
    shared=LOCAL,
)

db_arguments = verbs(
    verb(
        "upgrade",
        "upgrade the schema to this version",
        "Upgrade the database schema to this version, in one transaction. Make a backup first.",
        "db:run_upgrade",
        flag("--dry-run", "show the current and the new schema, and change nothing"),
        YES,
    ),
    verb(
        "check",
        "check the connection and the schema",
        "Check that the database answers and that this version supports its schema.",
        "db:run_check",
        flag("--audit", "also verify the hash chain of the audit log, which reads all records"),
    ),
    verb(
        "backup",
        "copy a SQLite database while it is in use",
        "Copy a SQLite database to a file while nodes run. The copy does not contain the keys.",
        "db:run_backup",
        argument("file", "FILE", "the copy; must not exist"),
    ),
    verb(
        "rotate-key",
        "replace the encryption key",
        "Replace the key that encrypts resume contexts and model keys, and re-encrypt the stored data.",
        "db:run_rotate_key",
        either(
            flag("--introduce", "only add a new key, without using it yet"),
            argument("--use", "ID", "encrypt with this key of the key file instead of a new one"),
            flag("--retire", "remove keys that no longer encrypt anything"),
        ),
        argument("--key-file", "FILE", "key file (default: from the configuration)"),
        flag("--dry-run", "show what would be done, and change nothing"),
        YES,
    ),
    shared=DATABASE,
)

helper_arguments = verbs(
    verb(
        "run",
        "run the helper of an application, in the foreground",
        "Run the helper of an application: apply its allowlist, and end with it. Needs root, or sudo "
        "without a password. serve starts the helper itself; use this command for process managers and for debugging.",
        "serve:run_helper",
        argument("--parent-pid", "PID", "process id of the application", required=True),
        argument("--socket", "PATH", "socket of the helper (default: from the configuration)"),
        argument("--policy-file", "PATH", "policy file (default: from the configuration)"),
        argument("--refresh-seconds", "N", "resolve names again every N seconds; 0 for never"),
        flag("--debug", "log every step"),
        CONFIG,
    ),
    verb(
        "status",
        "list running helpers and their allowlists",
        "List the running helpers of this configuration, their allowlists and, as root, the rules that "
        "are in the packet filter. Changes nothing.",
        "serve:run_status",
        *LOCAL,
    ),
    verb(
        "apply",
        "print the packet filter rules of a policy file",
        "Read a policy file as the helper does, resolve its names, and print the rules for the "
        "packet filter. Only the helper itself can apply rules.",
        "serve:run_apply",
        argument("file", "FILE", "a policy file, such as os_sandbox_allowlist_PID.json in the data folder"),
        flag("--dry-run", "apply nothing; required", required=True),
        argument("--parent-pid", "PID", "process id to use in the names of the rules", default=str(os.getpid())),
        JSON,
    ),
    *(
        verb(
            name,
            f"print the rule that lets a user start the helper through {program}",
            f"Print the rule that lets a user start the helper through {program}. Installs nothing.",
            f"serve:run_{name}",
            argument("--user", "NAME", "user that runs the application (default: the current user, unless root)"),
            JSON,
        )
        for name, program in (("sudoers", "sudo"), ("polkit", "pkexec"))
    ),
    verb(
        "systemd",
        "print the unit that runs the helper for a service",
        "Print the unit that runs the helper for a service. Installs nothing.",
        "serve:run_systemd",
        argument("--state-dir", "DIR", "replaces state_dir of the configuration"),
        argument("--data-dir", "DIR", "replaces data_dir of the configuration"),
        argument("--refresh-seconds", "N", "replaces the time between name resolutions"),
        *LOCAL,
    ),
)

USUAL_SCOPES = (
    *("requests:read", "requests:decide", "approvals:read", "approvals:revoke", "subjects:read"),
    *("extensions:manage", "tasks:read", "audit:read", "status:read"),
)
"""Default scopes of a token: those that the other commands need."""
_TOKEN_DAYS = 90
_LABEL = "command line"
_USER = argument("name", "NAME", "lowercase letters and digits, with . _ @ - between them")
_GENERATE = flag("--generate", "generate a password and print it once")

_token_arguments = verbs(
    verb(
        "create",
        "create a token and print it once",
        f"Create a token for a user and print it once. Default scopes: {', '.join(USUAL_SCOPES)}.",
        "db:run_create_token",
        argument("--user", "NAME", "owner of the token; required if several users may decide"),
        argument("--label", "TEXT", f"name of the token in lists (default: {_LABEL})", default=_LABEL),
        argument("--scope", "SCOPE", "a scope of the token; may be repeated", action="append"),
        argument(
            "--days",
            "N",
            f"days until the token expires; 0 for never (default: {_TOKEN_DAYS})",
            type=int,
            default=_TOKEN_DAYS,
        ),
        flag("--save", f"write it to {TOKEN_FILE} in the state folder, where commands look for it"),
    ),
    verb(
        "list",
        "list tokens",
        "List tokens, without their secrets.",
        "db:run_list_tokens",
        argument("--user", "NAME", "only tokens of this user"),
    ),
    verb(
        "revoke",
        "revoke a token",
        "Revoke a token, and end the session approvals of its calls.",
        "db:run_revoke_token",
        argument("id", "ID", "id from admin token list"),
        YES,
    ),
    shared=LOCAL,
)

admin_arguments = verbs(
    verb(
        "create",
        "add a user",
        "Add a user. The password is read from the terminal or from standard input.",
        "db:run_create",
        argument(
            "--role", None, "super may approve and deny; without a role, the user may only read", choices=("super",)
        ),
        argument("--organization", "ID", "organization of the user; its users may not decide", default=""),
        _USER,
        *LOCAL,
        _GENERATE,
    ),
    verb(
        "passwd",
        "set a new password",
        "Set a new password for a user and end all sessions of the user. Tokens keep working.",
        "db:run_passwd",
        _USER,
        *LOCAL,
        _GENERATE,
    ),
    verb(
        "disable",
        "disable a user",
        "Disable a user: all sessions end, and tokens stop working until the user is enabled again.",
        "db:run_disable",
        _USER,
        *LOCAL,
        YES,
    ),
    verb("enable", "enable a disabled user", "Enable a disabled user.", "db:run_enable", _USER, *LOCAL),
    verb("list", "list users", "List all users.", "db:run_list", *LOCAL),
    verb("token", "manage API tokens", "Manage API tokens for programs.", "", _token_arguments),
)
