"""Table of all commands of ``democrai-sandbox``. Command modules are imported on demand."""

from __future__ import annotations

from collections import namedtuple

PROGRAM = "democrai-sandbox"
Command = namedtuple("Command", ("name", "arguments", "help"))  # noqa: PYI024 - typing is slow to import
"""A command; ``<name>_arguments`` in this module of ``arguments`` adds its arguments."""

COMMANDS = (
    Command("serve", "host", "serve the console and the API"),
    Command("run", "run", "run a script, a module or a program once under a policy"),
    Command("record", "run", "run code, record its accesses, and propose the smallest manifest"),
    Command("explain", "requests", "explain an error line, a code, or a planned access"),
    Command("manifest", "extensions", "check, lint and compare manifests, and print their schema"),
    Command("shadow", "requests", "compare a candidate manifest with the current one while extensions run"),
    Command("requests", "requests", "list, show, approve and deny access requests"),
    Command("approvals", "requests", "list and revoke approvals and denials"),
    Command("extensions", "extensions", "list extensions, install engines and extractors, and change their settings"),
    Command("mcp", "extensions", "list, register, change and remove MCP servers"),
    Command("models", "extensions", "list, add, change and remove models for agents"),
    Command("audit", "requests", "show, export and verify the audit log"),
    Command("status", "host", "show what a node enforces now"),
    Command("doctor", "host", "test what this machine and this configuration can enforce"),
    Command("config", "host", "show and check the configuration"),
    Command("db", "host", "check, upgrade and back up the database, and rotate its keys"),
    Command("helper", "host", "run or list the privileged helper, and print its installation files"),
    Command("admin", "host", "manage users and API tokens"),
)

_HEAD = f"""\
usage: {PROGRAM} [--help] [--version] command ...

Run extensions in a sandbox, and decide about their access requests.

"""
_TAIL = f"""
{PROGRAM} COMMAND --help shows the arguments of a command.

exit status: 0 success, 1 refused or failed, 2 wrong command line, 3 node or database does not answer, 4 conflict.
Results go to standard output, messages to standard error; --json prints results as JSON.
"""


def overview() -> str:
    """Return the text of ``--help``. Building the parsers of all commands would take longer than starting Python."""
    return _HEAD + "".join(f"  {command.name:<11}{command.help}\n" for command in COMMANDS) + _TAIL
