"""What the helper says on its standard error: a line for what matters, and the flow when that is asked for."""

from __future__ import annotations

import json
import os
import select
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .answers import Refused

_STDERR = 2
_LONGEST = select.PIPE_BUF - 1
"""What a pipe takes whole when it takes anything."""


class Journal:
    """Writes lines. The reader may have gone, and that must never keep the helper from cleaning up."""

    def __init__(self, *, debug: bool = False) -> None:
        self.debug = debug
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """Write one line about something that the operator may want to know."""
        self._write(f"democrai-os-helper[{os.getpid()}]: {text}")

    def flow(self, event: str, **details: object) -> None:
        """Write one line of the flow, when that was asked for."""
        if self.debug:
            parts = (f"{name}={value!r}" for name, value in details.items())
            self._write(" ".join(("[OS_SANDBOX_FLOW]", f"helper.{event}", *parts)))

    def last_word(self, refused: Refused) -> None:
        """Write why the helper ends: as a sentence for people, and as the last line for whoever started it."""
        self.say(str(refused))
        self._write(json.dumps(refused.answer()))

    def _write(self, text: str) -> None:
        line = text.replace("\r", " ").replace("\n", " ").encode("utf-8", "backslashreplace")[:_LONGEST] + b"\n"
        with self._lock, suppress(OSError):
            # Whoever holds the other end of a full pipe and does not read it would hold the helper.
            poll = select.poll()
            poll.register(_STDERR, select.POLLOUT)
            if poll.poll(0):
                os.write(_STDERR, line)
