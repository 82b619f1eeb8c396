"""Errors of the command line."""

from __future__ import annotations

from typing import Any

from democrai_sandbox.policy import Problem, SandboxError

from .host import HostRefused


class CommandRefused(HostRefused):
    """A command was not carried out.

    Nothing was changed. ``what`` is the reason, ``fix`` the next action; both are in the text.
    """

    code = "command_refused"
    guidance = """
    Cause: You answered a question with no, a file has unsafe permissions, or a named object does not exist.
    Fix: Follow the text after "to fix it".
    Example:
    $ democrai-sandbox admin token create     # before an administrator exists
    command_refused: no user may decide yet
      to fix it: democrai-sandbox admin create NAME --role super
    See: cli.md
    """


class CommandMisused(CommandRefused):
    """The command line is wrong or incomplete.

    The command did not run and ends with exit status 2.
    """

    code = "command_misused"
    guidance = """
    Cause: An argument is missing, contradicts another or has a wrong value; or a question needs a terminal.
    Fix: Read `--help` of the command. In scripts, add `--yes` to answer the question.
    Example:
    $ democrai-sandbox explain
    command_misused: nothing to explain
      to fix it: give an error line, --code, or --subject with --operation and --target
    See: cli.md
    """


class NodeUnreachable(HostRefused):
    """No node answers at the address.

    The command ends with exit status 3. If it sent a change, it is unknown whether the node made it.
    """

    code = "node_unreachable"
    guidance = """
    Cause: The node does not run or listens elsewhere, or a proxy or another program answers in its place.
    Fix: Start the node with `democrai-sandbox serve`, or name its address with `--url` or `DEMOCRAI_URL`.
    Example:
    $ democrai-sandbox requests list --url http://127.0.0.1:1
    node_unreachable: http://127.0.0.1:1 does not answer as a node: Connection refused (that address is from --url)
    See: cli.md
    """


class ErrorUnknown(SandboxError, LookupError):
    """The line or code to explain is not an error of this package.

    No explanation is guessed from a similar text.
    """

    code = "error_unknown"
    guidance = """
    Cause: The line comes from another program, or the part with the code was cut off.
    Fix: Pass the whole line from the log, or the last line of the traceback. The index of error codes lists all of
    them.
    Example:
    $ democrai-sandbox explain 'something went wrong'
    error_unknown: ...
    See: troubleshooting.md
    """


class NodeRefused(SandboxError, RuntimeError):
    """The node refused the command.

    ``answer`` is the problem document of the node; the text begins with the code in it. ``status`` is the HTTP status.
    """

    code = "node_refused"
    guidance = """
    Cause: The code of the node says why: often the token lacks a scope, or an id does not exist.
    Fix: Look up the code at the beginning of the text with `democrai-sandbox explain --code CODE`.
    Example:
    $ democrai-sandbox requests show 01K9ZZZZZZZZZZZZZZZZZZZZZZ
    external_access_request_unknown: ... 01K9ZZZZZZZZZZZZZZZZZZZZZZ
    See: cli.md
    """

    def __init__(self, status: int, answer: dict[str, Any]) -> None:
        super().__init__(status, answer)
        self.status = status
        self.answer = answer

    def __str__(self) -> str:
        return f"{self.answer.get('code') or self.code}: {self.answer.get('detail') or f'HTTP status {self.status}'}"

    def diagnostics(self) -> str:
        """Return the answer of the node with every problem of the input, and the hint."""
        problems = [str(_problem_of(problem)) for problem in self.answer.get("problems") or ()]
        told = () if problems == [self.answer.get("detail")] else problems  # said already
        lines = [str(self), *(f"  - {problem}" for problem in told)]
        if self.answer.get("hint"):
            lines.append(str(self.answer["hint"]))
        return "\n".join(lines)


def _problem_of(problem: dict[str, Any]) -> Problem:
    return Problem(str(problem.get("pointer", "")), str(problem.get("message", "")), problem.get("suggestion") or None)
