"""Whether a decision about one target answers a request for another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from democrai_sandbox.policy import InvalidInputError

from .snapshot import Snapshot
from .targets import Reader
from .values import Changes, DecisionRow, Effect, Scope

if TYPE_CHECKING:
    from democrai_sandbox.policy import Subject

    from .values import AccessTuple


def covers(broad: AccessTuple, narrow: AccessTuple) -> bool:
    """Tell whether a decision about one tuple answers a request for another, by the matching of every check."""
    if broad == narrow:
        return True
    if broad.subject != narrow.subject or broad.resource_type != narrow.resource_type:
        return False
    try:
        wanted = Reader().read(narrow.resource_type, narrow.operation, narrow.target)
    except InvalidInputError:
        return False  # a pattern is covered by nothing but itself
    return Snapshot().changed(Changes(1, (_row(broad),))).find(_who(narrow.subject), wanted, "", 0) is not None


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
