"""Models of the host by name.

An agent stores the name, and the model is looked up for each call: an added, changed or removed model takes effect
immediately. An agent whose model is missing fails when it asks; the rest of its module works.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from democrai_sandbox.errors.ai import ModelFailed
from democrai_sandbox.policy import nearest
from democrai_sandbox.policy.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .interface import Message, Model, ToolOffer


class KnownModels(Mapping[str, "Model"]):
    """Models by name: fixed ones, and others that can be replaced together from any thread."""

    def __init__(self, fixed: Mapping[str, Model] | None = None) -> None:
        """Take the fixed models."""
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
    """Stands in for a model in an agent, and looks the model up by name for each call."""

    def __init__(self, name: str, known: Mapping[str, Model]) -> None:
        """Take the name that the agent uses, and the known models."""
        self._name = name
        self._known = known

    async def complete(self, messages: tuple[Message, ...], tools: tuple[ToolOffer, ...]) -> Message:
        """Ask the model, or raise an error that names the missing model."""
        found = self._known.get(self._name)
        if found is None:
            raise ModelFailed(self._why())
        return await found.complete(messages, tools)

    def _why(self) -> str:
        close = nearest(self._name, tuple(self._known))
        hint = f", did you mean {close!r}?" if close else ""
        fix = "add it with democrai-sandbox models add, or to extensions.models in the configuration of the host"
        return f"the host has no model {shown(self._name)}{hint}: {fix}, or name another model in the agent"
