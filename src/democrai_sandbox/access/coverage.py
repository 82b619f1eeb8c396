"""Match of a decision about one target with a request for another."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from democrai_sandbox.policy import InvalidInputError

from .snapshot import Snapshot
from .targets import Reader
from .values import Changes, DecisionRow, Effect, Scope

if TYPE_CHECKING:
    from collections.abc import Iterable

    from democrai_sandbox.policy import Subject

    from .targets import Wanted
    from .values import AccessTuple, Decision

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def covers(broad: AccessTuple, narrow: AccessTuple) -> bool:
    """Return whether a decision about ``broad`` answers a request for ``narrow``, matched as in every check."""
    return Covering(broad).covers(narrow)


class Covering:
    """Decision that is compared with many requests."""

    def __init__(self, broad: AccessTuple, reader: Reader | None = None) -> None:
        """Prepare the decision. Decisions that are compared with the same requests can share a ``reader``."""
        self._broad = broad
        self._snapshot = Snapshot().changed(Changes(1, (_row(broad),)))
        self._reader = reader or Reader()

    def covers(self, narrow: AccessTuple) -> bool:
        """Return whether the decision answers a request."""
        broad = self._broad
        if broad == narrow:
            return True
        if broad.subject != narrow.subject or broad.resource_type != narrow.resource_type:
            return False
        try:
            wanted = self._reader.read(narrow.resource_type, narrow.operation, narrow.target)
        except InvalidInputError:
            return False  # a pattern is covered only by itself
        return self._snapshot.find(_who(narrow.subject), wanted, "", 0) is not None


def answering(decisions: Iterable[Decision], wanted: Wanted, session_key: str, now: datetime) -> Decision | None:
    """Return the decision in force that answers a question, matched as in every check."""
    known = {decision.id: decision for decision in decisions}
    if not known:
        return None
    subject = next(iter(known.values())).access.subject
    snapshot = Snapshot().changed(Changes(1, tuple(map(_row_of, known.values()))))
    found = snapshot.find(_who(subject), wanted, session_key, _micros(now))
    return None if found is None else known[found.decision_id]


def _row_of(decision: Decision) -> DecisionRow:
    return _row(decision.access)._replace(
        id=decision.id,
        effect=decision.effect,
        scope=decision.scope,
        session_key=decision.session_key,
        expires_at=None if decision.expires_at is None else _micros(decision.expires_at),
    )


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _who(subject: Subject) -> tuple[str, str]:
    return str(subject.kind), subject.name


def _row(access: AccessTuple) -> DecisionRow:
    return DecisionRow(
        id="covers",
        subject_kind=access.subject.kind,
        subject_name=access.subject.name,
        resource_type=access.resource_type,
        operation=access.operation,
        target=access.target,
        effect=Effect.APPROVAL,
        scope=Scope.PERMANENT,
        session_key="",
        expires_at=None,
        ended=False,
    )
