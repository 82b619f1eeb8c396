"""Models that agents name and the host does not have: the agent fails when it runs, and its module works otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from democrai_sandbox.policy import nearest
from democrai_sandbox.policy.text import shown

from .errors import ModelFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .interface import Message, Model, ToolOffer


class MissingModel:
    """Takes the place of a model; asking it raises what to do."""

    def __init__(self, name: str, known: Mapping[str, Model]) -> None:
        """Take the name that the agent gives, and the models that there are."""
        close = nearest(name, known)
        hint = f", did you mean {close!r}?" if close else ""
        fix = "add it to extensions.models in the configuration of the host and restart it"
        self._why = f"the host has no model {shown(name)}{hint}: {fix}, or name another model in the agent"

    async def complete(self, messages: tuple[Message, ...], tools: tuple[ToolOffer, ...]) -> Message:
        """Say what is missing."""
        del messages, tools
        raise ModelFailed(self._why)


def model_named(name: str, known: Mapping[str, Model]) -> Model:
    """Return the model of a name, or one that says that it is missing."""
    return known.get(name) or MissingModel(name, known)
