"""Messages between models, agents and tools, and the limits of an agent."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping


class AssetKind(StrEnum):
    """Kinds of assets. Each is also a ``SubjectKind`` of the same name."""

    TOOL = "tool"
    AGENT = "agent"
    PIPELINE = "pipeline"


KINDS = {kind.value: kind for kind in AssetKind}
"""Kinds by name. Read only."""


class ToolCall(NamedTuple):
    """A tool call that a model requests. Untrusted: a model can invent anything."""

    id: str
    name: str
    arguments: str
    """Arguments as JSON, if the model wrote valid JSON."""


class Message(NamedTuple):
    """One message of a conversation."""

    role: str
    """``system``, ``user``, ``assistant`` or ``tool``."""
    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""
    """Id of the answered call, in a ``tool`` message."""


class ToolOffer(NamedTuple):
    """Description of a tool for a model."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON Schema of an object."""


@runtime_checkable
class Model(Protocol):
    """Continues a conversation.

    It is called inside the guard of the agent that uses it, so the agent must be allowed to access its address.
    """

    async def complete(self, messages: tuple[Message, ...], tools: tuple[ToolOffer, ...]) -> Message:
        """Return the next message of the assistant: a text, or tool calls."""
        ...


class Limits(NamedTuple):
    """Limits of one run of an agent. A declaration can lower the host's limits, not raise them."""

    turns: int = 16
    """Maximum number of model calls."""
    tool_calls: int = 64
    tool_seconds: float = 60.0
    """Timeout of one tool call."""
    seconds: float = 300.0
    """Timeout of the whole run."""

    def lowered(self, other: Limits) -> Limits:
        """Return the smaller of each."""
        return Limits(
            min(self.turns, other.turns),
            min(self.tool_calls, other.tool_calls),
            min(self.tool_seconds, other.tool_seconds),
            min(self.seconds, other.seconds),
        )


class Run(NamedTuple):
    """Result of a run."""

    value: Any
    """Result of a tool or pipeline; final text of an agent."""
    turns: int = 0
    """Number of model calls."""
    tool_calls: int = 0
    denials: tuple[Mapping[str, Any], ...] = ()
    """Denials of the agent's tools; the model saw them, and the run continued."""
