"""Models as agents use them: messages, tool calls, the limits of a run, and the models of the host by name."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from democrai_sandbox.errors.services import ModelFailed
from democrai_sandbox.policy import nearest
from democrai_sandbox.policy.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterator


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


class AgentLimits(NamedTuple):
    """Limits of one run of an agent. A declaration can lower the host's limits, not raise them."""

    turns: int = 16
    """Maximum number of model calls."""
    tool_calls: int = 64
    tool_seconds: float = 60.0
    """Timeout of one tool call."""
    seconds: float = 300.0
    """Timeout of the whole run."""

    def lowered(self, other: AgentLimits) -> AgentLimits:
        """Return the smaller of each."""
        return AgentLimits._make(map(min, self, other))


class AssetRun(NamedTuple):
    """Result of a run."""

    value: Any
    """Result of a tool or pipeline; final text of an agent."""
    turns: int = 0
    """Number of model calls."""
    tool_calls: int = 0
    denials: tuple[Mapping[str, Any], ...] = ()
    """Denials of the agent's tools; the model saw them, and the run continued."""


class KnownModels(Mapping[str, "Model"]):
    """Models by name: fixed ones, and others that can be replaced together from any thread."""

    def __init__(self, fixed: Mapping[str, Model] | None = None) -> None:
        self._fixed = MappingProxyType(dict(fixed or {}))
        self._found: Mapping[str, Model] = self._fixed

    def exchange(self, others: Mapping[str, Model]) -> None:
        """Replace all models that are not fixed; a fixed model takes precedence over another with its name."""
        self._found = MappingProxyType({**others, **self._fixed})

    def __getitem__(self, name: str) -> Model:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


class NamedModel:
    """Stands in for a model in an agent, and looks the model up by name for each call.

    So a change takes effect immediately. An agent whose model is missing fails when it asks; its module works.
    """

    def __init__(self, name: str, known: Mapping[str, Model]) -> None:
        self._name = name
        self._known = known

    async def complete(self, messages: tuple[Message, ...], tools: tuple[ToolOffer, ...]) -> Message:
        """Ask the model, or raise an error that names the missing model."""
        found = self._known.get(self._name)
        if found is None:
            close = nearest(self._name, tuple(self._known))
            hint = f", did you mean {close!r}?" if close else ""
            fix = "add it with democrai-sandbox models add, or to extensions.models in the configuration of the host"
            what = f"the host has no model {shown(self._name)}{hint}"
            raise ModelFailed(f"{what}: {fix}, or name another model in the agent")
        return await found.complete(messages, tools)
