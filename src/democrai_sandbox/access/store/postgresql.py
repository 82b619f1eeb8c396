"""PostgreSQL connection with a timeout for a server that hangs.

The server ends statements that take too long, and the kernel detects a lost machine. Neither detects a server that
hangs with open connections; a guarded program would then hang in the middle of a file operation.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from collections.abc import Generator


class TimedConnection(psycopg.Connection[Any]):
    """Connection that raises and closes itself if no answer arrives in time."""

    timeout: float | None = 6
    """Timeout in seconds, longer than the server's statement timeout. None disables it."""

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        """Wait like psycopg, with a deadline."""
        if self.timeout is not None:
            gen = self._bounded(gen, time.monotonic() + self.timeout)
        return super().wait(gen, *args, **kwargs)

    def _bounded(self, gen: Generator[Any, Any, Any], deadline: float) -> Generator[Any, Any, Any]:
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > deadline:
                    self.pgconn.finish()
                    raise psycopg.OperationalError("the server does not respond")
                wanted = gen.send(ready)
        except StopIteration as done:
            return done.value
