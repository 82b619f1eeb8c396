"""Output lines of the kernel layer: from the helper, its keeper, and the debug log.

The debug log shows each step when ``DEMOCRAI_DEBUG_OS_SANDBOX_FLOW=1`` is set for the host.
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
    """Send the lines to the log instead of standard error."""
    _logging.set()


def write_line(line: str, source: str) -> None:
    """Write a line from ``helper`` or ``flow``."""
    if _logging.is_set():
        logging.getLogger(f"democrai_sandbox.kernel.{source}").info("%s", line)
        return
    with suppress(OSError, ValueError):  # the reader may have closed it
        print(line, file=sys.stderr, flush=True)  # noqa: T201 - intended output


class FlowLog:
    """Debug log of the kernel layer. Session keys are masked."""

    switch = SWITCH
    label = "[OS_SANDBOX_FLOW]"

    def __init__(self, *, enabled: bool | None = None) -> None:
        """Read the switch from the environment once; guarded code cannot change it."""
        self.enabled = os.environ.get(self.switch, "").strip().lower() not in _OFF if enabled is None else enabled

    def __call__(self, event: str, **details: object) -> None:
        """Write one line with the event and its details."""
        if self.enabled:
            parts = (f"{name}={self.shown(name, value)!r}" for name, value in details.items())
            write_line(" ".join((self.label, event, *parts)), "flow")

    def shown(self, name: str, value: object) -> object:
        """Return a detail as it is printed."""
        return masked_key(value) if name in _SECRETS else value


def masked_key(key: object) -> str:
    """Return a short hash that identifies lines of the same session without revealing the key."""
    if key in (None, ""):
        return ""
    return f"***{hashlib.sha256(str(key).encode('utf-8', 'surrogatepass')).hexdigest()[:_MASKED_DIGITS]}"
