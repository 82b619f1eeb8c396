"""What is noted during checks and written later: which decisions were used, and which checks failed."""

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
    """Keeps notes in memory until a chore of the node writes them: a check must not wait for that."""

    def __init__(self, node: AccessNode) -> None:
        """Have the notes written once per poll."""
        self._node = node
        self._uses: dict[str, int] = {}
        self._failures: deque[dict[str, Any]] = deque(maxlen=_FAILURES_KEPT)
        self._lock = threading.Lock()
        node.add_chore(self.write_uses)
        node.add_chore(self.write_failures)

    def used(self, decision_id: str, now: int) -> None:
        """Note that a decision answered a check, at a microsecond since the epoch."""
        self._uses[decision_id] = now

    def failed(self, subject: str, target: str, error: ExternalAccessCheckFailed) -> None:
        """Log a failure of the check itself, and keep it for the audit until it can be written."""
        cause = str(error.__cause__ or error)
        _log.error("external access could not be checked for %s: %s", subject, cause)
        error.is_logged = True
        with self._lock:
            self._failures.append({"subject": subject, "target": target[:_LONGEST], "error": cause[:_LONGEST]})

    def write_uses(self) -> None:
        """Write when decisions were last used."""
        if not self._uses:
            return
        uses, self._uses = self._uses, {}
        self._node.store.note_use({key: datetime.fromtimestamp(at / 1e6, UTC) for key, at in uses.items()})

    def write_failures(self) -> None:
        """Write the failures to the audit; those that cannot be written yet are kept."""
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
