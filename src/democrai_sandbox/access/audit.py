"""The audit's chain of hashes: made, checked, written out. Pure functions over records.

Each record's hash covers the record and the hash before it, and the store keeps sequence and hash of the last one
apart from the records. So a record that was changed, removed, put in or moved is found, also at the end. What the chain
cannot show is a rewrite of everything together, head included, by somebody who owns the database: keep exports, or only
their last hash, where that person cannot write, and compare.

An export has one JSON object per line:

``schema``
    ``democrai-sandbox/audit/1``
``sequence``
    1 for the first record, and one more for each that follows
``at``
    the time in UTC, ISO 8601 with six digits of the second
``action``
    what happened, see ``AuditAction``
``actor``
    the user who acted, ``subject:<kind>:<name>`` for a request, ``system`` for what happens by itself
``access``
    null, or an object of ``subject_kind``, ``subject_name``, ``resource_type``, ``operation``, ``target``
``request_id``
    the request that it is about, or empty
``before``, ``after``
    objects; what they hold depends on the action
``previous_hash``
    ``hash`` of the line before, empty in the first
``hash``
    SHA-256, in hexadecimal, of the object without ``hash``, as JSON with sorted keys, no white space, ASCII only
"""

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

    from .interface import Store
    from .values import AccessTuple, AuditRecord

SCHEMA = "democrai-sandbox/audit/1"
_KEYS = frozenset(
    ("schema", "sequence", "at", "action", "actor", "access", "request_id", "before", "after", "previous_hash", "hash")
)


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What a check of the chain found."""

    ok: bool
    count: int
    """How many records were good, from the first one on."""
    first_bad: int | None = None
    """The sequence number at which the chain breaks."""
    what: str = ""


def record_hash(record: AuditRecord) -> str:
    """Return the hash that a record must have; its own ``hash`` is not looked at."""
    return _hash_of(_line_of(record))


def access_dict(access: AccessTuple) -> dict[str, str]:
    """Return what a decision is about as plain JSON data."""
    return {
        "subject_kind": access.subject.kind.value,
        "subject_name": access.subject.name,
        "resource_type": access.resource_type.value,
        "operation": access.operation.value,
        "target": access.target,
    }


def canonical(value: object) -> str:
    """Return JSON in its one form: sorted keys, no white space, ASCII; refuse what is not JSON."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError.of(f"not JSON: {error}") from error


def verify(records: Iterable[AuditRecord], head: tuple[int, str]) -> AuditReport:
    """Check the chain from its beginning to ``head``, the sequence and hash that the store holds of the last record."""
    return _verify_lines(map(_line_of, records), head)


def verify_store(store: Store) -> AuditReport:
    """Check the whole audit of a store, also while others append to it."""
    head = store.audit_head()
    report = verify(takewhile(lambda record: record.sequence <= head[0], store.audit_rows()), head)
    if not report.ok:
        return report
    # A record beyond the head is either younger than it, and then so is the head by now, or was put there by hand.
    beyond = next(store.audit_rows(head[0]), None)
    if beyond is None or beyond.sequence <= store.audit_head()[0]:
        return report
    what = f"record {beyond.sequence} follows the last one that was made, {head[0]}"
    return AuditReport(ok=False, count=report.count, first_bad=beyond.sequence, what=what)


def export(records: Iterable[AuditRecord], stream: TextIO) -> int:
    """Write the records as lines of JSON; return how many."""
    count = 0
    for count, record in enumerate(records, 1):  # noqa: B007 - the last number is the result
        stream.write(canonical(_line_of(record)) + "\n")
    return count


def verify_export(lines: Iterable[str], head: tuple[int, str] | None = None) -> AuditReport:
    """Check an export. Lines missing at its end are found only by ``head``, the sequence and hash of the last one."""
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
        what = f"{count - head[0]} records follow the last one that was made, {head[0]}"
        return AuditReport(ok=False, count=head[0], first_bad=head[0] + 1, what=what)
    return AuditReport(ok=False, count=count - 1, first_bad=count, what="the last record is not the one that was made")


def _problem(line: dict[str, Any] | None, expected: int, previous: str) -> str:
    """Return what is wrong with a line that should be the ``expected``-th, or nothing."""
    if line is None or line.keys() != _KEYS or line["schema"] != SCHEMA:
        return f"this is not a record of {SCHEMA}"
    sequence = line["sequence"]
    if sequence != expected:
        return f"record {expected} was expected here, and record {sequence!r} was found: one is missing, added or moved"
    if line["previous_hash"] != previous:
        return "it does not follow the record before it: one was removed, added or replaced"
    try:
        right = line["hash"] == _hash_of(line)
    except InvalidInputError:  # a number that JSON does not have, which Python reads all the same
        right = False
    return "" if right else "its content is not what was recorded"
