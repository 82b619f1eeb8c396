"""Arguments of ``democrai-sandbox helper``."""

from __future__ import annotations

import os

from democrai_sandbox.cli.parsing import add_verbs

from .common import add_config, add_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from democrai_sandbox.cli.parsing import Parser


def add_to(parser: Parser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser(
        "run",
        help="run the helper of an application, in the foreground",
        description="Run the helper of an application: apply its allowlist, and end with it. Needs root, or sudo "
        "without a password. serve starts the helper itself; use this command for process managers and for debugging.",
        takes=_run,
    )
    verbs.add_parser(
        "status",
        help="list running helpers and their allowlists",
        description="List the running helpers of this configuration, their allowlists and, as root, the rules that "
        "are in the packet filter. Changes nothing.",
        takes=_status,
    )
    verbs.add_parser(
        "apply",
        help="print the packet filter rules of a policy file",
        description="Read a policy file as the helper does, resolve its names, and print the rules for the "
        "packet filter. Only the helper itself can apply rules.",
        takes=_apply,
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


def _run(parser: Parser) -> None:
    parser.add_argument("--parent-pid", metavar="PID", required=True, help="process id of the application")
    parser.add_argument("--socket", metavar="PATH", help="socket of the helper (default: from the configuration)")
    parser.add_argument("--policy-file", metavar="PATH", help="policy file (default: from the configuration)")
    parser.add_argument("--refresh-seconds", metavar="N", help="resolve names again every N seconds; 0 for never")
    parser.add_argument("--debug", action="store_true", help="log every step")
    add_config(parser)
    parser.set_defaults(run="helper:run")


def _status(parser: Parser) -> None:
    add_config(parser)
    add_json(parser)
    parser.set_defaults(run="helper:run_status")


def _apply(parser: Parser) -> None:
    own = str(os.getpid())
    parser.add_argument(
        "file", metavar="FILE", help="a policy file, such as os_sandbox_allowlist_PID.json in the data folder"
    )
    parser.add_argument("--dry-run", action="store_true", required=True, help="apply nothing; required")
    parser.add_argument("--parent-pid", metavar="PID", default=own, help="process id to use in the names of the rules")
    add_json(parser)
    parser.set_defaults(run="helper:run_apply")


def _add_user(parser: Parser) -> None:
    parser.add_argument(
        "--user", metavar="NAME", help="user that runs the application (default: the current user, unless root)"
    )
    add_json(parser)


def _systemd(parser: Parser) -> None:
    parser.add_argument("--state-dir", metavar="DIR", help="replaces state_dir of the configuration")
    parser.add_argument("--data-dir", metavar="DIR", help="replaces data_dir of the configuration")
    parser.add_argument("--refresh-seconds", metavar="N", help="replaces the time between name resolutions")
    add_config(parser)
    add_json(parser)
    parser.set_defaults(run="helper:run_systemd")
