"""Output of a worker on standard output and error: reported by lines, rate-limited, without blocking."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_CHUNK = 64 * 1024
_BURST = 256 * 1024
"""Bytes per stream that are reported in one burst."""
_PER_SECOND = 64 * 1024
_LONGEST_LINE = 8 * 1024
_LINES_KEPT = 20
_REST = 0.05
"""Seconds between two reads of a flooding stream: the writer waits, the host does not."""


class Output:
    """One output stream of a worker, on the running loop."""

    def __init__(self, descriptor: int, emit: Callable[[str], None]) -> None:
        """Read the descriptor; ``emit`` receives whole lines, several at a time."""
        self._loop = asyncio.get_running_loop()
        self._descriptor = descriptor
        self._emit = emit
        self._line = b""
        self._left = float(_BURST)
        self._looked = self._loop.time()
        self._dropped = 0
        self._resting: asyncio.TimerHandle | None = None
        self._open = True
        self.last: deque[str] = deque(maxlen=_LINES_KEPT)
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._readable)

    def drain(self) -> None:
        """Read everything that the pipe holds, after the process has ended."""
        for _ in range(32):
            if not self._open or not self._read():
                return

    def close(self) -> None:
        """Stop reading, and report the last line even without a line end."""
        self._stop()
        if self._line:
            self._pass_on(self._line + b"\n")
            self._line = b""
        self._tell_dropped()

    def _stop(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._descriptor)
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None

    def _readable(self) -> None:
        self._read()
        if self._left <= 0 and self._open:
            self._loop.remove_reader(self._descriptor)
            self._resting = self._loop.call_later(_REST, self._go_on)

    def _go_on(self) -> None:
        self._resting = None
        self._loop.add_reader(self._descriptor, self._readable)

    def _read(self) -> bool:
        """Read once; False when no more data is available."""
        try:
            data = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._stop()
            return False
        whole, newline, rest = (self._line + data).rpartition(b"\n")
        if newline:
            self._pass_on(whole + newline)
        self._line = rest
        if len(rest) > _LONGEST_LINE:
            self._pass_on(rest + b"\n")
            self._line = b""
        return True

    def _pass_on(self, data: bytes) -> None:
        now = self._loop.time()
        self._left = min(float(_BURST), self._left + (now - self._looked) * _PER_SECOND)
        self._looked = now
        if self._left < len(data):
            self._dropped += len(data)
            self._left = min(self._left, 0.0)
            return
        self._left -= len(data)
        self._tell_dropped()
        text = data.decode("utf-8", "backslashreplace")
        self.last.extend(line[:_LONGEST_LINE] for line in text.splitlines()[-_LINES_KEPT:])
        self._emit(text)

    def _tell_dropped(self) -> None:
        """Report once, after a flood, how many bytes were dropped."""
        if self._dropped:
            self._emit(f"... {self._dropped} bytes of output were dropped\n")
            self._dropped = 0
