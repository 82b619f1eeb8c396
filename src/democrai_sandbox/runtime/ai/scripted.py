"""A model that says what it was told to say: for tests, and for trying an agent without a network."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .errors import ModelFailed
from .interface import Message, ToolCall, ToolOffer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Line = Message | str | Callable[[tuple[Message, ...]], "Message | str"]


class ScriptedModel:
    """Answers the first time with the first line of its script, the second time with the second, and so on.

    A line is a text, a message, or a function that makes one of the conversation so far. Where it is in the script it
    reads from the conversation, so many agents may use one model at the same time.
    """

    def __init__(self, script: Iterable[Line]) -> None:
        """Take the lines."""
        self._script = tuple(script)

    async def complete(self, messages: tuple[Message, ...], tools: tuple[ToolOffer, ...]) -> Message:
        """Return the next line."""
        del tools
        turn = sum(message.role == "assistant" for message in messages)
        if turn >= len(self._script):
            raise ModelFailed(f"the script has {len(self._script)} lines, and one more was asked for")
        line = self._script[turn]
        said = line if isinstance(line, str | Message) else line(messages)
        return Message("assistant", said) if isinstance(said, str) else said


def calls(*wanted: tuple[str, Any]) -> Message:
    """Return a message that wants tools called, each given by its name and its arguments."""
    made = (
        ToolCall(f"call_{number}", name, arguments if isinstance(arguments, str) else json.dumps(arguments))
        for number, (name, arguments) in enumerate(wanted)
    )
    return Message("assistant", "", tuple(made))
