"""Shadow runs in the database: a trial of a candidate manifest of a subject, and the differences found."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, delete, func, insert, select, update

from democrai_sandbox.access.store.audit_log import AuditEntry, Ledger
from democrai_sandbox.access.values import AuditAction
from democrai_sandbox.errors.services import EntryExists, EntryUnknown
from democrai_sandbox.policy import Subject, SubjectKind

from .values import shadow_findings, shadow_runs

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from sqlalchemy import Row

MOST_FINDINGS = 1000
"""Maximum findings of one run; a subject controls its accesses, so the rest is only counted."""
_MOST_RUNS = 100
_MOST_ENDED = 20
"""Ended runs that are kept per subject."""


class ShadowEffect(StrEnum):
    """Change for an access if the candidate were in force."""

    DENIED = "denied"
    """It is allowed now, and would be denied."""
    ALLOWED = "allowed"
    """It is denied now, and would be allowed."""


@dataclass(frozen=True, slots=True)
class ShadowRun:
    """A trial of a candidate manifest."""

    id: str
    subject: Subject
    candidate: str
    """Text of the manifest."""
    started_at: datetime
    started_by: str
    ended_at: datetime | None = None
    ended_by: str = ""
    other_denied: int = 0
    """Accesses beyond the stored findings."""
    other_allowed: int = 0

    @property
    def is_running(self) -> bool:
        """Whether it is running."""
        return self.ended_at is None


@dataclass(frozen=True, slots=True)
class ShadowDifference:
    """An access of a subject that the candidate decides differently."""

    effect: ShadowEffect
    resource_type: str
    """Resource type of a rule, or ``import``."""
    operation: str
    target: str
    count: int
    first_seen: datetime
    last_seen: datetime
    user_id: str = ""
    """User of the latest access."""
    chain: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Hash of effect, resource type, operation and target."""
        about = [self.effect, self.resource_type, self.operation, self.target]
        return hashlib.sha256(json.dumps(about, ensure_ascii=False).encode("utf-8", "surrogatepass")).hexdigest()


def start(connection: Connection, run: ShadowRun) -> None:
    """Store a run, and increase the generation, so that every node reads it."""
    ledger = Ledger(connection)
    same = (shadow_runs.c.kind == run.subject.kind.value, shadow_runs.c.name == run.subject.name)
    if connection.execute(select(shadow_runs.c.id).where(*same, shadow_runs.c.ended_at.is_(None))).first():
        raise EntryExists(f"{run.subject} already has a shadow run: end it first")
    _forget_old(connection, same)
    connection.execute(insert(shadow_runs), _columns(run))
    ledger.next_generation()
    ledger.close([_entry(run, AuditAction.SHADOW_STARTED, run.started_by)], now=run.started_at)


def end(connection: Connection, run_id: str, *, actor: str, now: datetime) -> bool:
    """End a run; False if it has already ended."""
    ledger = Ledger(connection)
    run = find(connection, run_id)
    if not run.is_running:
        return False
    connection.execute(update(shadow_runs).where(shadow_runs.c.id == run_id).values(ended_at=now, ended_by=actor))
    ledger.next_generation()
    ledger.close([_entry(run, AuditAction.SHADOW_ENDED, actor)], now=now)
    return True


def add(connection: Connection, run_id: str, findings: Iterable[ShadowDifference]) -> None:
    """Add findings to a run. An ended run still accepts late reports of other nodes."""
    if connection.execute(select(shadow_runs.c.id).where(shadow_runs.c.id == run_id)).first() is None:
        return  # removed meanwhile
    query = select(func.count()).select_from(shadow_findings).where(shadow_findings.c.run_id == run_id)
    room = MOST_FINDINGS - connection.execute(query).scalar_one()
    others = dict.fromkeys(ShadowEffect, 0)
    for finding in findings:
        if not finding.target:  # counted without details before it was reported
            others[finding.effect] += finding.count
            continue
        if _counted(connection, run_id, finding):
            continue
        if room <= 0:
            others[finding.effect] += finding.count
            continue
        connection.execute(insert(shadow_findings), _finding_columns(run_id, finding))
        room -= 1
    if any(others.values()):
        more = {
            "other_denied": shadow_runs.c.other_denied + others[ShadowEffect.DENIED],
            "other_allowed": shadow_runs.c.other_allowed + others[ShadowEffect.ALLOWED],
        }
        connection.execute(update(shadow_runs).where(shadow_runs.c.id == run_id).values(**more))


def find(connection: Connection, run_id: str) -> ShadowRun:
    """Return one run; raises ``EntryUnknown``."""
    row = connection.execute(select(shadow_runs).where(shadow_runs.c.id == run_id)).one_or_none()
    if row is None:
        raise EntryUnknown(f"unknown shadow run {run_id}")
    return _run(row)


def listed(connection: Connection, *, running: bool = False) -> tuple[ShadowRun, ...]:
    """Return runs, the newest first."""
    query = select(shadow_runs).order_by(shadow_runs.c.ended_at.is_(None).desc(), shadow_runs.c.id.desc())
    query = query.where(shadow_runs.c.ended_at.is_(None)) if running else query.limit(_MOST_RUNS)
    return tuple(map(_run, connection.execute(query)))


def findings(connection: Connection, run_id: str) -> tuple[ShadowDifference, ...]:
    """Return the findings of a run, the most frequent first."""
    found = shadow_findings.c
    query = select(shadow_findings).where(found.run_id == run_id)
    query = query.order_by(found["count"].desc(), found.resource_type, found.operation, found.target)
    return tuple(map(_finding, connection.execute(query)))


def counts(connection: Connection) -> dict[str, tuple[int, int]]:
    """Return the number of findings of each effect, by run."""
    found: dict[str, tuple[int, int]] = {}
    about = (shadow_findings.c.run_id, shadow_findings.c.effect)
    for run_id, effect, number in connection.execute(select(*about, func.count()).group_by(*about)):
        denied, allowed = found.get(run_id, (0, 0))
        found[run_id] = (number, allowed) if effect == ShadowEffect.DENIED else (denied, number)
    return found


def _counted(connection: Connection, run_id: str, finding: ShadowDifference) -> bool:
    """Update an existing finding; False if it does not exist."""
    changed = {
        "count": shadow_findings.c["count"] + finding.count,
        "last_seen": finding.last_seen,
        "user_id": finding.user_id,
        "chain": json.dumps(finding.chain),
    }
    same = (shadow_findings.c.run_id == run_id, shadow_findings.c.digest == finding.digest)
    return connection.execute(update(shadow_findings).where(*same).values(**changed)).rowcount == 1


def _forget_old(connection: Connection, same: tuple[Any, ...]) -> None:
    """Remove the oldest runs of a subject, to limit their number."""
    query = select(shadow_runs.c.id).where(*same).order_by(shadow_runs.c.id.desc()).offset(_MOST_ENDED)
    old = connection.execute(query.limit(_MOST_RUNS)).scalars().all()
    if old:
        connection.execute(delete(shadow_findings).where(shadow_findings.c.run_id.in_(old)))
        connection.execute(delete(shadow_runs).where(shadow_runs.c.id.in_(old)))


def _entry(run: ShadowRun, action: AuditAction, actor: str) -> AuditEntry:
    after = {"shadow_run": run.id, "subject": str(run.subject)}
    return AuditEntry(action, actor, after=after)


def _columns(run: ShadowRun) -> dict[str, Any]:
    columns = _members(run)
    subject = columns.pop("subject")
    return {**columns, "kind": subject.kind.value, "name": subject.name}


def _run(row: Row[Any]) -> ShadowRun:
    columns = dict(row._mapping)  # noqa: SLF001 - a documented name
    return ShadowRun(subject=Subject(SubjectKind(columns.pop("kind")), columns.pop("name")), **columns)


def _finding_columns(run_id: str, finding: ShadowDifference) -> dict[str, Any]:
    changed = {"effect": finding.effect.value, "chain": json.dumps(finding.chain)}
    return {**_members(finding), **changed, "run_id": run_id, "digest": finding.digest}


def _finding(row: Row[Any]) -> ShadowDifference:
    columns = {field.name: row._mapping[field.name] for field in fields(ShadowDifference)}  # noqa: SLF001 - likewise
    effect, chain = ShadowEffect(row.effect), tuple(json.loads(row.chain))
    return ShadowDifference(**{**columns, "effect": effect, "chain": chain})


def _members(value: ShadowRun | ShadowDifference) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}
