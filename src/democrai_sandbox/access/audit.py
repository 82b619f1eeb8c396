"""Hash chain of the audit log: build, verify and export. Pure functions over records."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from democrai_sandbox.policy import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import TextIO

    from .store import SqlStore
    from .values import AccessTuple, AuditRecord

SCHEMA = "democrai-sandbox/audit/1"
"""Schema of an export: one JSON object per line, with this text and the fields of ``AuditRecord``.

The ``sequence`` starts at 1. ``at`` is the time in UTC, ISO 8601 with six digits of the second. ``access`` is null, or
an object of ``subject_kind``, ``subject_name``, ``resource_type``, ``operation`` and ``target``. The content of
``before`` and ``after`` depends on the action. ``hash`` is SHA-256, in hexadecimal, of the object without ``hash``, as
JSON with sorted keys, no white space, ASCII only; ``previous_hash`` is that of the previous line, empty in the first.
"""
_KEYS = frozenset(
    ("schema", "sequence", "at", "action", "actor", "access", "request_id", "before", "after", "previous_hash", "hash")
)


@dataclass(frozen=True, slots=True)
class AuditReport:
    """Result of a verification of the chain."""

    ok: bool
    count: int
    """Number of valid records from the start."""
    first_bad: int | None = None
    """Sequence number at which the chain breaks."""
    what: str = ""


def record_hash(record: AuditRecord) -> str:
    """Return the expected hash of a record; its ``hash`` field is ignored."""
    return _hash_of(_line_of(record))


def access_dict(access: AccessTuple) -> dict[str, str]:
    """Return the access of a decision as plain JSON data."""
    return {
        "subject_kind": access.subject.kind.value,
        "subject_name": access.subject.name,
        "resource_type": access.resource_type.value,
        "operation": access.operation.value,
        "target": access.target,
    }


def canonical(value: object) -> str:
    """Return canonical JSON: sorted keys, no white space, ASCII. Reject values that are not JSON."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError.of(f"not JSON: {error}") from error


def verify(records: Iterable[AuditRecord], head: tuple[int, str]) -> AuditReport:
    """Verify the chain from its start to ``head``, the stored sequence number and hash of the last record.

    Each record's hash covers the record and the previous hash. The store keeps the head separately, so a changed,
    removed, inserted or moved record is detected, also at the end. An owner of the database can still rewrite all
    records together with the stored head. To detect that, keep exports, or only their last hash, where this owner
    cannot write, and compare.
    """
    return _verify_lines(map(_line_of, records), head)


def verify_store(store: SqlStore) -> AuditReport:
    """Verify the whole audit log of a store, also while other processes append to it."""
    head = store.audit_head()
    report = verify(takewhile(lambda record: record.sequence <= head[0], store.audit_rows()), head)
    if not report.ok:
        return report
    # A record after the head is either newer, and then the head has moved too, or it was inserted by hand.
    beyond = next(store.audit_rows(head[0]), None)
    if beyond is None or beyond.sequence <= store.audit_head()[0]:
        return report
    what = f"record {beyond.sequence} comes after the last recorded one, {head[0]}"
    return AuditReport(ok=False, count=report.count, first_bad=beyond.sequence, what=what)


def export(records: Iterable[AuditRecord], stream: TextIO) -> int:
    """Write the records as JSON lines and return their number."""
    count = 0
    for count, record in enumerate(records, 1):  # noqa: B007 - the last number is the result
        stream.write(canonical(_line_of(record)) + "\n")
    return count


def verify_export(lines: Iterable[str], head: tuple[int, str] | None = None) -> AuditReport:
    """Verify an export. Lines missing at its end are detected only with ``head``, the last sequence and hash."""
    return _verify_lines(map(_parsed, lines), head)


def _line_of(record: AuditRecord) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "sequence": record.sequence,
        "at": record.at.astimezone(UTC).isoformat(timespec="microseconds"),
        "action": record.action.value,
        "actor": record.actor,
        "access": None if record.access is None else access_dict(record.access),
        "request_id": record.request_id,
        "before": record.before,
        "after": record.after,
        "previous_hash": record.previous_hash,
        "hash": record.hash,
    }


def _hash_of(line: Mapping[str, Any]) -> str:
    covered = {key: value for key, value in line.items() if key != "hash"}
    return hashlib.sha256(canonical(covered).encode()).hexdigest()


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) else None


def _verify_lines(lines: Iterable[dict[str, Any] | None], head: tuple[int, str] | None) -> AuditReport:
    count, last = 0, ""
    for line in lines:
        if problem := _problem(line, count + 1, last):
            return AuditReport(ok=False, count=count, first_bad=count + 1, what=problem)
        count += 1
        last = str(line["hash"]) if line else last
    if head is None or head == (count, last):
        return AuditReport(ok=True, count=count)
    if head[0] > count:
        what = f"records {count + 1} to {head[0]} are missing at the end"
        return AuditReport(ok=False, count=count, first_bad=count + 1, what=what)
    if head[0] < count:
        what = f"{count - head[0]} records come after the last recorded one, {head[0]}"
        return AuditReport(ok=False, count=head[0], first_bad=head[0] + 1, what=what)
    return AuditReport(ok=False, count=count - 1, first_bad=count, what="the last record differs from the recorded one")


def _problem(line: dict[str, Any] | None, expected: int, previous: str) -> str:
    """Return the problem of the ``expected``-th line, or an empty text."""
    if line is None or line.keys() != _KEYS or line["schema"] != SCHEMA:
        return f"this is not a record of {SCHEMA}"
    sequence = line["sequence"]
    if sequence != expected:
        return f"expected record {expected}, found record {sequence!r}: a record was removed, added or moved"
    if line["previous_hash"] != previous:
        return "its previous_hash does not match the previous record: a record was removed, added or replaced"
    try:
        right = line["hash"] == _hash_of(line)
    except InvalidInputError:  # a number such as NaN, which Python reads although JSON does not have it
        right = False
    return "" if right else "its content does not match its hash"
