"""Hash chain: every change to the records is detected."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from democrai_sandbox.access.audit import AuditReport, canonical, export, record_hash, verify, verify_export
from democrai_sandbox.access.values import AccessTuple, AuditAction, AuditRecord
from democrai_sandbox.errors import InvalidInputError
from democrai_sandbox.policy import Operation, ResourceType, Subject
from tests.services.golden import sentence
from tests.services.rows import rows

ACCESS = AccessTuple(Subject.parse("module:demo"), ResourceType.FILESYSTEM, Operation.READ, "/srv/\udcff")
START = datetime(2026, 1, 1, tzinfo=UTC)


def linked(records):
    """Return records with numbers and hashes of this order."""
    chain, last = [], ""
    for number, record in enumerate(records, 1):
        record = replace(record, sequence=number, previous_hash=last)
        last = record_hash(record)
        chain.append(replace(record, hash=last))
    return chain


def make(count):
    texts = (AuditAction.REQUESTED, AuditAction.APPROVED, AuditAction.REVOKED)
    return linked(
        AuditRecord(
            sequence=0,
            at=START + timedelta(microseconds=number),
            action=texts[number % 3],
            actor=f"user-{number}",
            access=ACCESS if number % 2 else None,
            request_id=f"r-{number}",
            before={"n": number, "deep": {"ü": [None, True, 1.5]}},
            after={},
            previous_hash="",
            hash="",
        )
        for number in range(count)
    )


def head(chain):
    return (chain[-1].sequence, chain[-1].hash) if chain else (0, "")


CHAIN = make(6)
CHANGES = {
    "at": START - timedelta(days=1),
    "action": AuditAction.DENIED,
    "actor": "eve",
    "access": replace(ACCESS, target="/etc"),
    "request_id": "r-x",
    "before": {"n": 99},
    "after": {"more": 1},
    "previous_hash": "0" * 64,
    "hash": "0" * 64,
    "sequence": 77,
}


def test_a_whole_chain_is_whole():
    """A chain of any length is valid, including an empty one."""
    for count in (0, 1, 6):
        chain = make(count)
        assert verify(chain, head(chain)) == AuditReport(ok=True, count=count)


@rows("name", CHANGES)
@rows("place", range(6))
def test_a_change_of_any_part_shows_where_it_is(name, place):
    """Every field of every record is covered, including the first and last."""
    chain = list(CHAIN)
    chain[place] = replace(chain[place], **{name: CHANGES[name]})
    report = verify(chain, head(CHAIN))
    assert (report.ok, report.first_bad, report.count) == (False, place + 1, place)
    assert report.what


@rows("place", range(6))
def test_a_change_with_a_new_hash_shows_at_the_next_record(place):
    """A new hash for one record breaks the link to the next one, or to the head."""
    chain = list(CHAIN)
    changed = replace(chain[place], actor="eve")
    chain[place] = replace(changed, hash=record_hash(changed))
    report = verify(chain, head(CHAIN))
    assert (report.ok, report.first_bad) == (False, min(place + 2, 6))


@rows("place", range(6))
def test_a_removed_record_shows(place):
    """In the middle, at the start, and at the end, where only the head reveals it."""
    report = verify([record for record in CHAIN if record.sequence != place + 1], head(CHAIN))
    assert (report.ok, report.first_bad, report.count) == (False, place + 1, place)


def test_all_records_gone_shows():
    """An empty table is valid only if nothing was ever recorded."""
    report = verify([], head(CHAIN))
    assert (report.ok, report.count, report.first_bad) == (False, 0, 1)
    sentence("all records gone", report.what)


@rows("place", range(7))
def test_an_inserted_record_shows(place):
    """At any position, including after the last one."""
    chain = list(CHAIN)
    before = chain[place - 1].hash if place else ""
    added = replace(CHAIN[0], sequence=place + 1, actor="eve", previous_hash=before)
    chain.insert(place, replace(added, hash=record_hash(added)))
    report = verify(chain, head(CHAIN))
    assert (report.ok, report.first_bad) == (False, min(place + 2, 7))


def test_moved_records_show():
    """Any two swapped records are detected."""
    for first in range(5):
        for second in range(first + 1, 6):
            chain = list(CHAIN)
            chain[first], chain[second] = chain[second], chain[first]
            report = verify(chain, head(CHAIN))
            assert (report.ok, report.first_bad) == (False, first + 1)


def test_a_rewritten_tail_shows_by_the_head():
    """A consistent chain is compared with the stored head."""
    forged = linked([*CHAIN[:4], replace(CHAIN[4], actor="eve"), CHAIN[5]])
    assert verify(forged, head(forged)).ok
    report = verify(forged, head(CHAIN))
    assert (report.ok, report.count, report.first_bad) == (False, 5, 6)
    sentence("a rewritten tail", report.what)


@rows("numbers", [(2, 3, 4), (1, 2, 2), (1, 3, 4), (0, 1, 2), (1, 2, -3)])
def test_numbers_have_no_gap(numbers):
    """A gap is detected even if every hash is right."""
    chain, last = [], ""
    for number, record in zip(numbers, CHAIN, strict=False):
        record = replace(record, sequence=number, previous_hash=last)
        last = record_hash(record)
        chain.append(replace(record, hash=last))
    report = verify(chain, (3, last))
    assert not report.ok
    assert report.first_bad == next(place for place in (1, 2, 3) if numbers[place - 1] != place)


def test_an_export_says_everything_and_can_be_checked_by_itself():
    """Each line has its schema; the lines alone are enough to detect changes."""
    stream = io.StringIO()
    assert export(CHAIN, stream) == 6
    lines = stream.getvalue().splitlines()
    assert verify_export(lines) == AuditReport(ok=True, count=6)
    assert verify_export(lines, head(CHAIN)).ok
    first = json.loads(lines[1])
    assert first.pop("hash") == CHAIN[1].hash
    assert first == {
        "schema": "democrai-sandbox/audit/1",
        "sequence": 2,
        "at": "2026-01-01T00:00:00.000001+00:00",
        "action": "approved",
        "actor": "user-1",
        "access": {
            "subject_kind": "module",
            "subject_name": "demo",
            "resource_type": "filesystem",
            "operation": "read",
            "target": "/srv/\udcff",
        },
        "request_id": "r-1",
        "before": {"n": 1, "deep": {"ü": [None, True, 1.5]}},
        "after": {},
        "previous_hash": CHAIN[0].hash,
    }


def exported():
    stream = io.StringIO()
    export(CHAIN, stream)
    return stream.getvalue().splitlines()


@rows(
    "line",
    [
        "",
        "{",
        "7",
        "null",
        "[]",
        "{}",
        "[" * 100_000,
        '{"schema": "democrai-sandbox/audit/1"}',
        exported()[2].replace("audit/1", "audit/2"),
        exported()[2].replace('"n":2', '"n":NaN'),
        exported()[2].replace('"n":2', '"n":2.0'),
        exported()[2].replace('"sequence":3', '"sequence":3.0'),
        exported()[2].replace('"sequence":3', '"sequence":"3"'),
        exported()[2].replace("user-2", "user-3"),
        exported()[2].replace('"after":{}', '"after":{},"extra":1'),
    ],
)
def test_a_line_that_is_not_the_record_is_found(line):
    """Invalid JSON, other schemas, and every change of content are detected."""
    lines = exported()
    report = verify_export([*lines[:2], line, *lines[3:]])
    assert (report.ok, report.first_bad, report.count) == (False, 3, 2)


def test_missing_lines_at_the_end_need_the_head():
    """The lines alone do not reveal how many there were."""
    assert verify_export(exported()[:4]).ok
    assert verify_export(exported()[:4], head(CHAIN)).first_bad == 5


@given(st.integers(0, 5), st.data())
def test_any_changed_character_of_an_export_is_found(number, data):
    """A change at any position is detected, except white space that JSON ignores."""
    lines = exported()
    place = data.draw(st.integers(0, len(lines[number]) - 1))
    character = data.draw(st.characters(codec="utf-8"))
    changed = lines[number][:place] + character + lines[number][place + 1 :]
    try:
        same = json.loads(changed) == json.loads(lines[number])
    except ValueError:
        same = False
    report = verify_export([*lines[:number], changed, *lines[number + 1 :]])
    assert report.ok == same or (not report.ok and report.first_bad == number + 1)


@rows("value", [float("nan"), float("inf"), {1, 2}, object(), b"x"])
def test_what_is_not_json_is_refused(value):
    """It is rejected before it enters a record."""
    with pytest.raises(InvalidInputError):
        canonical({"value": value})
