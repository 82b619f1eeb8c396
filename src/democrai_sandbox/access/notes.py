"""Records that checks collect and the node writes later: used decisions and failed checks."""

from __future__ import annotations

import logging
import threading
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import ExternalAccessCheckFailed

from .values import AuditAction

if TYPE_CHECKING:
    from .node import AccessNode

_log = logging.getLogger("democrai_sandbox.access")
_FAILURES_KEPT = 100
_LONGEST = 1000


class Notes:
    """Records in memory until a chore of the node writes them, so that a check does not wait for the database."""

    def __init__(self, node: AccessNode) -> None:
        """Register the writers as chores of the node."""
        self._node = node
        self._uses: dict[str, int] = {}
        self._failures: deque[dict[str, Any]] = deque(maxlen=_FAILURES_KEPT)
        self._lock = threading.Lock()
        node.add_chore(self.write_uses)
        node.add_chore(self.write_failures)

    def used(self, decision_id: str, now: int) -> None:
        """Note that a decision answered a check, with the time in microseconds since the epoch."""
        self._uses[decision_id] = now

    def failed(self, subject: str, target: str, error: ExternalAccessCheckFailed) -> None:
        """Log a failed check and keep it for the audit log until it can be written."""
        cause = str(error.__cause__ or error)
        _log.error("external access could not be checked for %s: %s", subject, cause)
        error.is_logged = True
        with self._lock:
            self._failures.append({"subject": subject, "target": target[:_LONGEST], "error": cause[:_LONGEST]})

    def write_uses(self) -> None:
        """Store when decisions were last used."""
        if not self._uses:
            return
        uses, self._uses = self._uses, {}
        self._node.store.note_use({key: datetime.fromtimestamp(at / 1e6, UTC) for key, at in uses.items()})

    def write_failures(self) -> None:
        """Write the failures to the audit log; keep those that cannot be written yet."""
        with self._lock:
            waiting = list(self._failures)
            self._failures.clear()
        for index, what in enumerate(waiting):
            try:
                self._node.store.record(AuditAction.CHECK_FAILED, actor="system", now=self._node.clock(), after=what)
            except ExternalAccessCheckFailed:
                with self._lock:
                    self._failures.extendleft(reversed(waiting[index:]))
                raise
