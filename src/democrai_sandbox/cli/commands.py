"""Every command of ``democrai-sandbox``. Nothing is imported before it is asked for."""

from __future__ import annotations

from collections import namedtuple

PROGRAM = "democrai-sandbox"
Command = namedtuple("Command", ("name", "help"))  # noqa: PYI024 - typing is slow to import
"""A first word of the command line; what it takes, the module of this name in ``arguments`` says."""

COMMANDS = (
    Command("serve", "serve the console and the API"),
    Command("run", "run a script, a module or a program under a policy, once"),
    Command("record", "run something, write down what it reaches for, and propose the smallest manifest"),
    Command("explain", "say why something is allowed or not, from an error line or a question"),
    Command("manifest", "check, lint and compare manifests, and print their schema"),
    Command("shadow", "try a candidate manifest beside the present one, and count the differences"),
    Command("requests", "list, show, approve and deny what extensions ask for"),
    Command("approvals", "list and revoke what was approved"),
    Command("extensions", "list extensions, install engines and extractors, and change their settings"),
    Command("mcp", "list, register, change and remove MCP servers"),
    Command("models", "list, add, change and remove models for agents"),
    Command("audit", "follow, export and verify the audit"),
    Command("status", "ask a node what it enforces now"),
    Command("doctor", "try what this machine and this configuration can enforce"),
    Command("config", "show the configuration, and where each value comes from"),
    Command("db", "check and upgrade the database, and rotate its keys"),
    Command("helper", "run the privileged helper, or print what installs it"),
    Command("admin", "people who decide, and tokens for programs"),
)

_HEAD = f"""\
usage: {PROGRAM} [--help] [--version] command ...

Run extensions under a sandbox, and decide what they may reach beyond it.

"""
_TAIL = f"""
{PROGRAM} COMMAND --help says what a command takes.

exit status: 0 done, 1 refused or failed, 2 wrong command line, 3 node or database does not answer, 4 conflict.
Data goes to standard output, talk to standard error; --json gives data for programs.
"""


def overview() -> str:
    """Return what ``--help`` says. Made by hand: the parser of all commands would take longer than Python itself."""
    return _HEAD + "".join(f"  {command.name:<11}{command.help}\n" for command in COMMANDS) + _TAIL
