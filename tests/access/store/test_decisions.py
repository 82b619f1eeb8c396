"""Decisions: the decisions they end, the requests they answer, and the generation."""

from __future__ import annotations

import pytest

from democrai_sandbox.access.values import (
    DecisionEffect,
    DecisionFilter,
    DecisionScope,
    NewDecision,
    RequestFilter,
    RequestState,
)
from democrai_sandbox.errors import DecisionConflict, DecisionUnknown, InvalidInputError, RequestUnknown
from tests.access.store.samples import ALL, NOW, about, actions, approval, at, denial, live, request
from tests.services.golden import sentence
from tests.services.rows import rows


def test_a_decision_is_kept_with_all_that_was_told(store):
    """All fields of a decision are stored."""
    made = store.decide(approval(expires_at=at(60)), now=NOW)
    assert store.decision(made.id) == made
    assert (made.access, made.effect, made.scope, made.session_key) == (
        about(),
        DecisionEffect.APPROVAL,
        DecisionScope.PERMANENT,
        "",
    )
    assert (made.created_at, made.created_by, made.reason, made.request_id) == (NOW, "root", "fine", "")
    assert (made.generation, made.expires_at, made.ended_at, made.ended_by) == (1, at(60), None, "")


def test_approving_answers_the_request(store):
    """The request gets its state, decider, time and reason; the decision references its request."""
    asked = store.register(request(), now=NOW).request_id
    made = store.decide(approval(request_id=asked), now=at(5))
    found = store.request(asked)
    assert found.state is RequestState.APPROVED
    assert (found.decided_at, found.decided_by, found.reason) == (at(5), "root", "fine")
    assert made.request_id == asked


def test_a_permanent_decision_answers_everybody_who_asked_the_same(store):
    """All pending requests for the access are answered, others are not."""
    mine = store.register(request(user="ann", session="s-1"), now=NOW).request_id
    others = [store.register(request(user=user, session="s-9"), now=NOW).request_id for user in ("bob", "cyd")]
    different = store.register(request("/else"), now=NOW).request_id
    store.decide(denial(request_id=mine), now=at(1))
    assert {store.request(found).state for found in (mine, *others)} == {RequestState.DENIED}
    assert store.request(different).state is RequestState.PENDING
    record = list(store.audit_rows())[-1]
    assert record.after["requests"] == sorted([mine, *others])


def test_a_session_approval_answers_its_session_only(store):
    """Other sessions stay pending, also for the same access."""
    mine = store.register(request(session="s-1"), now=NOW).request_id
    colleague = store.register(request(user="bob", session="s-1"), now=NOW).request_id
    other = store.register(request(session="s-2"), now=NOW).request_id
    store.decide(approval(request_id=mine, session="s-1", also=(other,)), now=at(1))
    assert store.request(mine).state is RequestState.APPROVED_FOR_SESSION
    assert store.request(colleague).state is RequestState.APPROVED_FOR_SESSION
    assert store.request(other).state is RequestState.PENDING
    assert live(store) == [("/srv/data", "approval", "s-1")]


def test_a_broader_decision_answers_what_it_covers(store):
    """The deciding request, others for the same access, and those named are answered; earlier answers stay."""
    asked = store.register(request("/srv/data/x"), now=NOW).request_id
    same = store.register(request("/srv/data/x", user="bob"), now=NOW).request_id
    covered = store.register(request("/srv/data/y"), now=NOW).request_id
    denied = store.register(request("/srv/data/z"), now=NOW).request_id
    store.decide(denial("/srv/data/z", request_id=denied), now=at(1))
    made = store.decide(approval("/srv/data", request_id=asked, also=(covered, denied, "nothing")), now=at(2))
    assert made.access.target == "/srv/data"
    states = [store.request(found).state.value for found in (asked, same, covered, denied)]
    assert states == ["approved", "approved", "approved", "denied"]


def test_deciding_twice_is_a_conflict(store):
    """The conflict names the first decision, its decider and time, and changes nothing."""
    asked = store.register(request(), now=NOW).request_id
    store.decide(approval(request_id=asked, by="ann"), now=NOW)
    generation, head = store.generation(), store.audit_head()
    with pytest.raises(DecisionConflict, match=rf"\b{asked}\b.*\bapproved\b.*\bann\b.*\b2026-03-01T12:00:00"):
        store.decide(denial(request_id=asked, by="bob"), now=at(1))
    assert live(store) == [("/srv/data", "approval", "")]
    assert (store.generation(), store.audit_head()) == (generation, head)


def test_deciding_what_was_given_up_is_a_conflict(store):
    """An aged-out request cannot be decided; a repeated request creates a new one."""
    asked = store.register(request(), now=NOW).request_id
    store.age_out(before=at(1), now=at(1))
    with pytest.raises(DecisionConflict, match=asked) as caught:
        store.decide(approval(request_id=asked), now=at(2))
    sentence("given up", str(caught.value))
    assert live(store) == []


def test_deciding_an_unknown_request(store):
    """Deciding a request that does not exist changes nothing."""
    with pytest.raises(RequestUnknown, match="nothing"):
        store.decide(approval(request_id="nothing"), now=NOW)
    assert (live(store), store.generation(), actions(store)) == ([], 0, [])


@rows(
    ("decision", "place"),
    [
        (NewDecision(about(), DecisionEffect.DENIAL, DecisionScope.SESSION, "root", "s-1"), "/scope"),
        (NewDecision(about(), DecisionEffect.APPROVAL, DecisionScope.SESSION, "root"), "/session_key"),
        (NewDecision(about(), DecisionEffect.APPROVAL, DecisionScope.PERMANENT, "root", "s-1"), "/session_key"),
        (NewDecision(about(), DecisionEffect.APPROVAL, DecisionScope.SESSION, "root", "s" * 1001), "/session_key"),
    ],
)
def test_decisions_that_make_no_sense_are_refused(store, decision, place):
    """A denial is permanent, and exactly the session decisions have a session key."""
    with pytest.raises(InvalidInputError) as caught:
        store.decide(decision, now=NOW)
    assert [problem.pointer for problem in caught.value.problems] == [place]
    assert store.generation() == 0


def test_the_session_is_that_of_the_request(store):
    """A session approval cannot be made for another session."""
    asked = store.register(request(session="s-1"), now=NOW).request_id
    with pytest.raises(InvalidInputError, match="/session_key"):
        store.decide(approval(request_id=asked, session="s-2"), now=NOW)
    assert store.request(asked).state is RequestState.PENDING


def test_a_denial_ends_the_approvals_of_its_tuple(store):
    """A denial ends approvals of that access in all scopes, and no others."""
    store.decide(approval(), now=NOW)
    store.decide(approval(session="s-1"), now=NOW)
    store.decide(approval(session="s-2"), now=NOW)
    store.decide(approval("/else"), now=NOW)
    store.decide(denial(by="eve"), now=at(1))
    assert live(store) == [("/else", "approval", ""), ("/srv/data", "denial", "")]
    ended = store.decisions(DecisionFilter(live=False), ALL).items
    assert {(row.ended_at, row.ended_by, row.generation) for row in ended} == {(at(1), "eve", 5)}
    record = list(store.audit_rows())[-1]
    assert sorted(row["id"] for row in record.before["decisions"]) == sorted(row.id for row in ended)


def test_an_approval_ends_the_denial_of_its_tuple(store):
    """An approval of any scope ends the denial."""
    for session in ("", "s-1"):
        store.decide(denial(), now=NOW)
        store.decide(approval(session=session), now=at(1))
        assert live(store) == [("/srv/data", "approval", session)]


def test_the_same_decision_again_replaces_the_first(store):
    """Reason and expiry are the new ones; approvals of other scopes and sessions stay."""
    store.decide(approval(session="s-1"), now=NOW)
    first = store.decide(approval(expires_at=at(10)), now=NOW)
    second = store.decide(approval(expires_at=at(99)), now=at(1))
    assert store.decision(first.id).ended_at == at(1)
    assert live(store) == [("/srv/data", "approval", ""), ("/srv/data", "approval", "s-1")]
    assert [row.id for row in store.changes(0).rows if not row.session_key] == [second.id]


def test_revoking(store):
    """The decision ends with actor, time and reason on record; its requests are marked."""
    asked = store.register(request(), now=NOW).request_id
    made = store.decide(approval(request_id=asked), now=at(1))
    ended = store.revoke(made.id, actor="eve", reason="leaked", now=at(2))
    assert (ended.id, ended.ended_at, ended.ended_by, ended.generation) == (made.id, at(2), "eve", 2)
    assert (live(store), store.decision(made.id)) == ([], ended)
    assert store.request(asked).state is RequestState.REVOKED
    record = list(store.audit_rows())[-1]
    assert (record.action.value, record.actor, record.request_id) == ("revoked", "eve", asked)
    assert (record.before["decision"]["id"], record.after) == (made.id, {"reason": "leaked"})


def test_revoking_twice_or_nothing(store):
    """The conflict names the first revocation; an unknown id has a specific error; nothing changes."""
    made = store.decide(approval(), now=NOW)
    store.revoke(made.id, actor="ann", reason="", now=NOW)
    head = store.audit_head()
    with pytest.raises(DecisionConflict, match=rf"\b{made.id}\b.*\bann\b.*\b2026-03-01T12:00:00"):
        store.revoke(made.id, actor="bob", reason="", now=at(1))
    with pytest.raises(DecisionUnknown, match="nothing"):
        store.revoke("nothing", actor="bob", reason="", now=at(1))
    with pytest.raises(DecisionUnknown, match="nothing"):
        store.decision("nothing")
    assert (store.generation(), store.audit_head()) == (2, head)


def test_generations_tell_what_changed(store):
    """Each change has the next number, and changes after a number include ended decisions."""
    first = store.decide(approval("/a"), now=NOW)
    second = store.decide(approval("/b"), now=NOW)
    third = store.decide(denial("/a"), now=at(1))
    assert [made.generation for made in (first, second, third)] == [1, 2, 3]
    assert store.generation() == 3
    since_two = store.changes(2)
    assert since_two.generation == 3
    assert {(row.id, row.ended) for row in since_two.rows} == {(first.id, True), (third.id, False)}
    assert {row.id for row in store.changes(0).rows} == {second.id, third.id}
    assert store.changes(3).rows == ()
    assert [type(row.ended) for row in store.changes(0).rows] == [type(row.ended) for row in since_two.rows]


def test_registering_and_using_move_no_generation(store):
    """Only changes to decisions make nodes read the store."""
    made = store.decide(approval(), now=NOW)
    store.register(request(), now=NOW)
    head = store.audit_head()
    store.note_use({made.id: at(5), "nothing": at(5)})
    store.note_use({made.id: at(3)})
    store.note_use({})
    assert store.decision(made.id).last_used == at(5)
    assert (store.generation(), store.audit_head()) == (1, head)


def test_ending_a_session(store):
    """Its approvals end together, its pending requests are marked, other sessions are unchanged."""
    for session in ("s-1", "s-2"):
        store.decide(approval("/a", session=session), now=NOW)
        store.decide(approval("/b", session=session), now=NOW)
    waiting = store.register(request("/c", session="s-1"), now=NOW).request_id
    assert store.end_session("s-1", actor="ann", now=at(1)) == 2
    assert live(store) == [("/a", "approval", "s-2"), ("/b", "approval", "s-2")]
    assert store.generation() == 5
    assert (store.request(waiting).state, store.request(waiting).session_ended) == (RequestState.PENDING, True)
    record = list(store.audit_rows())[-1]
    assert (record.action.value, record.actor, record.after["requests"]) == ("session_ended", "ann", [waiting])
    head = store.audit_head()
    assert store.end_session("s-1", actor="ann", now=at(2)) == 0
    assert (store.generation(), store.audit_head()) == (5, head)
    with pytest.raises(InvalidInputError, match="/session_key"):
        store.end_session("", actor="ann", now=at(2))


def test_nothing_is_approved_for_a_session_that_ended(store):
    """Its request can be approved permanently, but not for the ended session."""
    asked = store.register(request(session="s-1"), now=NOW).request_id
    store.end_session("s-1", actor="ann", now=at(1))
    with pytest.raises(DecisionConflict) as caught:
        store.decide(approval(request_id=asked, session="s-1"), now=at(2))
    sentence("the session ended", str(caught.value))
    store.decide(approval(request_id=asked), now=at(3))
    assert live(store) == [("/srv/data", "approval", "")]


def test_a_session_that_ended_has_ended_for_good(store):
    """The end of an unknown session is stored too: its later requests are marked and not approvable for it."""
    assert store.end_session("s-1", actor="ann", now=NOW) == 0
    assert actions(store) == ["session_ended"]
    late = store.register(request(session="s-1"), now=at(1)).request_id
    other = store.register(request(session="s-2"), now=at(1)).request_id
    assert [store.request(one).session_ended for one in (late, other)] == [True, False]
    for request_id in (late, ""):
        with pytest.raises(DecisionConflict) as caught:
            store.decide(approval(request_id=request_id, session="s-1"), now=at(2))
        sentence("the session ended", str(caught.value))
    assert live(store) == []
    store.decide(approval(request_id=other, session="s-2"), now=at(2))
    assert store.end_session("s-1", actor="ann", now=at(3)) == 0
    assert actions(store) == ["session_ended", "requested", "requested", "approved_for_session"]


def test_a_session_key_that_is_too_long_is_refused(store):
    """A session key of this length cannot belong to a request."""
    with pytest.raises(InvalidInputError, match="/session_key"):
        store.end_session("x" * 1001, actor="ann", now=NOW)
    assert store.end_session("\0" * 1000, actor="ann", now=NOW) == 0


def test_expiry(store):
    """Expired decisions end, each with a record; others stay."""
    over = store.decide(approval("/a", expires_at=at(10)), now=NOW)
    store.decide(approval("/b", expires_at=at(11)), now=NOW)
    store.decide(approval("/c"), now=NOW)
    assert store.end_expired(now=at(9)) == 0
    assert store.end_expired(now=at(10)) == 1
    assert [row[0] for row in live(store)] == ["/b", "/c"]
    ended = store.decision(over.id)
    assert (ended.ended_at, ended.ended_by, ended.generation) == (at(10), "system", 4)
    assert actions(store)[-1] == "expired"
    assert store.end_expired(now=at(10)) == 0
    assert store.generation() == 4


# ---- requests whose decision has ended -------------------------------------------------------------------------------


def test_a_request_names_the_decision_that_answered_it(store):
    """The direct request and another covered one name the decision."""
    asked = store.register(request("/srv/data/x"), now=NOW).request_id
    covered = store.register(request("/srv/data/y"), now=NOW).request_id
    waiting = store.register(request("/else"), now=NOW).request_id
    made = store.decide(approval("/srv/data", request_id=asked, also=(covered,)), now=at(1))
    assert [store.request(one).decision_id for one in (asked, covered, waiting)] == [made.id, made.id, ""]


@pytest.mark.parametrize(("kind", "before"), [(approval, RequestState.APPROVED), (denial, RequestState.DENIED)])
def test_a_revoked_decision_shows_at_each_request_that_it_answered(store, kind, before):
    """All answered requests are revoked, with actor and time; the decider stays."""
    asked = [store.register(request("/srv/data", user=user), now=NOW).request_id for user in ("ann", "bob")]
    made = store.decide(kind(request_id=asked[0], by="root"), now=at(1))
    assert [store.request(one).state for one in asked] == [before, before]
    store.revoke(made.id, actor="eva", reason="", now=at(2))
    for found in map(store.request, asked):
        assert (found.state, found.ended_at, found.ended_by) == (RequestState.REVOKED, at(2), "eva")
        assert (found.decided_at, found.decided_by, found.decision_id) == (at(1), "root", made.id)
    listed = store.requests(RequestFilter(states=(before,)), ALL).items
    assert listed == ()
    assert store.counts(RequestFilter())[RequestState.REVOKED] == 2


def test_an_approval_that_expired_shows_at_its_request(store):
    """The request shows the expiry of its approval and the end of its session."""
    timed = store.register(request("/timed"), now=NOW).request_id
    session = store.register(request("/session"), now=NOW).request_id
    store.decide(approval("/timed", request_id=timed, expires_at=at(5)), now=at(1))
    store.decide(approval("/session", request_id=session, session="s-1"), now=at(1))
    store.end_expired(now=at(6))
    store.end_session("s-1", actor="system", now=at(7))
    assert [store.request(one).state for one in (timed, session)] == [RequestState.EXPIRED, RequestState.EXPIRED]


def test_a_decision_to_the_contrary_shows_at_the_request(store):
    """An approved request that is denied later is neither approved nor revoked, but replaced."""
    asked = store.register(request(), now=NOW).request_id
    store.decide(approval(request_id=asked), now=at(1))
    store.decide(denial(by="eva"), now=at(2))
    found = store.request(asked)
    assert (found.state, found.ended_at, found.ended_by) == (RequestState.REPLACED, at(2), "eva")


def test_a_repeated_approval_keeps_its_requests_approved(store):
    """The new decision takes over the requests of the old one; its end is shown in them."""
    asked = store.register(request(), now=NOW).request_id
    store.decide(approval(request_id=asked), now=at(1))
    again = store.decide(approval(), now=at(2))
    found = store.request(asked)
    assert (found.state, found.decision_id, found.ended_at) == (RequestState.APPROVED, again.id, None)
    store.revoke(again.id, actor="eva", reason="", now=at(3))
    assert store.request(asked).state is RequestState.REVOKED


def test_deciding_a_request_that_was_revoked_names_who_revoked_it(store):
    """The conflict names the revoking user, not the earlier decider."""
    asked = store.register(request(), now=NOW).request_id
    made = store.decide(approval(request_id=asked, by="ann"), now=NOW)
    store.revoke(made.id, actor="eva", reason="", now=at(1))
    with pytest.raises(DecisionConflict, match=rf"\b{asked}\b.*\brevoked\b.*\beva\b"):
        store.decide(denial(request_id=asked, by="bob"), now=at(2))
