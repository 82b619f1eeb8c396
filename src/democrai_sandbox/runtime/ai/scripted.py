"""Model with predefined answers, for tests and for trying an agent without a network."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors.services import ModelFailed

from .model import Message, ToolCall, ToolOffer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Line = Message | str | Callable[[tuple[Message, ...]], "Message | str"]


class ScriptedModel:
    """Answers each turn with the next line of its script.

    A line is a text, a message, or a function that makes one from the conversation so far. The position in the script
    is derived from the conversation, so many agents can share one model.
    """

    def __init__(self, script: Iterable[Line]) -> None:
        self._script = tuple(script)

    async def complete(self, messages: tuple[Message, ...], tools: tuple[ToolOffer, ...]) -> Message:
        """Return the next line."""
        del tools
        turn = sum(message.role == "assistant" for message in messages)
        if turn >= len(self._script):
            raise ModelFailed(f"the script has only {len(self._script)} lines; add one")
        line = self._script[turn]
        said = line if isinstance(line, str | Message) else line(messages)
        return Message("assistant", said) if isinstance(said, str) else said


def calls(*wanted: tuple[str, Any]) -> Message:
    """Return a message that requests tool calls, given as names and arguments."""
    made = (
        ToolCall(f"call_{number}", name, arguments if isinstance(arguments, str) else json.dumps(arguments))
        for number, (name, arguments) in enumerate(wanted)
    )
    return Message("assistant", "", tuple(made))
