"""All decisions in force, in memory: what every check is answered from. Immutable; a change makes a new one.

A subject's decisions are indexed when it first asks: a node that starts with very many of them answers at once.
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
"""Between a key and the session that a decision is for."""


DENIED = "denied"
SESSION_APPROVAL = "session_approval"
PERMANENT_APPROVAL = "permanent_approval"


class Found(NamedTuple):
    """The decision that answers a question."""

    code: str
    """One of the three above, as plain text: a member of an enumeration can be made to say something else."""
    decision_id: str
    reason: str = ""
    """Why it is denied, if whoever denied it has said so."""


class _Table:
    """The decisions about one operation of one subject, by key, and the answers that were given from them.

    An approval for a session is under a key of its own, so that there is nearly always one row under a key: more only
    where spellings of a host are equivalent.
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
        """Return the table after these rows; this one goes on to be read."""
        latest = {row.id: row for row in rows}
        groups = _grouped(latest.values())
        kept = dict(self._rows)
        for key, some in groups.items():
            before = kept.get(key)
            if before is None and len(some) == 1 and not some[0].ended:
                kept[key] = (some[0],)  # nearly always, and a hundred thousand times at a cold start
                continue
            rest = [old for old in before or () if old.id not in latest]
            rest += [row for row in some if not row.ended]
            if rest:
                kept[key] = tuple(rest)
            else:
                kept.pop(key, None)
        # Neither ever shrinks: looking for what is no longer there costs little, and so does looking too deep.
        depth = max((key.count("/") for key in groups), default=0)
        prefixes = {prefix_of(key) for key, some in groups.items() if is_network(some[0].resource_type, key)}
        return _Table(kept, max(self._depth, depth), self._prefixes | prefixes)

    def rows(self) -> Iterator[DecisionRow]:
        """Yield the decisions, expired ones too."""
        for some in self._rows.values():
            yield from some

    def find(self, wanted: Wanted, session_key: str, now: int) -> Found | None:
        """Return what was decided. The same question is answered from memory until a decision it met expires."""
        asked = (wanted.target, session_key)
        known = self._answers.get(asked)
        if known is not None and now < known[1]:
            return known[0]
        found, until = self._look(wanted, session_key, now)
        # The canonical text of an ambiguous path may be that of another; a long one is not worth the memory.
        if not wanted.is_ambiguous and len(wanted.target) <= _LONGEST_KEPT:
            if len(self._answers) >= _ANSWERS_KEPT:
                self._answers.clear()
            self._answers[asked] = (found, until)
        return found

    def _look(self, wanted: Wanted, session_key: str, now: int) -> tuple[Found | None, int]:
        """Return what answers, and until when it surely does."""
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
    """The decisions about one subject: rows until it first asks, tables from then on."""

    __slots__ = ("_rows", "_tables")

    def __init__(self, rows: _Rows = (), tables: dict[tuple[str, str], _Table] | None = None) -> None:
        self._rows = rows
        self._tables = tables

    def changed(self, rows: _Rows) -> _Decisions:
        """Return what is decided after these rows."""
        before, found = self._rows, self._tables  # in this order: rows go away after the tables are there
        return _Decisions((*before, *rows)) if found is None else _Decisions((), _built(found, rows))

    def rows(self) -> list[DecisionRow]:
        """Return the decisions, expired ones too."""
        rows, tables = self._rows, self._tables  # in this order, see above
        if tables is not None:
            return [row for table in tables.values() for row in table.rows()]
        latest = {row.id: row for row in rows}
        return [row for row in latest.values() if not row.ended]

    def find(self, wanted: Wanted, session_key: str, now: int) -> Found | None:
        """Return what was decided about something."""
        rows, tables = self._rows, self._tables  # in this order, see above
        if tables is None:
            # Two threads may do this at once: they come to the same.
            with no_collection():
                self._tables = tables = _built({}, rows)
            self._rows = ()
        table = tables.get(wanted.place)
        return None if table is None else table.find(wanted, session_key, now)


class Snapshot:
    """The decisions in force at one generation."""

    __slots__ = ("_expiries", "_subjects", "generation")

    def __init__(
        self,
        generation: int = 0,
        subjects: Mapping[tuple[str, str], _Decisions] | None = None,
        expiries: Mapping[str, int] | None = None,
    ) -> None:
        """Make an empty one; those with decisions in them come from ``changed``."""
        self.generation = generation
        self._subjects = subjects or {}
        self._expiries = expiries or {}

    def next_expiry(self, after: int) -> int | None:
        """Return when the next decision ends by itself, in microseconds since the epoch."""
        return min((at for at in self._expiries.values() if at > after), default=None)

    def changed(self, changes: Changes) -> Snapshot:
        """Return the snapshot after these changes. Applying the same twice changes nothing."""
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
        """Return what was decided: a denial before a session approval before a permanent one.

        ``subject`` is kind and name as plain text, ``now`` is in microseconds since the epoch.
        """
        decisions = self._subjects.get(subject)
        return None if decisions is None else decisions.find(wanted, session_key, now)

    @property
    def subjects(self) -> tuple[tuple[str, str], ...]:
        """Kind and name of those about whom something was decided."""
        return tuple(self._subjects)

    def approved(self, resource_type: str, now: int, subject: tuple[str, str] | None = None) -> Iterator[DecisionRow]:
        """Yield the approvals in force, of one subject or of all; one whose target is denied as well is none.

        For those who have to know what is allowed before anybody asks, such as an allowlist of the kernel.
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
    """Tell whether a wider denial takes an approval back."""
    try:
        wanted = reader.read(str(row.resource_type), str(row.operation), row.target)
    except InvalidInputError:
        return False  # a pattern: what is asked for later is covered by the denial, or not
    found = decisions.find(wanted, row.session_key, now)
    return found is not None and found.code == DENIED


def _built(tables: dict[tuple[str, str], _Table], rows: Iterable[DecisionRow]) -> dict[tuple[str, str], _Table]:
    groups: dict[tuple[str, str], list[DecisionRow]] = {}
    for row in rows:
        groups.setdefault((row.resource_type, row.operation), []).append(row)
    changed = {place: (tables.get(place) or _Table({})).changed(some) for place, some in groups.items()}
    return {**tables, **changed}
