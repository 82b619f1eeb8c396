"""Decided accesses and recent requests are answered without the database."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from sqlalchemy import Engine, event

from democrai_sandbox.access.checks import GuardQuestion

from .conftest import DEMO, limits

CHECKS = 50
APPROVED, BROAD, FOR_SESSION, DENIED, UNDECIDED = (
    f"https://{name}.test/v1" for name in ("approved", "broad", "session", "denied", "undecided")
)
APPROVED_FILE = "/srv/approved"
ANSWERS = {
    ("network", "receive", APPROVED): "permanent_approval",
    ("network", "receive", f"{BROAD}/deeper/still"): "permanent_approval",
    ("network", "receive", FOR_SESSION): "session_approval",
    ("network", "receive", DENIED): "denied",
    ("network", "receive", UNDECIDED): "not_enabled",
    ("filesystem", "read", APPROVED_FILE): "permanent_approval",
    ("filesystem", "read", "/srv/undecided"): "not_enabled",
}


@contextmanager
def counted():
    """Yield the statements that are sent to any database meanwhile."""
    statements = []

    def note(connection, cursor, statement, parameters, context, many):
        del connection, cursor, parameters, context, many
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(Engine, "before_cursor_execute", note)


@pytest.fixture
def decided(make_desk):
    """Service with decisions about all but the undecided accesses; only checks run on it."""
    desk = make_desk(limits=limits(counting_seconds=3600))
    for target in (APPROVED, BROAD):
        desk.decide("approve_permanently", desk.check(target).request_id)
    desk.decide("approve_permanently", desk.check(APPROVED_FILE, kind="filesystem", operation="read").request_id)
    desk.decide("approve_for_session", desk.check(FOR_SESSION).request_id)
    desk.decide("deny_external_access", desk.check(DENIED).request_id)
    return desk


def question(kind, operation, target):
    """Ask as the guard does."""
    return GuardQuestion(
        subject=DEMO.name,
        subject_kind=DEMO.kind.value,
        subject_chain=(str(DEMO),),
        resource_type=kind,
        operation=operation,
        target=target,
        register_request=False,
        user_id="uma",
        organization_id=None,
        session_key="s1",
        resume_action="",
        resume_context=None,
    )


def test_checks_ask_the_database_nothing(decided):
    """Checks, including the first one, run no statement for approved, denied and undecided accesses."""

    def check(kind, operation, target):
        return decided.check(target, kind=kind, operation=operation, register_request=False).code

    with counted() as statements:
        codes = {place: {check(*place) for _ in range(CHECKS)} for place in ANSWERS}
    assert codes == {place: {code} for place, code in ANSWERS.items()}
    assert statements == []


def test_the_guard_is_answered_without_the_database(decided):
    """Questions of the guard take the same path."""
    with counted() as statements:
        codes = {place: {decided.service.decide(question(*place)).code for _ in range(CHECKS)} for place in ANSWERS}
    assert codes == {place: {code} for place, code in ANSWERS.items()}
    assert statements == []


def test_a_request_is_written_once(decided):
    """The first check of an undecided access writes; later ones are counted in memory for a while."""
    with counted() as first:
        request_id = decided.check(UNDECIDED).request_id
    with counted() as later:
        again = {decided.check(UNDECIDED).request_id for _ in range(CHECKS)}
    assert again == {request_id}
    assert any("access_requests" in statement for statement in first)
    assert later == []


def test_a_change_is_read_once(decided):
    """After a decision the node reads the change; later checks are answered from memory."""
    request_id = decided.check(UNDECIDED).request_id
    with counted() as acts:
        decided.decide("approve_permanently", request_id)
    with counted() as later:
        codes = {decided.check(UNDECIDED).code for _ in range(CHECKS)}
    assert codes == {"permanent_approval"}
    assert any("access_decisions" in statement for statement in acts)
    assert later == []
