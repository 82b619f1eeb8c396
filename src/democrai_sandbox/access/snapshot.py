"""Snapshot: all decisions in force, in memory. Every check is answered from it. Immutable; a change creates a new one.

A subject's decisions are indexed at its first check, so that a node with many decisions starts fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from democrai_sandbox.policy import InvalidInputError

from .bulk import no_collection
from .targets import Reader, decision_key, is_network, prefix_of
from .values import Effect, Scope

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from .targets import Wanted
    from .values import Changes, DecisionRow

_Rows: TypeAlias = "tuple[DecisionRow, ...]"
_ANSWERS_KEPT = 4096
_LONGEST_KEPT = 512
_NEVER = 1 << 63
_OF = "\0"
"""Separator between a key and the session of a decision."""


DENIED = "denied"
SESSION_APPROVAL = "session_approval"
PERMANENT_APPROVAL = "permanent_approval"


class Found(NamedTuple):
    """Decision that answers a question."""

    code: str
    """One of the three codes above, as plain text, because guarded code could change an enumeration member."""
    decision_id: str
    reason: str = ""
    """Reason of a denial, if the administrator gave one."""


class _Table:
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
        self._answers: dict[tuple[str, str], tuple[Found | None, int]] = {}

    def changed(self, rows: Iterable[DecisionRow]) -> _Table:
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
        prefixes = {prefix_of(key) for key, some in groups.items() if is_network(some[0].resource_type, key)}
        return _Table(kept, max(self._depth, depth), self._prefixes | prefixes)

    def rows(self) -> Iterator[DecisionRow]:
        """Yield the decisions, including expired ones."""
        for some in self._rows.values():
            yield from some

    def find(self, wanted: Wanted, session_key: str, now: int) -> Found | None:
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

    def _look(self, wanted: Wanted, session_key: str, now: int) -> tuple[Found | None, int]:
        """Return the decision and the time until which it is valid."""
        session = permanent = None
        until = _NEVER
        for key in wanted.keys(self._depth, self._prefixes):
            for row in (*self._rows.get(key, ()), *self._rows.get(f"{key}{_OF}{session_key}", ())):
                if row.expires_at is not None:
                    if row.expires_at <= now:
                        continue
                    until = min(until, row.expires_at)
                if row.effect == Effect.DENIAL:
                    return Found(DENIED, row.id, row.reason), until
                if row.scope == Scope.SESSION:
                    session = session or row.id
                else:
                    permanent = permanent or row.id
        if session:
            return Found(SESSION_APPROVAL, session), until
        return (Found(PERMANENT_APPROVAL, permanent) if permanent else None), until


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


class _Decisions:
    """Decisions about one subject: rows until its first check, tables afterwards."""

    __slots__ = ("_rows", "_tables")

    def __init__(self, rows: _Rows = (), tables: dict[tuple[str, str], _Table] | None = None) -> None:
        self._rows = rows
        self._tables = tables

    def changed(self, rows: _Rows) -> _Decisions:
        """Return the decisions after these rows."""
        before, found = self._rows, self._tables  # in this order: rows are removed after the tables are set
        return _Decisions((*before, *rows)) if found is None else _Decisions((), _built(found, rows))

    def rows(self) -> list[DecisionRow]:
        """Return the decisions, including expired ones."""
        rows, tables = self._rows, self._tables  # in this order, see above
        if tables is not None:
            return [row for table in tables.values() for row in table.rows()]
        latest = {row.id: row for row in rows}
        return [row for row in latest.values() if not row.ended]

    def find(self, wanted: Wanted, session_key: str, now: int) -> Found | None:
        """Return the decision about an access."""
        rows, tables = self._rows, self._tables  # in this order, see above
        if tables is None:
            # Two threads may do this at the same time, with the same result.
            with no_collection():
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
        subjects: Mapping[tuple[str, str], _Decisions] | None = None,
        expiries: Mapping[str, int] | None = None,
    ) -> None:
        """Create an empty snapshot; ``changed`` returns snapshots with decisions."""
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
            subjects[subject] = (subjects.get(subject) or _Decisions()).changed(tuple(rows))
        expiries = dict(self._expiries)
        for row in changes.rows:
            if row.expires_at is not None and not row.ended:
                expiries[row.id] = row.expires_at
            elif row.ended:
                expiries.pop(row.id, None)
        return Snapshot(max(self.generation, changes.generation), subjects, expiries)

    def find(self, subject: tuple[str, str], wanted: Wanted, session_key: str, now: int) -> Found | None:
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
        """Yield the approvals in force, of one subject or of all, without those that a denial overrides.

        For uses that need all allowed targets in advance, such as the egress allowlist.
        """
        for who in self._subjects if subject is None else (subject,):
            decisions = self._subjects.get(who)
            if decisions is not None:
                yield from _in_force(decisions, resource_type, now)


def _in_force(decisions: _Decisions, resource_type: str, now: int) -> Iterator[DecisionRow]:
    found = [
        row
        for row in decisions.rows()
        if row.resource_type == resource_type and (row.expires_at is None or row.expires_at > now)
    ]
    denied = {
        (row.operation, decision_key(row.resource_type, row.target)) for row in found if row.effect == Effect.DENIAL
    }
    reader = Reader()
    for row in found:
        if row.effect != Effect.APPROVAL or (row.operation, decision_key(row.resource_type, row.target)) in denied:
            continue
        if not denied or not _is_denied(decisions, reader, row, now):
            yield row


def _is_denied(decisions: _Decisions, reader: Reader, row: DecisionRow, now: int) -> bool:
    """Return whether a broader denial overrides an approval."""
    try:
        wanted = reader.read(str(row.resource_type), str(row.operation), row.target)
    except InvalidInputError:
        return False  # a pattern: each later question is matched with the denial separately
    found = decisions.find(wanted, row.session_key, now)
    return found is not None and found.code == DENIED


def _built(tables: dict[tuple[str, str], _Table], rows: Iterable[DecisionRow]) -> dict[tuple[str, str], _Table]:
    groups: dict[tuple[str, str], list[DecisionRow]] = {}
    for row in rows:
        groups.setdefault((row.resource_type, row.operation), []).append(row)
    changed = {place: (tables.get(place) or _Table({})).changed(some) for place, some in groups.items()}
    return {**tables, **changed}
