"""What models, agents and their tools say to each other, and what an agent may use up."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping


class AssetKind(StrEnum):
    """What a module can offer. Each is also a ``SubjectKind`` of the same name."""

    TOOL = "tool"
    AGENT = "agent"
    PIPELINE = "pipeline"


KINDS = {kind.value: kind for kind in AssetKind}
"""The kinds by their names. Read only."""


class ToolCall(NamedTuple):
    """A model's wish to have a tool called. Nothing in it can be relied upon: a model makes it up."""

    id: str
    name: str
    arguments: str
    """JSON, if the model got it right."""


class Message(NamedTuple):
    """One message of a conversation."""

    role: str
    """``system``, ``user``, ``assistant`` or ``tool``."""
    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    """Of a ``tool`` message: which call it answers."""


class ToolOffer(NamedTuple):
    """A tool as a model is told of it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of an object."""


@runtime_checkable
class Model(Protocol):
    """Goes on with a conversation.

    It is called inside the guard of the agent that uses it: what it connects to, the agent must be allowed to use.
    """

    async def complete(self, messages: tuple[Message, ...], tools: tuple[ToolOffer, ...]) -> Message:
        """Return the next message of the assistant: a text, or calls of tools."""
        ...


class Limits(NamedTuple):
    """What one run of an agent may use up. A declaration can lower what the host allows, not raise it."""

    turns: int = 16
    """How often the model is asked."""
    tool_calls: int = 64
    tool_seconds: float = 60.0
    """For one call of a tool."""
    seconds: float = 300.0
    """For the whole run."""

    def lowered(self, other: Limits) -> Limits:
        """Return the smaller of each."""
        return Limits(
            min(self.turns, other.turns),
            min(self.tool_calls, other.tool_calls),
            min(self.tool_seconds, other.tool_seconds),
            min(self.seconds, other.seconds),
        )


class Run(NamedTuple):
    """What came of a run."""

    value: Any
    """The result of a tool or pipeline; the text with which an agent ended."""
    turns: int = 0
    """How often models were asked."""
    tool_calls: int = 0
    denials: tuple[Mapping[str, Any], ...] = ()
    """What tools of an agent were refused on the way; the agent was told, and went on."""
