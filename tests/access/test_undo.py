"""Undo reverses the effects of a decision: the decision, its answers, and the replaced decisions."""

from __future__ import annotations

from datetime import timedelta

import pytest

from democrai_sandbox.access.caller import Caller
from democrai_sandbox.access.values import AuditAction, DecisionEffect, DecisionFilter, PageRequest, RequestState
from democrai_sandbox.errors import DecisionConflict, ExternalAccessAdminRequired
from democrai_sandbox.policy import DecisionCode
from tests.access.conftest import DEMO

URL = "https://api.test/v1"
UMA, BEN = Caller(user_id="uma", session_key="s1"), Caller(user_id="ben", session_key="s2")


def unasked(desk, effect, target=URL):
    rule = {"resource_type": "network", "operation": "receive", "target": target}
    return desk.decide("decide_unasked", DEMO, **rule, effect=effect).decision


def states(desk, *ids):
    return [desk.store.request(one).state.value for one in ids]


def in_force(desk):
    return {one.id for one in desk.store.decisions(DecisionFilter(), PageRequest()).items}


def test_what_a_decision_did_is_known(desk):
    """Its request, other answered requests, and replaced decisions."""
    own, other = desk.check(URL, user=UMA).request_id, desk.check(f"{URL}/below", user=BEN).request_id
    made = desk.decide("approve_permanently", own).decision
    found = desk.decide("aftermath", made.id)
    assert sorted(found.answered) == sorted([own, other])
    assert (found.replaced, found.started) == ((), ())


def test_the_requests_wait_again_and_nothing_else_changes(desk):
    """The approval ends, both requests are pending, an earlier denial of another access stays."""
    elsewhere = unasked(desk, DecisionEffect.DENIAL, "https://other.test")
    own, other = desk.check(URL, user=UMA).request_id, desk.check(f"{URL}/below", user=BEN).request_id
    before = [desk.store.request(one) for one in (own, other)]
    made = desk.decide("approve_permanently", own, reason="a slip").decision
    undone = desk.decide("undo", made.id)
    assert sorted(undone.reopened) == sorted([own, other])
    assert (undone.kept, undone.restored) == ((), ())
    assert [desk.store.request(one) for one in (own, other)] == before
    assert in_force(desk) == {elsewhere.id}
    assert desk.check(URL, user=UMA, register_request=False).code is DecisionCode.NOT_ENABLED


@pytest.mark.parametrize("first", list(DecisionEffect))
def test_what_it_replaced_is_in_force_again(desk, first):
    """A denial that replaced an approval, and vice versa, are reversed."""
    before = unasked(desk, first)
    second = DecisionEffect.DENIAL if first is DecisionEffect.APPROVAL else DecisionEffect.APPROVAL
    made = unasked(desk, second)
    assert desk.decide("aftermath", made.id).replaced == (before.id,)
    undone = desk.decide("undo", made.id)
    assert [one.id for one in undone.restored] == [before.id]
    assert in_force(desk) == {before.id}
    assert desk.check(URL, register_request=False).allowed is (first is DecisionEffect.APPROVAL)


def test_approvals_of_a_session_that_ended_meanwhile_stay_ended(desk):
    """Undoing a denial restores an approval only for a session that has not ended."""
    ended, going_on = (desk.check(URL, user=user).request_id for user in (UMA, BEN))
    for one in (ended, going_on):
        desk.decide("approve_for_session", one)
    denial = unasked(desk, DecisionEffect.DENIAL)
    desk.administration.end_session("s1")
    (restored,) = desk.decide("undo", denial.id).restored
    assert restored.session_key == "s2"


def test_a_request_of_a_session_that_ended_meanwhile_says_so(desk):
    """It is pending again and cannot be approved for its session."""
    asked = desk.check(URL, user=UMA).request_id
    made = desk.decide("deny_external_access", asked).decision
    desk.administration.end_session("s1")
    desk.decide("undo", made.id)
    assert desk.store.request(asked).session_ended


def test_a_newer_decision_stands_in_the_way(desk):
    """The replaced decision is not restored over a newer one; the decision itself stays in force."""
    unasked(desk, DecisionEffect.DENIAL)
    asked = unasked(desk, DecisionEffect.APPROVAL)
    newer = unasked(desk, DecisionEffect.APPROVAL)
    with pytest.raises(DecisionConflict):
        desk.decide("undo", asked.id)
    assert in_force(desk) == {newer.id}


def test_undoing_twice_is_a_conflict(desk):
    """The second attempt changes nothing."""
    made = unasked(desk, DecisionEffect.APPROVAL)
    desk.decide("undo", made.id)
    with pytest.raises(DecisionConflict):
        desk.decide("undo", made.id)


def test_a_request_whose_action_has_resumed_stays_answered(desk):
    """A completed action cannot be undone; an action that has not started is dropped with the approval."""
    now = desk.node.clock()
    wanted = {"resource_type": "network", "operation": "receive", "subject": DEMO, "resume_action": "go"}
    targets = (f"{URL}/a", f"{URL}/b")
    ids = [desk.service.require_external_access(target=target, **wanted).request_id for target in targets]
    made = desk.decide("approve_permanently", ids[0], target=URL).decision
    claimed = desk.store.claim_resume(node="n", lease_until=now + timedelta(minutes=5), now=desk.node.clock())
    waiting = next(one for one in ids if one != claimed.request_id)
    assert desk.decide("aftermath", made.id).started == (claimed.request_id,)
    undone = desk.decide("undo", made.id)
    assert undone.kept == (claimed.request_id,)
    assert undone.reopened == (waiting,)
    assert states(desk, claimed.request_id, waiting) == ["revoked", "pending"]
    assert desk.decide("approve_permanently", waiting).decision
    assert desk.store.resume_of(waiting).attempts == 0


def test_the_audit_keeps_who_undid_what(desk):
    """The record is that of a revocation, with the reopened requests."""
    asked = desk.check(URL).request_id
    made = desk.decide("approve_permanently", asked).decision
    desk.decide("undo", made.id, reason="a slip")
    record = desk.decide("history").items[0]
    assert (record.action, record.actor) == (AuditAction.REVOKED, "ada")
    assert record.after == {"reason": "a slip", "undone": True, "requests": [asked], "decisions": []}


def test_others_do_not_undo(desk):
    """It requires the same rights as deciding."""
    made = unasked(desk, DecisionEffect.APPROVAL)
    with pytest.raises(ExternalAccessAdminRequired):
        desk.administration.undo(made.id)
    assert in_force(desk) == {made.id}


def test_how_far_a_decision_reaches_is_known_before(desk):
    """For each target: the other pending requests, their users, and those of the same session."""
    own = desk.check(f"{URL}/a", user=UMA).request_id
    desk.check(f"{URL}/a", user=BEN)
    desk.check(f"{URL}/b", user=UMA)
    request = desk.store.request(own)
    exact, wider = desk.decide("reach", request.access, [f"{URL}/a", URL], own=own, session_key="s1")
    assert (exact.requests, exact.users, exact.in_session) == (1, 1, 0)
    assert (wider.requests, wider.users, wider.in_session) == (2, 2, 1)
    assert desk.store.request(own).state is RequestState.PENDING


def test_how_far_many_decisions_reach_is_known_before(desk):
    """Other answered requests, each counted once; for sessions, those of the same session."""
    chosen = [desk.check(f"{URL}/a", user=user).request_id for user in (UMA, BEN)]
    desk.check(f"{URL}/a/below", user=UMA)
    desk.check(f"{URL}/elsewhere", user=UMA)
    cleo = Caller(user_id="cleo", session_key="s3")
    desk.check(f"{URL}/a/below", user=cleo)
    found = desk.decide("reach_of", [desk.store.request(one) for one in chosen])
    assert (found.requests, found.users, found.in_session, found.more) == (2, 2, 1, False)
