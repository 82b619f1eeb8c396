"""What ``democrai-sandbox helper`` takes."""

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
        help="be the helper of a process, in the foreground",
        description="Be the helper of a process: apply its allowlist, and end with it. Needs root, or sudo without a "
        "question. serve starts one by itself; this is for process managers and for finding faults.",
        takes=_run,
    )
    verbs.add_parser(
        "status",
        help="say which helpers run, and what they were given",
        description="Say which helpers run for this configuration, what they were given, and, as root, which rules "
        "are in the packet filter. Changes nothing.",
        takes=_status,
    )
    verbs.add_parser(
        "apply",
        help="print the rules that a policy file comes to",
        description="Read a policy file as the helper does, resolve its names, and print the transactions for the "
        "packet filter. Applying is the helper's alone, for its application.",
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
    parser.add_argument("--parent-pid", metavar="PID", required=True, help="the application")
    parser.add_argument("--socket", metavar="PATH", help="where it listens; else where the configuration puts it")
    parser.add_argument("--policy-file", metavar="PATH", help="the allowlist; else where the configuration puts it")
    parser.add_argument("--refresh-seconds", metavar="N", help="resolve names again every N seconds; 0 never does")
    parser.add_argument("--debug", action="store_true", help="print the flow")
    add_config(parser)
    parser.set_defaults(run="helper:run")


def _status(parser: Parser) -> None:
    add_config(parser)
    add_json(parser)
    parser.set_defaults(run="helper:run_status")


def _apply(parser: Parser) -> None:
    own = str(os.getpid())
    parser.add_argument(
        "file", metavar="FILE", help="a policy file, as os_sandbox_allowlist_PID.json in the data folder"
    )
    parser.add_argument("--dry-run", action="store_true", required=True, help="apply nothing; must be given")
    parser.add_argument("--parent-pid", metavar="PID", default=own, help="for rules named for this process")
    add_json(parser)
    parser.set_defaults(run="helper:run_apply")


def _add_user(parser: Parser) -> None:
    parser.add_argument("--user", metavar="NAME", help="to whom the application belongs; you, unless you are root")
    add_json(parser)


def _systemd(parser: Parser) -> None:
    parser.add_argument("--state-dir", metavar="DIR", help="another state_dir than the configuration has")
    parser.add_argument("--data-dir", metavar="DIR", help="another data_dir than the configuration has")
    parser.add_argument("--refresh-seconds", metavar="N", help="another time between resolutions of names")
    add_config(parser)
    add_json(parser)
    parser.set_defaults(run="helper:run_systemd")
