"""Lines that the kernel layer writes: those of the helper and its keeper, and the flow.

The flow is what happens, step by step, when ``DEMOCRAI_DEBUG_OS_SANDBOX_FLOW=1`` is set for the host.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import threading
from contextlib import suppress

SWITCH = "DEMOCRAI_DEBUG_OS_SANDBOX_FLOW"
_OFF = frozenset({"", "0", "false", "no", "off"})
_SECRETS = frozenset({"session", "session_key"})
_MASKED_DIGITS = 8


_logging = threading.Event()


def log_lines() -> None:
    """Have lines go to the log, which has one format for all of it, and no longer to the standard error."""
    _logging.set()


def write_line(line: str, source: str) -> None:
    """Write a line of ``helper`` or ``flow``."""
    if _logging.is_set():
        logging.getLogger(f"democrai_sandbox.kernel.{source}").info("%s", line)
        return
    with suppress(OSError, ValueError):  # the reader may go away
        print(line, file=sys.stderr, flush=True)  # noqa: T201 - it is there for that


class FlowLog:
    """Prints the flow, or nothing. Session keys are masked wherever they are named."""

    switch = SWITCH
    label = "[OS_SANDBOX_FLOW]"

    def __init__(self, *, enabled: bool | None = None) -> None:
        """Look at the environment once, in the host's own code; guarded code cannot change it there anyway."""
        self.enabled = os.environ.get(self.switch, "").strip().lower() not in _OFF if enabled is None else enabled

    def __call__(self, event: str, **details: object) -> None:
        """Write one line: what happened, and with what."""
        if self.enabled:
            parts = (f"{name}={self.shown(name, value)!r}" for name, value in details.items())
            write_line(" ".join((self.label, event, *parts)), "flow")

    def shown(self, name: str, value: object) -> object:
        """Return a detail as it is printed."""
        return masked_key(value) if name in _SECRETS else value


def masked_key(key: object) -> str:
    """Return a text by which two lines about one session can be told to belong together, and no more."""
    if key in (None, ""):
        return ""
    return f"***{hashlib.sha256(str(key).encode('utf-8', 'surrogatepass')).hexdigest()[:_MASKED_DIGITS]}"
