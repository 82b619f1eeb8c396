"""What happens to media, line by line, when ``DEMOCRAI_DEBUG_MEDIA_FLOW=1`` is set for the host."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from contextlib import suppress

SWITCH = "DEMOCRAI_DEBUG_MEDIA_FLOW"
_OFF = frozenset({"", "0", "false", "no", "off"})
_QUERY = re.compile(r"[?#].*", re.DOTALL)
_MASKED_DIGITS = 8


class FlowLog:
    """Prints the flow, or nothing. Session keys and query strings, where tokens travel, are masked."""

    def __init__(self, *, enabled: bool | None = None) -> None:
        """Look at the environment once, in the host's own code; guarded code cannot change it there anyway."""
        self.enabled = os.environ.get(SWITCH, "").strip().lower() not in _OFF if enabled is None else enabled

    def __call__(self, event: str, **details: object) -> None:
        """Print one line on the standard error: what happened, and with what."""
        if self.enabled:
            parts = (f"{name}={_shown(name, value)!r}" for name, value in details.items())
            with suppress(OSError, ValueError):  # whoever reads along may go away
                print("[MEDIA_FLOW]", event, *parts, file=sys.stderr, flush=True)  # noqa: T201 - it is there for that


def masked_key(key: object) -> str:
    """Return a text by which two lines about one session can be told to belong together, and no more."""
    if key in (None, ""):
        return ""
    return f"***{hashlib.sha256(str(key).encode('utf-8', 'surrogatepass')).hexdigest()[:_MASKED_DIGITS]}"


def masked_url(url: str) -> str:
    """Return a URL without what may be secret in it."""
    return _QUERY.sub("?***", url)


def _shown(name: str, value: object) -> object:
    if name == "session":
        return masked_key(value)
    return masked_url(value) if isinstance(value, str) else value
