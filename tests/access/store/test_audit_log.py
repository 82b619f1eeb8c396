"""Audit table: append-only, and every direct change is detected."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import DBAPIError

from democrai_sandbox.access.audit import verify, verify_store
from democrai_sandbox.access.values import AuditAction
from democrai_sandbox.errors import InvalidInputError
from tests.access.store.samples import NOW, about, actions, approval, at, request, sql
from tests.services.rows import rows

ADDED = (
    "INSERT INTO access_audit (sequence, at, action, actor, request_id, before, after, previous_hash, hash) "
    "VALUES (7, 0, 'approved', 'eve', '', '{}', '{}', '', '')"
)


def fill(store):
    for number in range(6):
        store.decide(approval(f"/{number}"), now=at(number))
    return store


@pytest.fixture
def filled(store):
    return fill(store)


@pytest.fixture
def unguarded(own_store, own_url):
    """Store with some records, and a copy of them, whose triggers were removed."""
    if own_url.startswith("sqlite"):
        off = [f"DROP TRIGGER access_audit_no_{kind}" for kind in ("update", "delete", "replace")]
    else:
        off = ["ALTER TABLE access_audit DISABLE TRIGGER USER"]
    kept = [f"CREATE TABLE kept_{name} AS SELECT * FROM access_{name}" for name in ("audit", "meta")]
    fill(own_store)
    sql(own_url, *off, *kept)
    return own_store


@rows(
    "statement",
    [
        "UPDATE access_audit SET actor = 'eve' WHERE sequence = 2",
        "UPDATE access_audit SET actor = actor",
        "DELETE FROM access_audit WHERE sequence = 6",
        "DELETE FROM access_audit",
        "sqlite: INSERT OR REPLACE INTO access_audit SELECT * FROM access_audit WHERE sequence = 2",
        "postgresql: TRUNCATE access_audit",
        (
            "postgresql: INSERT INTO access_audit SELECT * FROM access_audit WHERE sequence = 2 "
            "ON CONFLICT (sequence) DO UPDATE SET actor = 'eve'"
        ),
    ],
)
def test_rows_can_only_be_added(filled, url, statement):
    """The database refuses other changes from any program."""
    kind, colon, rest = statement.partition(": ")
    if colon and not url.startswith(kind):
        return
    with pytest.raises(DBAPIError, match="append-only"):
        sql(url, rest if colon else statement)
    assert verify_store(filled).count == 6


@rows(
    ("statement", "first_bad"),
    [
        ("UPDATE access_audit SET actor = 'eve' WHERE sequence = 2", 2),
        ("UPDATE access_audit SET at = at + 1 WHERE sequence = 1", 1),
        ("UPDATE access_audit SET target = '/etc' WHERE sequence = 6", 6),
        ("UPDATE access_audit SET after = '{' WHERE sequence = 3", 3),
        ("UPDATE access_audit SET after = '[]' WHERE sequence = 3", 3),
        ("UPDATE access_audit SET subject_name = '' WHERE sequence = 3", 3),
        ("DELETE FROM access_audit WHERE sequence = 1", 1),
        ("DELETE FROM access_audit WHERE sequence = 4", 4),
        ("DELETE FROM access_audit WHERE sequence >= 5", 5),
        ("DELETE FROM access_audit", 1),
        ("UPDATE access_audit SET sequence = 7 WHERE sequence = 6", 6),
        ("UPDATE access_meta SET audit_sequence = 5", 5),
        ("UPDATE access_meta SET audit_hash = ''", 6),
        (ADDED, 7),
    ],
)
def test_what_is_done_past_the_triggers_shows(unguarded, own_url, statement, first_bad):
    """Change, removal, insertion and a moved head are detected at their place."""
    assert verify_store(unguarded).ok
    unchecked = ["PRAGMA ignore_check_constraints = ON"] if own_url.startswith("sqlite") else []
    sql(own_url, *unchecked, statement)
    report = verify_store(unguarded)
    sql(
        own_url,
        "DELETE FROM access_audit",
        "INSERT INTO access_audit SELECT * FROM kept_audit",
        "UPDATE access_meta SET audit_sequence = (SELECT audit_sequence FROM kept_meta), "
        "audit_hash = (SELECT audit_hash FROM kept_meta)",
    )
    assert (report.ok, report.first_bad) == (False, first_bad)


def test_a_record_by_itself(store):
    """The returned record equals the stored one and follows the previous one."""
    made = store.record(
        AuditAction.CHECK_FAILED, actor="system", now=NOW, access=about(), request_id="r", after={"tries": (1, 2)}
    )
    assert made.after == {"tries": [1, 2]}
    assert list(store.audit_rows()) == [made]
    assert store.audit_head() == (1, made.hash)
    second = store.record(AuditAction.CHECK_FAILED, actor="system", now=NOW)
    assert (second.previous_hash, second.access) == (made.hash, None)
    assert verify(store.audit_rows(), store.audit_head()).ok


def test_a_record_that_is_not_json_is_refused(store):
    """Nothing is written."""
    with pytest.raises(InvalidInputError):
        store.record(AuditAction.CHECK_FAILED, actor="system", now=NOW, after={"x": object()})
    assert (store.audit_head(), actions(store)) == ((0, ""), [])


def test_rows_come_in_order_and_from_a_place_on(store):
    """More records than one batch are read."""
    for number in range(4):
        store.register(request(f"/{number}"), now=NOW)
    store.age_out(before=at(1), now=at(1))
    for _ in range(3):
        store.decide(approval(), now=NOW)
    assert [record.sequence for record in store.audit_rows()] == list(range(1, 12))
    assert [record.sequence for record in store.audit_rows(after=9)] == [10, 11]
    assert list(store.audit_rows(after=11)) == []


def test_many_rows(filled, monkeypatch):
    """Reading in batches loses and repeats no record, also while others append."""
    monkeypatch.setattr("democrai_sandbox.access.store.audit_log._AT_ONCE", 2)
    seen = []
    for record in filled.audit_rows():
        seen.append(record.sequence)
        if record.sequence == 3:
            filled.decide(approval("/late"), now=NOW)
    assert seen == [1, 2, 3, 4, 5, 6, 7]
    assert verify_store(filled) == verify(filled.audit_rows(), filled.audit_head())
