"""Snapshot: all decisions in force, in memory, and the match of a decision with a request. Immutable."""

from __future__ import annotations

import gc
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from democrai_sandbox.policy import InvalidInputError, ResourceType
from democrai_sandbox.policy.network_rules import prefix_of

from .audit import access_dict
from .targets import TargetParser, decision_key
from .values import Changes, DecisionEffect, DecisionReach, DecisionRow, DecisionScope, to_micros

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

    from democrai_sandbox.policy import Subject

    from .targets import RequestedTarget
    from .values import AccessTuple, Decision, StoredRequest

_lock = threading.Lock()
_holders = 0
_was_enabled = False


@contextmanager
def pause_collection() -> Iterator[None]:
    """Disable the cyclic garbage collector of the process for a short time.

    While a hundred thousand rows are loaded, the collector would scan the whole process repeatedly and find no garbage,
    which takes as long as loading the rows.
    """
    global _holders, _was_enabled  # noqa: PLW0603 - the collector is one for the process
    with _lock:
        if not _holders:
            _was_enabled = gc.isenabled()
            gc.disable()
        _holders += 1
    try:
        yield
    finally:
        with _lock:
            _holders -= 1
            if not _holders and _was_enabled:
                gc.enable()


_Rows: TypeAlias = "tuple[DecisionRow, ...]"
_ANSWERS_KEPT = 4096
_LONGEST_KEPT = 512
_NEVER = 1 << 63
_OF = "\0"
"""Separator between a key and the session of a decision."""


DENIED = "denied"
SESSION_APPROVAL = "session_approval"
PERMANENT_APPROVAL = "permanent_approval"


class FoundDecision(NamedTuple):
    """Decision that answers a question."""

    code: str
    """One of the three codes above, as plain text, because guarded code could change an enumeration member."""
    decision_id: str
    reason: str = ""
    """Reason of a denial, if the administrator gave one."""


class _OperationDecisions:
    """Decisions about one operation of one subject, by key, with a cache of results.

    A session approval has a separate key, so that a key nearly always has one row. It has more only if spellings of a
    host are equivalent.
    """

    __slots__ = ("_answers", "_depth", "_prefixes", "_rows")

    def __init__(
        self, rows: dict[str, _Rows], depth: int = 0, prefixes: frozenset[tuple[int, int]] = frozenset()
    ) -> None:
        self._rows = rows
        self._depth = depth
        self._prefixes = prefixes
        self._answers: dict[tuple[str, str], tuple[FoundDecision | None, int]] = {}

    def changed(self, rows: Iterable[DecisionRow]) -> _OperationDecisions:
        """Return the table after these rows; this one stays valid."""
        latest = {row.id: row for row in rows}
        groups = _grouped(latest.values())
        kept = dict(self._rows)
        for key, some in groups.items():
            before = kept.get(key)
            if before is None and len(some) == 1 and not some[0].ended:
                kept[key] = (some[0],)  # the usual case, a hundred thousand times at a cold start
                continue
            rest = [old for old in before or () if old.id not in latest]
            rest += [row for row in some if not row.ended]
            if rest:
                kept[key] = tuple(rest)
            else:
                kept.pop(key, None)
        # Both only grow: looking for ended decisions, or too deep, costs little.
        depth = max((key.count("/") for key in groups), default=0)
        ranges = (
            key for key, some in groups.items() if key[0] == "N" and some[0].resource_type == ResourceType.NETWORK
        )
        prefixes = set(map(prefix_of, ranges))
        return _OperationDecisions(kept, max(self._depth, depth), self._prefixes | prefixes)

    def rows(self) -> Iterator[DecisionRow]:
        """Yield the decisions, including expired ones."""
        for some in self._rows.values():
            yield from some

    def find(self, wanted: RequestedTarget, session_key: str, now: int) -> FoundDecision | None:
        """Return the decision. A repeated question is answered from the cache until a matching decision expires."""
        asked = (wanted.target, session_key)
        known = self._answers.get(asked)
        if known is not None and now < known[1]:
            return known[0]
        found, until = self._look(wanted, session_key, now)
        # Do not cache ambiguous paths, whose canonical text may equal that of another path, nor long ones.
        if not wanted.is_ambiguous and len(wanted.target) <= _LONGEST_KEPT:
            if len(self._answers) >= _ANSWERS_KEPT:
                self._answers.clear()
            self._answers[asked] = (found, until)
        return found

    def _look(self, wanted: RequestedTarget, session_key: str, now: int) -> tuple[FoundDecision | None, int]:
        """Return the decision and the time until which it is valid."""
        session = permanent = None
        until = _NEVER
        for key in wanted.keys(self._depth, self._prefixes):
            for row in (*self._rows.get(key, ()), *self._rows.get(f"{key}{_OF}{session_key}", ())):
                if row.expires_at is not None:
                    if row.expires_at <= now:
                        continue
                    until = min(until, row.expires_at)
                if row.effect == DecisionEffect.DENIAL:
                    return FoundDecision(DENIED, row.id, row.reason), until
                if row.scope == DecisionScope.SESSION:
                    session = session or row.id
                else:
                    permanent = permanent or row.id
        if session:
            return FoundDecision(SESSION_APPROVAL, session), until
        return (FoundDecision(PERMANENT_APPROVAL, permanent) if permanent else None), until


def _grouped(rows: Iterable[DecisionRow]) -> dict[str, list[DecisionRow]]:
    groups: dict[str, list[DecisionRow]] = {}
    for row in rows:
        key = decision_key(row.resource_type, row.target)
        if row.session_key:
            key = f"{key}{_OF}{row.session_key}"
        if key in groups:
            groups[key].append(row)
        else:
            groups[key] = [row]
    return groups


class _SubjectDecisions:
    """Decisions about one subject: rows until its first check, tables afterwards.

    So a node with many decisions starts fast.
    """

    __slots__ = ("_rows", "_tables")

    def __init__(self, rows: _Rows = (), tables: dict[tuple[str, str], _OperationDecisions] | None = None) -> None:
        self._rows = rows
        self._tables = tables

    def changed(self, rows: _Rows) -> _SubjectDecisions:
        """Return the decisions after these rows."""
        before, found = self._rows, self._tables  # in this order: rows are removed after the tables are set
        return _SubjectDecisions((*before, *rows)) if found is None else _SubjectDecisions((), _built(found, rows))

    def rows(self) -> list[DecisionRow]:
        """Return the decisions, including expired ones."""
        rows, tables = self._rows, self._tables  # in this order, see above
        if tables is not None:
            return [row for table in tables.values() for row in table.rows()]
        latest = {row.id: row for row in rows}
        return [row for row in latest.values() if not row.ended]

    def find(self, wanted: RequestedTarget, session_key: str, now: int) -> FoundDecision | None:
        """Return the decision about an access."""
        rows, tables = self._rows, self._tables  # in this order, see above
        if tables is None:
            # Two threads may do this at the same time, with the same result.
            with pause_collection():
                self._tables = tables = _built({}, rows)
            self._rows = ()
        table = tables.get(wanted.place)
        return None if table is None else table.find(wanted, session_key, now)


class Snapshot:
    """Decisions in force at one generation."""

    __slots__ = ("_expiries", "_subjects", "generation")

    def __init__(
        self,
        generation: int = 0,
        subjects: Mapping[tuple[str, str], _SubjectDecisions] | None = None,
        expiries: Mapping[str, int] | None = None,
    ) -> None:
        self.generation = generation
        self._subjects = subjects or {}
        self._expiries = expiries or {}

    def next_expiry(self, after: int) -> int | None:
        """Return when the next decision expires, in microseconds since the epoch."""
        return min((at for at in self._expiries.values() if at > after), default=None)

    def changed(self, changes: Changes) -> Snapshot:
        """Return the snapshot after these changes. Applying the same changes twice has no further effect."""
        by_subject: dict[tuple[str, str], list[DecisionRow]] = {}
        for row in changes.rows:
            by_subject.setdefault((row.subject_kind, row.subject_name), []).append(row)
        subjects = dict(self._subjects)
        for subject, rows in by_subject.items():
            subjects[subject] = (subjects.get(subject) or _SubjectDecisions()).changed(tuple(rows))
        expiries = dict(self._expiries)
        for row in changes.rows:
            if row.expires_at is not None and not row.ended:
                expiries[row.id] = row.expires_at
            elif row.ended:
                expiries.pop(row.id, None)
        return Snapshot(max(self.generation, changes.generation), subjects, expiries)

    def find(
        self, subject: tuple[str, str], wanted: RequestedTarget, session_key: str, now: int
    ) -> FoundDecision | None:
        """Return the decision: a denial before a session approval before a permanent approval.

        ``subject`` is kind and name as plain text, ``now`` is in microseconds since the epoch.
        """
        decisions = self._subjects.get(subject)
        return None if decisions is None else decisions.find(wanted, session_key, now)

    @property
    def subjects(self) -> tuple[tuple[str, str], ...]:
        """Kind and name of all subjects with decisions."""
        return tuple(self._subjects)

    def approved(self, resource_type: str, now: int, subject: tuple[str, str] | None = None) -> Iterator[DecisionRow]:
        """Yield the approvals in force, of one subject or of all, without those that a denial overrides."""
        for who in self._subjects if subject is None else (subject,):
            decisions = self._subjects.get(who)
            if decisions is not None:
                yield from _in_force(decisions, resource_type, now)


def _in_force(decisions: _SubjectDecisions, resource_type: str, now: int) -> Iterator[DecisionRow]:
    found = [
        row
        for row in decisions.rows()
        if row.resource_type == resource_type and (row.expires_at is None or row.expires_at > now)
    ]
    denied = {_place(row) for row in found if row.effect == DecisionEffect.DENIAL}
    reader = TargetParser()
    for row in found:
        is_denied = _place(row) in denied or (denied and _is_denied(decisions, reader, row, now))
        if row.effect == DecisionEffect.APPROVAL and not is_denied:
            yield row


def _place(row: DecisionRow) -> tuple[str, str]:
    return row.operation, decision_key(row.resource_type, row.target)


def _is_denied(decisions: _SubjectDecisions, reader: TargetParser, row: DecisionRow, now: int) -> bool:
    """Return whether a broader denial overrides an approval."""
    try:
        wanted = reader.read(str(row.resource_type), str(row.operation), row.target)
    except InvalidInputError:
        return False  # a pattern: each later question is matched with the denial separately
    found = decisions.find(wanted, row.session_key, now)
    return found is not None and found.code == DENIED


def _built(
    tables: dict[tuple[str, str], _OperationDecisions], rows: Iterable[DecisionRow]
) -> dict[tuple[str, str], _OperationDecisions]:
    groups: dict[tuple[str, str], list[DecisionRow]] = {}
    for row in rows:
        groups.setdefault((row.resource_type, row.operation), []).append(row)
    changed = {place: (tables.get(place) or _OperationDecisions({})).changed(some) for place, some in groups.items()}
    return {**tables, **changed}


def covers(broad: AccessTuple, narrow: AccessTuple) -> bool:
    """Return whether a decision about ``broad`` answers a request for ``narrow``, matched as in every check."""
    return DecisionMatch(broad).covers(narrow)


class DecisionMatch:
    """Decision that is compared with many requests."""

    def __init__(self, broad: AccessTuple, reader: TargetParser | None = None) -> None:
        """Prepare the decision. Decisions that are compared with the same requests can share a ``reader``."""
        self._broad = broad
        self._snapshot = Snapshot().changed(Changes(1, (_row(broad),)))
        self._reader = reader or TargetParser()

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


def by_place(requests: Iterable[StoredRequest]) -> list[list[list[StoredRequest]]]:
    """Group requests by subject, resource type and operation, and within a group by access."""
    found: dict[tuple[object, ...], dict[str, list[StoredRequest]]] = {}
    for request in requests:
        access = request.access
        place = access.subject, access.resource_type, access.operation
        found.setdefault(place, {}).setdefault(access.digest, []).append(request)
    return [list(some.values()) for some in found.values()]


def reach(covering: DecisionMatch, others: Iterable[StoredRequest], session_key: str, *, more: bool) -> DecisionReach:
    """Return how many of some pending requests a decision would answer; ``session_key`` is that of its request."""
    covered = [request for request in others if covering.covers(request.access)]
    users = {request.origin.user_id for request in covered}
    theirs = sum(bool(session_key) and request.origin.session_key == session_key for request in covered)
    return DecisionReach(len(covered), len(users), theirs, more)


def answering(
    decisions: Iterable[Decision], wanted: RequestedTarget, session_key: str, now: datetime
) -> Decision | None:
    """Return the decision in force that answers a question, matched as in every check."""
    known = {decision.id: decision for decision in decisions}
    if not known:
        return None
    subject = next(iter(known.values())).access.subject
    snapshot = Snapshot().changed(Changes(1, tuple(map(_row_of, known.values()))))
    found = snapshot.find(_who(subject), wanted, session_key, to_micros(now))
    return None if found is None else known[found.decision_id]


def _row_of(decision: Decision) -> DecisionRow:
    return _row(decision.access)._replace(
        id=decision.id,
        effect=decision.effect,
        scope=decision.scope,
        session_key=decision.session_key,
        expires_at=None if decision.expires_at is None else to_micros(decision.expires_at),
    )


def _who(subject: Subject) -> tuple[str, str]:
    return str(subject.kind), subject.name


def _row(access: AccessTuple) -> DecisionRow:
    return DecisionRow(
        id="covers",
        **access_dict(access),
        effect=DecisionEffect.APPROVAL,
        scope=DecisionScope.PERMANENT,
        session_key="",
        expires_at=None,
        ended=False,
    )
