"""Resumptions: created with the approval, claimed by one node at a time, finished once."""

from __future__ import annotations

import pytest

from democrai_sandbox.access.store import requests
from democrai_sandbox.access.values import ResumptionState
from democrai_sandbox.policy import Subject
from tests.access.store.samples import ALL, NOW, actions, approval, at, denial, request
from tests.services.golden import sentence


def asked(store, target="/srv/data", *, context=b"sealed", **kwargs):
    return store.register(request(target, action="reports.load", context=context, **kwargs), now=NOW).request_id


def claim(store, now, *, node="n-1", lease=30):
    return store.claim_resume(node=node, lease_until=at(now + lease), now=at(now))


def finish(store, resume, now, *, node="n-1", error="", retry=None):
    retry_at = None if retry is None else at(retry)
    return store.finish_resume(resume, node=node, error=error, retry_at=retry_at, now=at(now))


def test_an_approval_makes_a_resumption_for_each_request_it_answers(store):
    """Only requests with an action get one, with the identity of the requester, not of the approver."""
    first = asked(store)
    second = asked(store, user="bob", session="s-2")
    store.register(request(user="cyd"), now=NOW)
    store.decide(approval(request_id=first), now=at(1))
    found = store.resumes(unfinished=True, page=ALL).items
    assert {resume.request_id for resume in found} == {first, second}
    resume = next(resume for resume in found if resume.request_id == second)
    assert (resume.action, resume.origin) == ("reports.load", store.request(second).origin)
    assert (resume.subject, resume.origin.user_id) == (Subject.parse("module:reports"), "bob")
    assert (resume.state, resume.attempts) == (ResumptionState.WAITING, 0)
    assert (resume.created_at, resume.next_attempt) == (at(1), at(1))


def test_a_denial_makes_none(store):
    """A denied request does not resume."""
    store.decide(denial(request_id=asked(store)), now=NOW)
    assert store.resumes(unfinished=False, page=ALL).items == ()
    assert claim(store, 100) is None


def test_a_claim_counts_and_belongs_to_one_node(store, other):
    """During the lease other nodes do not get it; the attempt is counted at its start."""
    store.decide(approval(request_id=asked(store)), now=at(10))
    assert claim(store, 9) is None
    resume = claim(store, 10)
    assert (resume.state, resume.attempts, resume.leased_by) == (ResumptionState.RUNNING, 1, "n-1")
    assert claim(other, 11, node="n-2") is None
    assert claim(store, 11) is None


def test_success_is_the_end(store):
    """The success is recorded, and the resumption is never claimed again."""
    request_id = asked(store)
    store.decide(approval(request_id=request_id), now=NOW)
    resume = claim(store, 0)
    assert finish(store, resume, 5) is True
    (found,) = store.resumes(unfinished=False, page=ALL).items
    assert (found.state, found.finished_at, found.last_error) == (ResumptionState.SUCCEEDED, at(5), "")
    assert store.resumes(unfinished=True, page=ALL).items == ()
    assert claim(store, 10_000) is None
    record = list(store.audit_rows())[-1]
    assert (record.action.value, record.request_id, record.actor) == ("resume_succeeded", request_id, "system")
    assert record.access.target == "/srv/data"


def test_a_failure_with_a_time_is_tried_again_then(store):
    """It is not retried earlier; the error is stored in the resumption and in the audit log."""
    store.decide(approval(request_id=asked(store)), now=NOW)
    assert finish(store, claim(store, 0), 1, error="no route", retry=60) is True
    (found,) = store.resumes(unfinished=True, page=ALL).items
    assert (found.state, found.next_attempt, found.last_error) == (ResumptionState.WAITING, at(60), "no route")
    assert claim(store, 59) is None
    again = claim(store, 60)
    assert again.attempts == 2
    assert finish(store, again, 61) is True
    assert actions(store)[-2:] == ["resume_failed", "resume_succeeded"]
    assert list(store.audit_rows())[-2].after["error"] == "no route"


def test_a_failure_without_a_time_is_the_end(store):
    """The failed resumption stays visible with its error."""
    store.decide(approval(request_id=asked(store)), now=NOW)
    finish(store, claim(store, 0), 1, error="unknown action")
    (found,) = store.resumes(unfinished=False, page=ALL).items
    assert (found.state, found.last_error, found.finished_at) == (ResumptionState.FAILED, "unknown action", at(1))
    assert claim(store, 10_000) is None


def test_after_a_crash_another_node_takes_over(store, other):
    """After the lease expires, the next node claims it; the late result of the first one is ignored."""
    store.decide(approval(request_id=asked(store)), now=NOW)
    lost = claim(store, 0, lease=30)
    assert claim(other, 29, node="n-2") is None
    taken = claim(other, 30, node="n-2")
    assert (taken.id, taken.attempts, taken.leased_by) == (lost.id, 2, "n-2")
    head = store.audit_head()
    assert finish(store, lost, 31) is False
    assert store.audit_head() == head
    assert finish(other, taken, 32, node="n-2") is True
    assert finish(other, taken, 33, node="n-2", error="late") is False
    assert [resume.state for resume in store.resumes(unfinished=False, page=ALL).items] == [ResumptionState.SUCCEEDED]


def test_a_node_that_lost_and_took_it_again_answers_for_the_last_attempt(store):
    """The attempt number distinguishes both."""
    store.decide(approval(request_id=asked(store)), now=NOW)
    lost, taken = claim(store, 0), claim(store, 30)
    assert finish(store, lost, 31, error="stale") is False
    assert finish(store, taken, 31, node="n-2") is False
    assert finish(store, taken, 31) is True


def test_a_late_answer_counts_while_nobody_else_took_over(store):
    """An expired lease only allows others to claim it."""
    store.decide(approval(request_id=asked(store)), now=NOW)
    resume = claim(store, 0, lease=1)
    assert finish(store, resume, 100) is True


def test_the_one_due_first_comes_first(store):
    """Resumptions are claimed in the order of their times."""
    for number, target in enumerate(("/b", "/a", "/c")):
        store.decide(approval(target, request_id=asked(store, target)), now=at(number))
    order = [store.request(claim(store, 10).request_id).access.target for _ in range(3)]
    assert order == ["/b", "/a", "/c"]
    assert claim(store, 10) is None


def revoke(store, made):
    store.revoke(made.id, actor="root", reason="", now=at(5))


def deny(store, made):
    store.decide(denial(), now=at(5))


def deny_more(store, made):
    store.decide(denial("/srv"), now=at(5))


def end(store, made):
    store.end_session("s-1", actor="system", now=at(5))


def wait(store, made):
    """Do nothing: the approval has expired, whether or not it was ended in the store."""


@pytest.mark.parametrize("undo", [revoke, deny, deny_more, end, wait])
@pytest.mark.parametrize("tried", [False, True], ids=["waiting", "between attempts"])
def test_nothing_goes_on_after_its_approval_has_ended(store, undo, tried):
    """It fails permanently with a record and is not claimed; the next due one is claimed instead."""
    request_id = asked(store)
    made = store.decide(
        approval(request_id=request_id, session="s-1", expires_at=at(6) if undo is wait else None), now=NOW
    )
    if tried:
        assert finish(store, claim(store, 1), 2, error="no route", retry=3) is True
    still = asked(store, "/other")
    store.decide(approval("/other", request_id=still), now=at(4))
    undo(store, made)
    assert claim(store, 6).request_id == still
    found = next(one for one in store.resumes(unfinished=False, page=ALL).items if one.request_id == request_id)
    assert (found.state, found.finished_at) == (ResumptionState.FAILED, at(6))
    sentence("the approval ended", found.last_error)
    assert (found.attempts, found.leased_by) == (int(tried), "")
    record = list(store.audit_rows())[-1]
    assert (record.action.value, record.request_id, record.actor) == ("resume_failed", request_id, "system")
    assert (record.after["error"], record.after["state"]) == (found.last_error, "failed")
    assert claim(store, 10_000).request_id == still


def test_an_attempt_that_was_lost_is_not_repeated_without_its_approval(store):
    """After the lease of a crashed node expires, the approval is checked again."""
    made = store.decide(approval(request_id=asked(store)), now=NOW)
    assert claim(store, 0, lease=30) is not None
    revoke(store, made)
    assert claim(store, 30) is None
    assert [one.state for one in store.resumes(unfinished=False, page=ALL).items] == [ResumptionState.FAILED]


def test_an_attempt_that_runs_when_its_approval_ends_is_recorded(store):
    """A completed action cannot be undone, and its result is recorded."""
    made = store.decide(approval(request_id=asked(store)), now=NOW)
    resume = claim(store, 0)
    revoke(store, made)
    assert finish(store, resume, 6) is True


@pytest.mark.parametrize(
    "instead",
    [
        approval(),
        approval(session="s-1"),
        pytest.param(approval("/srv"), id="as broad as the first"),
        pytest.param(approval("/srv", session="s-1"), id="as broad, for the session"),
    ],
)
def test_another_approval_of_the_same_does_as_well(store, instead):
    """The original approval was broader than requested; any approval in force is enough."""
    made = store.decide(approval("/srv", request_id=asked(store)), now=NOW)
    store.decide(instead, now=at(1))
    if store.decision(made.id).ended_at is None:
        revoke(store, made)
    assert claim(store, 6) is not None


@pytest.mark.parametrize("other", [approval(session="s-2"), approval("/srv/data2"), denial("/srv/data2")])
def test_an_approval_of_something_else_does_not(store, other):
    """Approvals of another session or target do not count; denials of another target do not matter either."""
    made = store.decide(approval(request_id=asked(store)), now=NOW)
    store.decide(other, now=at(1))
    first = claim(store, 2, lease=1)
    assert first is not None
    revoke(store, made)
    assert claim(store, 6) is None


def test_all_that_a_broader_approval_answered_ends_with_it(store):
    """This includes requests that it answered besides its own."""
    first, second = asked(store, "/srv/a"), asked(store, "/srv/b", user="bob", session="s-2")
    made = store.decide(approval("/srv", request_id=first, also=(second,)), now=NOW)
    assert {claim(store, 0, lease=1).request_id, claim(store, 0, lease=1).request_id} == {first, second}
    revoke(store, made)
    assert claim(store, 6) is None
    (error,) = {one.last_error for one in store.resumes(unfinished=False, page=ALL).items}
    sentence("the approval ended", error)


def test_the_record_of_an_approval_names_what_it_starts(store):
    """Each request is listed with its action; a denial starts nothing."""
    first = asked(store)
    second = asked(store, user="bob")
    store.register(request(user="cyd"), now=NOW)
    store.decide(approval(request_id=first), now=NOW)
    started = list(store.audit_rows())[-1].after["resumes"]
    assert {one["request"]: one["action"] for one in started} == dict.fromkeys((first, second), "reports.load")
    store.decide(denial("/b", request_id=asked(store, "/b")), now=NOW)
    assert "resumes" not in list(store.audit_rows())[-1].after


def test_a_context_is_gone_after_success(store):
    """The context is not needed after success; after a failure it stays for the next attempt."""
    request_id = asked(store)
    store.decide(approval(request_id=request_id), now=NOW)
    finish(store, claim(store, 0), 1, error="no route", retry=2)
    assert store.resume_context(request_id) == b"sealed"
    assert finish(store, claim(store, 2), 3) is True
    assert (store.resume_context(request_id), store.request(request_id).has_context) == (None, False)
    assert store.request(request_id).resume_action == "reports.load"


def test_contexts_are_exchanged_for_new_keys(store, monkeypatch):
    """Only contexts with a new value are replaced, in batches; each is passed with its request."""
    monkeypatch.setattr(requests, "_AT_ONCE", 10)
    ids = [asked(store, f"/{number}", context=b"old %d" % number) for number in range(25)]
    plain = store.register(request("/plain"), now=NOW).request_id
    kept = ids[7]

    def reseal(found, sealed):
        assert sealed == b"old " + found.access.target[1:].encode()
        return None if found.id == kept else b"new" + sealed[3:]

    assert store.replace_contexts(reseal) == 24
    assert store.resume_context(kept) == b"old 7"
    assert store.resume_context(ids[24]) == b"new 24"
    assert store.resume_context(plain) is None
    assert store.replace_contexts(lambda found, sealed: sealed) == 0


def test_an_exchange_that_fails_leaves_the_contexts(store):
    """The error of the failing context is raised, and nothing is lost."""
    request_id = asked(store, context=b"old")

    def fails(found, sealed):
        raise RuntimeError("unreadable")

    with pytest.raises(RuntimeError, match="unreadable"):
        store.replace_contexts(fails)
    assert store.resume_context(request_id) == b"old"
