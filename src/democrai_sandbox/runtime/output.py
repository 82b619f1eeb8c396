"""Output of extensions: kept per subject, bounded, for the host to read. The host's own output is not affected."""

from __future__ import annotations

import io
import sys
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from democrai_sandbox.errors import SandboxError
from democrai_sandbox.guard import is_guarded

from . import doors

if TYPE_CHECKING:
    from democrai_sandbox.guard.views import RawView

_MOST_CHARACTERS = 64 * 1024
_MOST_AT_ONCE = 8 * 1024


class Printed(NamedTuple):
    """Latest output of a subject, and the number of dropped characters."""

    text: str
    dropped: int
    """Number of dropped characters."""


class Output:
    """Latest output of each subject."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[str, deque[str]] = {}
        self._sizes: dict[str, int] = {}
        self._dropped: dict[str, int] = {}

    def write(self, view: RawView | None, text: str, left_out: int = 0) -> None:
        """Store the output of guarded code: a service of the runtime."""
        if view is None or type(text) is not str:
            return
        label = view.labels[-1]
        self.add(label, text[:_MOST_AT_ONCE], left_out + max(0, len(text) - _MOST_AT_ONCE))

    def add(self, label: str, text: str, dropped: int = 0) -> None:
        """Store output of a subject; drop the oldest beyond the limit."""
        with self._lock:
            kept = self._kept.setdefault(label, deque())
            kept.append(text)
            size = self._sizes.get(label, 0) + len(text)
            while size > _MOST_CHARACTERS:
                gone = len(kept.popleft())
                size -= gone
                dropped += gone
            self._sizes[label] = size
            self._dropped[label] = self._dropped.get(label, 0) + dropped

    def of(self, label: str) -> Printed:
        """Return the output of a subject."""
        with self._lock:
            return Printed("".join(self._kept.get(label, ())), self._dropped.get(label, 0))


def divert_output() -> None:
    """Replace ``sys.stdout`` and ``sys.stderr`` by streams that separate subjects. The host calls this once."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, _Diverted):
            setattr(sys, name, _Diverted(stream))


class _Diverted(io.TextIOBase):
    """Stream that passes output of the host through, and sends output of guarded code to the runtime."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if not is_guarded():
            return self._stream.write(text)
        exact = text if type(text) is str else "".join(text)
        with suppress(SandboxError):  # a print must not fail because its output is not stored
            doors.call("output.write", exact[:_MOST_AT_ONCE], max(0, len(exact) - _MOST_AT_ONCE))
        return len(exact)

    def flush(self) -> None:
        if not is_guarded():
            self._stream.flush()

    def isatty(self) -> bool:
        return not is_guarded() and self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    @property
    def errors(self) -> str | None:  # type: ignore[override]
        return self._stream.errors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
