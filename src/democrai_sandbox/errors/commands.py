"""What stops a command of the command line."""

from __future__ import annotations

from typing import Any

from democrai_sandbox.policy import Problem, SandboxError

from .host import HostRefused


class CommandRefused(HostRefused):
    """A command of the command line was not carried out. Nothing was changed."""

    code = "command_refused"


class CommandMisused(CommandRefused):
    """A command cannot be carried out as it was given: its arguments, or a question that nobody can answer."""

    code = "command_misused"


class NodeUnreachable(HostRefused):
    """No node answers at the address, or what answers is none. Whether a change that was sent was made is not known."""

    code = "node_unreachable"


class ErrorUnknown(SandboxError, LookupError):  # noqa: N818 - it says what happened
    """A line, or a code, that is none of our errors: nothing can be said about it."""

    code = "error_unknown"


class NodeRefused(SandboxError, RuntimeError):  # noqa: N818 - it says what happened
    """A node said no; ``answer`` is its problem document, whose code is that of the error there."""

    code = "node_refused"

    def __init__(self, status: int, answer: dict[str, Any]) -> None:
        """Take the HTTP status and the problem document."""
        super().__init__(status, answer)
        self.status = status
        self.answer = answer

    def __str__(self) -> str:
        """Say what the node said."""
        return f"{self.answer.get('code') or self.code}: {self.answer.get('detail') or f'HTTP status {self.status}'}"

    def diagnostics(self) -> str:
        """Return what the node said, every problem with the input, and the hint."""
        problems = [str(_told(problem)) for problem in self.answer.get("problems") or ()]
        told = () if problems == [self.answer.get("detail")] else problems  # said already
        lines = [str(self), *(f"  - {problem}" for problem in told)]
        if self.answer.get("hint"):
            lines.append(str(self.answer["hint"]))
        return "\n".join(lines)


def _told(problem: dict[str, Any]) -> Problem:
    return Problem(str(problem.get("pointer", "")), str(problem.get("message", "")), problem.get("suggestion") or None)
