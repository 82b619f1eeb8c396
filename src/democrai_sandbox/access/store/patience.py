"""A connection to PostgreSQL that does not wait forever for a server that stopped in the middle of something.

The server ends statements that take too long, and the kernel notices a machine that is gone. Neither notices a server
that hangs with its connections open; then a guarded program would hang in the middle of a file operation.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from collections.abc import Generator


class PatientConnection(psycopg.Connection[Any]):
    """Gives up, and closes itself, when an answer does not come in time."""

    patience: float | None = 6
    """Seconds; more than the server takes to end a statement by itself. None to wait for as long as it takes."""

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        """Go through what is to be waited for, as psycopg does, until time is up."""
        if self.patience is not None:
            gen = self._bounded(gen, time.monotonic() + self.patience)
        return super().wait(gen, *args, **kwargs)

    def _bounded(self, gen: Generator[Any, Any, Any], deadline: float) -> Generator[Any, Any, Any]:
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > deadline:
                    self.pgconn.finish()
                    raise psycopg.OperationalError("the server does not answer")
                wanted = gen.send(ready)
        except StopIteration as done:
            return done.value
