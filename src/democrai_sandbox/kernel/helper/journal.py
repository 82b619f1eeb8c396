"""Output of the helper on standard error: important events, and each step with ``--debug``."""

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
"""Maximum size of an atomic write to a pipe."""


class Journal:
    """Output lines. A reader that has ended must never stop the helper from cleaning up."""

    def __init__(self, *, debug: bool = False) -> None:
        self.debug = debug
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        """Write one line for the operator."""
        self._write(f"democrai-os-helper[{os.getpid()}]: {text}")

    def flow(self, event: str, **details: object) -> None:
        """Write one debug line, if enabled."""
        if self.debug:
            parts = (f"{name}={value!r}" for name, value in details.items())
            self._write(" ".join(("[OS_SANDBOX_FLOW]", f"helper.{event}", *parts)))

    def last_word(self, refused: Refused) -> None:
        """Write the reason for the helper's end: as a sentence, and in the last line as JSON."""
        self.say(str(refused))
        self._write(json.dumps(refused.answer()))

    def _write(self, text: str) -> None:
        line = text.replace("\r", " ").replace("\n", " ").encode("utf-8", "backslashreplace")[:_LONGEST] + b"\n"
        with self._lock, suppress(OSError):
            # A reader that does not empty its pipe must not block the helper.
            poll = select.poll()
            poll.register(_STDERR, select.POLLOUT)
            if poll.poll(0):
                os.write(_STDERR, line)
