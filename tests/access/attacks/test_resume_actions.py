"""Attacks on resume actions: ended approvals, other organizations, ended sessions."""

from __future__ import annotations

import logging

import pytest

from democrai_sandbox.access.caller import Caller
from democrai_sandbox.access.encryption import Sealer
from democrai_sandbox.access.keyring import EncryptionKey, KeyRing
from democrai_sandbox.access.resumptions import ResumeRunner
from democrai_sandbox.access.values import AuditFilter, DecisionEffect, PageRequest, RequestFilter, RequestState
from tests.access.conftest import DEMO
from tests.services.golden import sentence

RING = KeyRing((EncryptionKey("first", b"1" * 32),))
SEALER = Sealer(lambda: RING)
URL = "https://api.test/v1"


@pytest.fixture
def keeping(make_desk):
    """Service with keys, and the resumptions that ran in it."""
    desk = make_desk(seal=SEALER.seal)
    desk.ran = []

    def handler(context, *, origin, subject, request_id):
        desk.ran.append((context, origin, str(subject), request_id))

    desk.runner = ResumeRunner(
        desk.store, SEALER, {"go": handler, "other": handler}, node="here", clock=desk.node.clock
    )
    return desk


def ask(desk, *, user=None, target=URL, action="go", context=None):
    """Require an access with a resume action."""
    with desk.around.serving(user or desk.around.present):
        return desk.service.require_external_access(
            resource_type="network",
            operation="receive",
            target=target,
            subject=DEMO,
            resume_action=action,
            resume_context=context,
        ).request_id


def revoke(desk, decision):
    desk.decide("revoke", decision.id)


def deny(desk, decision):
    desk.decide(
        "decide_unasked",
        DEMO,
        resource_type="network",
        operation="receive",
        target=decision.access.target,
        effect=DecisionEffect.DENIAL,
    )


def end(desk, decision):
    desk.administration.end_session(decision.session_key)


@pytest.mark.parametrize(("approve", "undo"), [
    ("approve_permanently", revoke),
    ("approve_permanently", deny),
    ("approve_for_session", revoke),
    ("approve_for_session", deny),
    ("approve_for_session", end),
])  # fmt: skip
def test_nothing_goes_on_after_its_approval_has_ended(keeping, approve, undo):
    """An approval that ended before the action runs: the action fails permanently, with a record."""
    asked = ask(keeping, context={"page": 1})
    undo(keeping, keeping.decide(approve, asked).decision)
    keeping.runner.run_due()
    assert keeping.ran == []
    (found,) = keeping.store.resumes(unfinished=False, page=PageRequest()).items
    assert found.finished_at is not None
    assert found.last_error


def test_an_action_of_one_organization_is_not_tied_to_the_request_of_another(keeping):
    """The same user without a session in two organizations: the second's action must not run as the first."""
    first = keeping.check(URL, user=Caller(user_id="uma", organization_id="north")).request_id
    ask(keeping, user=Caller(user_id="uma", organization_id="south"), context={"of": "south"})
    keeping.decide("approve_permanently", first)
    keeping.runner.run_due()
    assert [(context, origin.organization_id) for context, origin, _, _ in keeping.ran] in (
        [],
        [({"of": "south"}, "south")],
    )
    failed = [found.last_error for found in keeping.store.resumes(unfinished=False, page=PageRequest()).items]
    assert [error for error in failed if error] == [], "it failed because it was sealed for another organization"


def test_an_action_without_a_context_does_not_run_as_another_organization(keeping):
    """Without a context nothing is encrypted, so encryption does not detect the other organization."""
    first = keeping.check(URL, user=Caller(user_id="uma", organization_id="north")).request_id
    ask(keeping, user=Caller(user_id="uma", organization_id="south"))
    keeping.decide("approve_permanently", first)
    keeping.runner.run_due()
    assert [origin.organization_id for _, origin, _, _ in keeping.ran] in ([], ["south"])


def test_an_action_that_came_after_the_request_is_in_the_audit(keeping):
    """The approver starts the action, so the audit log must record its attachment with time and user."""
    asked = keeping.check(URL).request_id
    ask(keeping, action="other")
    told = [record.after for record in keeping.store.audit(AuditFilter(request_id=asked), PageRequest()).items]
    assert [after for after in told if after.get("resume_action") == "other"]


def test_the_record_of_an_approval_names_the_actions_that_it_starts(keeping):
    """An action that was attached after the list was read would otherwise run without a trace in its approval."""
    asked = keeping.check(URL).request_id
    ask(keeping, action="other")
    keeping.decide("approve_permanently", asked)
    approval = next(
        record
        for record in keeping.store.audit(AuditFilter(request_id=asked), PageRequest()).items
        if record.action == "approved"
    )
    assert "other" in str(approval.after)


def test_an_approval_for_a_session_that_has_ended_is_not_made(desk):
    """A running task requests access after the end of its session: an approval for it would never end."""
    desk.administration.end_session("s1")
    asked = desk.check(URL).request_id
    outcome = desk.decide("approve_for_session", asked)
    assert outcome.decision is None
    assert outcome.skipped


def test_a_session_that_ended_while_it_was_decided_leaves_no_approval(desk):
    """Whichever comes first, no decision is in force for the session afterwards."""
    asked = [desk.check(f"{URL}/{number}").request_id for number in range(4)]
    desk.decide("approve_for_session", asked[0])
    desk.administration.end_session("s1")
    for request_id in asked[1:]:
        assert desk.decide("approve_for_session", request_id).decision is None
    assert desk.decide("approvals").items == ()
    assert desk.store.requests(RequestFilter(states=(RequestState.PENDING,)), PageRequest()).items


def test_a_context_leaves_no_trace_in_errors_that_are_kept(keeping, caplog):
    """An error of a handler often contains its input; the audit log and the log are not encrypted."""

    def handler(context, **_):
        return int(context["password"])

    keeping.runner = ResumeRunner(keeping.store, SEALER, {"go": handler}, node="here", clock=keeping.node.clock)
    asked = ask(keeping, context={"password": "hunter2-\x1b[31m-secret"})
    keeping.decide("approve_permanently", asked)
    with caplog.at_level(logging.WARNING):
        keeping.runner.run_due()
    (found,) = keeping.store.resumes(unfinished=True, page=PageRequest()).items
    kept = [found.last_error, caplog.text]
    kept += [str(record.after) for record in keeping.store.audit(AuditFilter(request_id=asked), PageRequest()).items]
    assert [text for text in kept if "hunter2" in text] == []


def test_two_requests_never_share_what_they_go_on_with(keeping):
    """A context that an owner of the database moves to another request does not decrypt there."""
    first, second = ask(keeping, context={"n": 1}), ask(keeping, target=f"{URL}/2", context={"n": 2})
    blob = keeping.store.resume_context(first)
    assert blob is not None
    keeping.store.replace_contexts(lambda request, _: blob if request.id == second else None)
    keeping.decide("approve_permanently", second)
    keeping.runner.run_due()
    assert keeping.ran == []
    (found,) = keeping.store.resumes(unfinished=False, page=PageRequest()).items
    sentence("the context of another request", found.last_error)
