"""Resumptions: made with the approval, taken by one node at a time, finished once."""

from __future__ import annotations

import pytest

from democrai_sandbox.access.values import ResumeState
from democrai_sandbox.policy import Subject
from tests.access.store.samples import ALL, NOW, actions, approval, at, denial, request


def asked(store, target="/srv/data", *, context=b"sealed", **kwargs):
    return store.register(request(target, action="reports.load", context=context, **kwargs), now=NOW).request_id


def claim(store, now, *, node="n-1", lease=30):
    return store.claim_resume(node=node, lease_until=at(now + lease), now=at(now))


def finish(store, resume, now, *, node="n-1", error="", retry=None):
    retry_at = None if retry is None else at(retry)
    return store.finish_resume(resume, node=node, error=error, retry_at=retry_at, now=at(now))


def test_an_approval_makes_a_resumption_for_each_request_it_answers(store):
    """Those with an action, and no others: with the identity of who asked, not of who approved."""
    first = asked(store)
    second = asked(store, user="bob", session="s-2")
    store.register(request(user="cyd"), now=NOW)
    store.decide(approval(request_id=first), now=at(1))
    found = store.resumes(unfinished=True, page=ALL).items
    assert {resume.request_id for resume in found} == {first, second}
    resume = next(resume for resume in found if resume.request_id == second)
    assert (resume.action, resume.origin) == ("reports.load", store.request(second).origin)
    assert (resume.subject, resume.origin.user_id) == (Subject.parse("module:reports"), "bob")
    assert (resume.state, resume.attempts) == (ResumeState.WAITING, 0)
    assert (resume.created_at, resume.next_attempt) == (at(1), at(1))


def test_a_denial_makes_none(store):
    """Nothing goes on that was refused."""
    store.decide(denial(request_id=asked(store)), now=NOW)
    assert store.resumes(unfinished=False, page=ALL).items == ()
    assert claim(store, 100) is None


def test_a_claim_counts_and_belongs_to_one_node(store, other):
    """While the lease runs nobody else gets it; the attempt is counted when it begins."""
    store.decide(approval(request_id=asked(store)), now=at(10))
    assert claim(store, 9) is None
    resume = claim(store, 10)
    assert (resume.state, resume.attempts, resume.leased_by) == (ResumeState.RUNNING, 1, "n-1")
    assert claim(other, 11, node="n-2") is None
    assert claim(store, 11) is None


def test_success_is_the_end(store):
    """It is recorded, and never handed out again."""
    request_id = asked(store)
    store.decide(approval(request_id=request_id), now=NOW)
    resume = claim(store, 0)
    assert finish(store, resume, 5) is True
    (found,) = store.resumes(unfinished=False, page=ALL).items
    assert (found.state, found.finished_at, found.last_error) == (ResumeState.SUCCEEDED, at(5), "")
    assert store.resumes(unfinished=True, page=ALL).items == ()
    assert claim(store, 10_000) is None
    record = list(store.audit_rows())[-1]
    assert (record.action.value, record.request_id, record.actor) == ("resume_succeeded", request_id, "system")
    assert record.access.target == "/srv/data"


def test_a_failure_with_a_time_is_tried_again_then(store):
    """Not before; the error is kept where people look for it, and in the audit."""
    store.decide(approval(request_id=asked(store)), now=NOW)
    assert finish(store, claim(store, 0), 1, error="no route", retry=60) is True
    (found,) = store.resumes(unfinished=True, page=ALL).items
    assert (found.state, found.next_attempt, found.last_error) == (ResumeState.WAITING, at(60), "no route")
    assert claim(store, 59) is None
    again = claim(store, 60)
    assert again.attempts == 2
    assert finish(store, again, 61) is True
    assert actions(store)[-2:] == ["resume_failed", "resume_succeeded"]
    assert list(store.audit_rows())[-2].after["error"] == "no route"


def test_a_failure_without_a_time_is_the_end(store):
    """It stays to be seen, with its error."""
    store.decide(approval(request_id=asked(store)), now=NOW)
    finish(store, claim(store, 0), 1, error="unknown action")
    (found,) = store.resumes(unfinished=False, page=ALL).items
    assert (found.state, found.last_error, found.finished_at) == (ResumeState.FAILED, "unknown action", at(1))
    assert claim(store, 10_000) is None


def test_after_a_crash_another_node_takes_over(store, other):
    """When the lease has run out, the next one gets it; the first one's answer comes too late and writes nothing."""
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
    assert [resume.state for resume in store.resumes(unfinished=False, page=ALL).items] == [ResumeState.SUCCEEDED]


def test_a_node_that_lost_and_took_it_again_answers_for_the_last_attempt(store):
    """The number of the attempt tells the two apart."""
    store.decide(approval(request_id=asked(store)), now=NOW)
    lost, taken = claim(store, 0), claim(store, 30)
    assert finish(store, lost, 31, error="stale") is False
    assert finish(store, taken, 31, node="n-2") is False
    assert finish(store, taken, 31) is True


def test_a_late_answer_counts_while_nobody_else_took_over(store):
    """A lease that ran out is only an offer to others."""
    store.decide(approval(request_id=asked(store)), now=NOW)
    resume = claim(store, 0, lease=1)
    assert finish(store, resume, 100) is True


def test_the_one_due_first_comes_first(store):
    """In the order of their times."""
    for number, target in enumerate(("/b", "/a", "/c")):
        store.decide(approval(target, request_id=asked(store, target)), now=at(number))
    order = [store.request(claim(store, 10).request_id).access.target for _ in range(3)]
    assert order == ["/b", "/a", "/c"]
    assert claim(store, 10) is None


def test_contexts_are_exchanged_for_new_keys(store):
    """Only those for which there is another; each is given with its request."""
    ids = [asked(store, f"/{number}", context=b"old %d" % number) for number in range(250)]
    plain = store.register(request("/plain"), now=NOW).request_id
    kept = ids[7]

    def reseal(found, sealed):
        assert sealed == b"old " + found.access.target[1:].encode()
        return None if found.id == kept else b"new" + sealed[3:]

    assert store.replace_contexts(reseal) == 249
    assert store.resume_context(kept) == b"old 7"
    assert store.resume_context(ids[249]) == b"new 249"
    assert store.resume_context(plain) is None
    assert store.replace_contexts(lambda found, sealed: sealed) == 0


def test_an_exchange_that_fails_leaves_the_contexts(store):
    """The error of the one that does not decrypt comes out, and nothing is lost."""
    request_id = asked(store, context=b"old")

    def fails(found, sealed):
        raise RuntimeError("unreadable")

    with pytest.raises(RuntimeError, match="unreadable"):
        store.replace_contexts(fails)
    assert store.resume_context(request_id) == b"old"
