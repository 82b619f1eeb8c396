"""Audit table: records are appended in the transaction of the change, under the lock of the meta row."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, insert, select, update

from democrai_sandbox.access.audit import access_dict, canonical, record_hash
from democrai_sandbox.access.values import AuditRecord

from .tables import audit, meta, to_audit_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

    from sqlalchemy import Connection

    from democrai_sandbox.access.values import AccessTuple, AuditAction

    from .database import DatabaseStore

SYSTEM = "system"
"""Actor of automatic events."""

_AT_ONCE = 1000
_NO_ACCESS = MappingProxyType(dict.fromkeys(("subject_kind", "subject_name", "resource_type", "operation", "target")))


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Content of an audit record."""

    action: AuditAction
    actor: str
    access: AccessTuple | None = None
    request_id: str = ""
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None


# Built once, because building such a statement takes longer than running it, while other transactions wait.
_LOCK = select(meta).with_for_update()
_APPEND = insert(audit)
_MOVE = update(meta).values(
    generation=bindparam("new_generation"), audit_sequence=bindparam("new_sequence"), audit_hash=bindparam("new_hash")
)
_HEAD = select(meta.c.audit_sequence, meta.c.audit_hash)


class Ledger:
    """Locked meta row until the transaction ends: generations and the hash chain follow the order of commits."""

    def __init__(self, connection: Connection) -> None:
        """Take the lock. Take locks on other rows only after it, to prevent deadlocks."""
        row = connection.execute(_LOCK).one()
        self._connection = connection
        self._sequence: int = row.audit_sequence
        self._hash: str = row.audit_hash
        self._generation: int = row.generation
        self._moved = False

    def next_generation(self) -> int:
        """Return the generation of this transaction's changes to decisions."""
        if not self._moved:
            self._moved = True
            self._generation += 1
        return self._generation

    def close(self, entries: Iterable[AuditEntry], *, now: datetime) -> list[AuditRecord]:
        """Append the records and write the meta row. Must be the last step of a transaction."""
        records = [self._record(entry, now) for entry in entries]
        if records:
            self._connection.execute(_APPEND, [_columns(record) for record in records])
        new = {"new_generation": self._generation, "new_sequence": self._sequence, "new_hash": self._hash}
        self._connection.execute(_MOVE, new)
        return records

    def _record(self, entry: AuditEntry, now: datetime) -> AuditRecord:
        record = AuditRecord(
            sequence=self._sequence + 1,
            at=now,
            action=entry.action,
            actor=entry.actor,
            access=entry.access,
            request_id=entry.request_id,
            before=_plain(entry.before),
            after=_plain(entry.after),
            previous_hash=self._hash,
            hash="",
        )
        record = replace(record, hash=record_hash(record))
        self._sequence, self._hash = record.sequence, record.hash
        return record


def append(
    connection: Connection,
    action: AuditAction,
    *,
    actor: str,
    now: datetime,
    access: AccessTuple | None = None,
    request_id: str = "",
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
) -> AuditRecord:
    """Append an audit record for an event that does not change requests or decisions."""
    entry = AuditEntry(action, actor, access, request_id, before, after)
    return Ledger(connection).close([entry], now=now)[0]


def audit_rows(store: DatabaseStore, after: int = 0) -> Iterator[AuditRecord]:
    """Yield all records after a sequence number in order, without loading them all."""
    while True:
        query = select(audit).where(audit.c.sequence > after).order_by(audit.c.sequence).limit(_AT_ONCE)
        rows = store.database.ask(lambda connection, query=query: connection.execute(query).all())  # type: ignore[misc]
        if not rows:
            return
        yield from map(to_audit_record, rows)
        after = rows[-1].sequence


def audit_head(connection: Connection) -> tuple[int, str]:
    """Return the sequence and hash that the last record must have; (0, "") for an empty audit log."""
    row = connection.execute(_HEAD).one()
    return row.audit_sequence, row.audit_hash


def _columns(record: AuditRecord) -> dict[str, Any]:
    about = _NO_ACCESS if record.access is None else access_dict(record.access)
    return {
        "sequence": record.sequence,
        "at": record.at,
        "action": record.action.value,
        "actor": record.actor,
        **about,
        "request_id": record.request_id,
        "before": canonical(record.before),
        "after": canonical(record.after),
        "previous_hash": record.previous_hash,
        "hash": record.hash,
    }


def _plain(value: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the value as it will be read back, so that its hash stays the same."""
    plain: dict[str, Any] = json.loads(canonical(dict(value or {})))
    return plain
