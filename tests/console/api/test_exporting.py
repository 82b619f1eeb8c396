"""Exports of the audit log: hostile text is unchanged in JSON, and is not a formula in a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from democrai_sandbox.access.audit import record_hash, verify_export
from democrai_sandbox.access.values import AccessTuple, AuditAction, AuditFilter, AuditRecord
from democrai_sandbox.console.api.accounts import COLUMNS, as_csv, as_jsonl, is_wanted
from democrai_sandbox.policy import Operation, ResourceType, Subject, SubjectKind
from tests.services.rows import rows

BEGUN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HOSTILE = [
    *("=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "  =1", "\uff1d1", "a\0b", "half \ud800"),
    *('quote"comma,', "line\nbreak", "\u202eevil", "<script>alert(1)</script>"),
]


def records(texts):
    """A chain of records, each with one of the texts as actor and as target."""
    made, last = [], ""
    for number, text in enumerate(texts, 1):
        access = AccessTuple(
            Subject(SubjectKind.MODULE, "weather"), ResourceType.FILESYSTEM, Operation.READ, f"/tmp/{text}"
        )
        at = BEGUN + timedelta(seconds=number)
        record = AuditRecord(
            number, at, AuditAction.REQUESTED, text, access, f"r{number}", {}, {"reason": text}, last, ""
        )
        made.append(replace(record, hash=record_hash(record)))
        last = made[-1].hash
    return made


def test_jsonl_is_verified_and_intact():
    """The lines can be verified and contain every text unchanged."""
    text = b"".join(as_jsonl(records(HOSTILE))).decode("ascii")
    assert verify_export(text.splitlines()).ok
    assert [json.loads(line)["actor"] for line in text.splitlines()] == HOSTILE


def test_csv_has_no_formula():
    """No cell starts like a formula, and a CSV reader finds one row per record."""
    rows = list(csv.reader(io.StringIO(b"".join(as_csv(records(HOSTILE))).decode(), newline="")))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == len(HOSTILE) + 1
    for row in rows[1:]:
        for cell in row:
            assert not cell.lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d"))
    actors = [row[COLUMNS.index("actor")] for row in rows[1:]]
    assert actors[:3] == ["'=1+1", "'+1", "'-1"]
    assert actors[-1] == HOSTILE[-1]


@rows("form", [as_jsonl, as_csv])
def test_it_is_streamed(form):
    """Output starts before all records are read."""
    taken = []

    def many():
        for record in records(["x" * 1000] * 1000):
            taken.append(record.sequence)
            yield record

    lines = form(many())
    next(lines)
    assert len(taken) < 500


def test_filter():
    """An export has the same records as the list with the same filter."""
    first, second, third = records(["ada", "bob", "ada"])
    third = replace(third, access=None, action=AuditAction.REVOKED)
    weather = Subject(SubjectKind.MODULE, "weather")
    cases = {
        AuditFilter(): [1, 2, 3],
        AuditFilter(actor="ada"): [1, 3],
        AuditFilter(subject=weather): [1, 2],
        AuditFilter(subject=Subject(SubjectKind.MODULE, "other")): [],
        AuditFilter(actions=(AuditAction.REVOKED,)): [3],
        AuditFilter(request_id="r2"): [2],
        AuditFilter(since=second.at): [2, 3],
        AuditFilter(until=second.at): [1],
    }
    for wanted, expected in cases.items():
        found = [record.sequence for record in (first, second, third) if is_wanted(record, wanted)]
        assert found == expected, wanted
