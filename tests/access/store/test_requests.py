"""Requests: one per access and origin, counted, aged out, never decided automatically."""

from __future__ import annotations

from dataclasses import replace

import pytest

from democrai_sandbox.access.values import Registered, Requester, RequestFilter, RequestState
from democrai_sandbox.errors import InvalidInputError, RequestUnknown
from tests.access.store.samples import ALL, NOW, about, actions, approval, at, denial, request
from tests.services.rows import rows


def test_a_request_is_kept_with_all_that_was_told(store):
    """All fields of a request are stored; the encrypted context is fetched separately."""
    made = request(action="reports.load", context=b"\0sealed\xff", key="r-1")
    assert store.register(made, now=NOW) == Registered("r-1", created=True)
    found = store.request("r-1")
    assert (found.id, found.access, found.raw_target, found.chain) == ("r-1", made.access, made.raw_target, made.chain)
    assert (found.origin, found.resume_action, found.has_context) == (made.origin, "reports.load", True)
    assert (found.state, found.first_seen, found.last_seen, found.count) == (RequestState.PENDING, NOW, NOW, 1)
    assert (found.decided_at, found.decided_by, found.reason, found.session_ended) == (None, "", "", False)
    assert store.resume_context("r-1") == b"\0sealed\xff"


def test_asking_again_is_counted_on_the_first_request(store):
    """The same access and origin has one pending request; the first action and context stay."""
    first = store.register(request(action="first", context=b"1"), now=NOW)
    again = store.register(request(action="second", context=b"2"), now=at(60))
    assert again == Registered(first.request_id, created=False)
    found = store.request(first.request_id)
    assert (found.count, found.first_seen, found.last_seen) == (2, NOW, at(60))
    assert (found.resume_action, store.resume_context(found.id)) == ("first", b"1")
    assert actions(store) == ["requested"]


@rows(
    "another",
    [
        {"target": "/srv/data2"},
        {"user": "bob"},
        {"session": "s-2"},
        {"session": ""},
        {"subject": "tool:reports"},
        {"operation": "create"},
    ],
)
def test_another_tuple_or_origin_is_another_request(store, another):
    """Another access or another origin has a separate request."""
    if "operation" in another:
        another = {"operation": type(about().operation)(another["operation"])}
    first = store.register(request(), now=NOW)
    second = store.register(request(**another), now=NOW)
    assert second.created
    assert second.request_id != first.request_id


def attach(store, request_id, action="go", *, now=NOW, **origin):
    details = {"user_id": "ann", "organization_id": "acme", "session_key": "s-1", "task_id": "t-2"} | origin
    bare = request(action=action, key=request_id)
    return store.attach_resume(replace(bare, origin=Requester(**details), resume_context=b"sealed"), now=now)


def test_what_to_go_on_with_may_come_later(store):
    """The attachment is recorded; the action resumes for the task that attached it."""
    asked = store.register(request(), now=NOW).request_id
    assert attach(store, asked, now=at(3)) is True
    found = store.request(asked)
    assert (found.resume_action, store.resume_context(asked)) == ("go", b"sealed")
    assert (found.origin.user_id, found.origin.organization_id, found.origin.task_id) == ("ann", "acme", "t-2")
    record = list(store.audit_rows())[-1]
    assert (record.action.value, record.actor, record.at) == ("resume_attached", "subject:module:reports", at(3))
    assert (record.request_id, record.access) == (asked, about())
    assert (record.after["resume_action"], record.after["task_id"]) == ("go", "t-2")


def test_what_to_go_on_with_is_the_requesters_own(store):
    """The action would resume as the first requester; the organization is compared too."""
    asked = store.register(request(), now=NOW).request_id
    for another in ({"user_id": "bob"}, {"organization_id": "south"}, {"organization_id": ""}, {"session_key": "s-2"}):
        assert attach(store, asked, **another) is False, another
        assert (store.request(asked).resume_action, store.resume_context(asked)) == ("", None), another
    assert actions(store) == ["requested"]
    assert attach(store, asked) is True


def test_the_first_action_counts(store):
    """Neither a second action nor one after the decision changes anything."""
    asked = store.register(request(action="first"), now=NOW).request_id
    assert attach(store, asked, "second") is False
    late = store.register(request("/late"), now=NOW).request_id
    store.decide(approval("/late", request_id=late), now=NOW)
    assert attach(store, late) is False
    assert [store.request(one).resume_action for one in (asked, late)] == ["first", ""]
    assert actions(store) == ["requested", "requested", "approved"]
    assert attach(store, "nothing") is False


def test_no_more_wait_than_may(store):
    """The limit is per subject and user; repeated requests are counted."""
    for number in range(3):
        assert store.register(request(f"/{number}"), now=NOW, most_pending=3).created
    head = store.audit_head()
    refused = store.register(request("/3", session="s-2"), now=NOW, most_pending=3)
    assert refused == Registered("", created=False, full=True)
    assert store.audit_head() == head
    assert store.register(request("/2"), now=at(1), most_pending=3).request_id
    assert store.register(request("/3", user="bob"), now=NOW, most_pending=3).created
    assert store.register(request("/3", subject="tool:reports"), now=NOW, most_pending=3).created
    store.decide(denial("/0"), now=NOW)
    assert store.register(request("/3"), now=NOW, most_pending=3).created
    assert store.register(request("/4"), now=NOW).created


def test_the_audit_keeps_a_target_once(store):
    """The original text is stored only if it differs, and truncated if it is very long."""
    plain, long = request(), request("/long")
    store.register(replace(plain, raw_target=plain.access.target), now=NOW)
    store.register(replace(long, raw_target="x" * 50_000), now=NOW)
    first, second = store.audit_rows()
    assert "raw_target" not in first.after
    assert second.after["raw_target"] == "x" * 2000


def test_a_repeated_registration_is_the_same(store):
    """After a commit whose reply was lost, the same id adds and counts nothing."""
    store.register(request(key="r-1"), now=NOW)
    assert store.register(request(key="r-1"), now=at(1)) == Registered("r-1", created=False)
    store.decide(denial(request_id="r-1"), now=at(2))
    assert store.register(request(key="r-1"), now=at(3)) == Registered("r-1", created=False)
    assert store.request("r-1").count == 1
    assert actions(store) == ["requested", "denied"]


def test_what_was_decided_does_not_count_as_pending(store):
    """A repeated request after the end of the decision creates a new one."""
    first = store.register(request(), now=NOW)
    made = store.decide(denial(request_id=first.request_id), now=at(1))
    store.revoke(made.id, actor="root", reason="", now=at(2))
    second = store.register(request(), now=at(3))
    assert second.created
    assert store.request(first.request_id).state is RequestState.REVOKED


@rows("decision", [denial(), approval(), approval(session="s-1"), approval(expires_at=at(10))])
def test_what_is_decided_is_not_asked(store, decision):
    """A lagging node gets an empty id; nothing is written, and the audit sequence has no gap."""
    made = store.decide(decision, now=NOW)
    head = store.audit_head()
    assert store.register(request(session="s-1", key="r-1"), now=at(9)) == Registered("", created=False)
    assert store.requests(RequestFilter(), ALL).items == ()
    assert store.audit_head() == head
    store.revoke(made.id, actor="root", reason="", now=NOW)


@rows(
    ("user", "decision", "session"),
    [
        ("ann", approval(session="s-1"), "s-2"),
        ("bob", approval(session="s-1"), ""),
        ("cyd", approval("/srv"), "s-1"),
        ("dan", approval(expires_at=at(9)), "s-1"),
        ("eve", denial(subject="tool:reports"), "s-1"),
    ],
)
def test_what_another_decision_says_is_asked(store, user, decision, session):
    """A decision for another session or access, or an expired one, does not answer the request."""
    made = store.decide(decision, now=NOW)
    assert store.register(request(session=session, user=user), now=at(9)).created
    store.revoke(made.id, actor="root", reason="", now=at(9))


def test_counting_again(store):
    """Counts add up while the request is pending, and the last time never moves back."""
    made = store.register(request(), now=at(100))
    assert store.count_again(made.request_id, 5, now=at(50)) is True
    found = store.request(made.request_id)
    assert (found.count, found.last_seen) == (6, at(100))
    store.register(request(), now=at(60))
    assert store.request(made.request_id).last_seen == at(100)
    assert store.count_again(made.request_id, 1, now=at(200)) is True
    assert store.request(made.request_id).last_seen == at(200)
    store.decide(approval(request_id=made.request_id), now=at(300))
    assert store.count_again(made.request_id, 1, now=at(400)) is False
    assert store.request(made.request_id).count == 8
    assert store.count_again("nothing", 1, now=NOW) is False


@rows("times", [0, -3])
def test_counting_backwards_is_refused(store, times):
    """A count only grows."""
    made = store.register(request(), now=NOW)
    with pytest.raises(InvalidInputError) as caught:
        store.count_again(made.request_id, times, now=NOW)
    assert caught.value.problems[0].pointer == "/times"


def test_ageing_out(store):
    """Pending requests that were not repeated get a separate state; no decision is made."""
    old = store.register(request("/old"), now=NOW).request_id
    seen = store.register(request("/seen"), now=NOW).request_id
    decided = store.register(request("/decided"), now=NOW).request_id
    store.decide(denial("/decided", request_id=decided), now=at(1))
    store.count_again(seen, 1, now=at(100))
    generation = store.generation()
    assert store.age_out(before=at(50), now=at(200)) == 1
    states = {row.id: row.state for row in store.requests(RequestFilter(), ALL).items}
    assert states == {old: RequestState.AGED_OUT, seen: RequestState.PENDING, decided: RequestState.DENIED}
    assert store.request(old).decided_by == ""
    assert store.generation() == generation
    record = list(store.audit_rows())[-1]
    assert (record.action.value, record.actor, record.request_id, record.at) == ("aged_out", "system", old, at(200))
    assert (record.access, record.before["state"]) == (about("/old"), "pending")
    assert store.age_out(before=at(50), now=at(300)) == 0
    assert store.register(request("/old"), now=at(300)).created


def test_unknown_requests(store):
    """An unknown id has a specific error."""
    with pytest.raises(RequestUnknown, match="nothing"):
        store.request("nothing")
    with pytest.raises(RequestUnknown, match="nothing"):
        store.resume_context("nothing")


def test_identities_that_no_index_takes_are_refused(store):
    """A user id or session key up to the limit is stored; a longer one is invalid input, not a database failure."""
    for number, name in enumerate(("user", "session"), 1):
        assert store.register(request(**{name: "ü" * 500}), now=NOW).created
        with pytest.raises(InvalidInputError, match=name):
            store.register(request(**{name: "x" * 1001}), now=NOW)
        assert len(store.requests(RequestFilter(), ALL).items) == number


@rows("text", ["/srv/\udcff\udc80", "/srv/\x10d800", "/srv/\x00", "/srv/ä€𝄞", "/srv/'; --%s%(x)s", "\ud800"])
def test_any_text_comes_back_exactly(store, text):
    """File names that are not UTF-8, NUL, and texts that look like SQL are stored unchanged in every column."""
    made = store.register(request(text, user=text, session=text, action=text), now=NOW)
    found = store.request(made.request_id)
    assert (found.access.target, found.origin.user_id, found.resume_action) == (text, text, text)
    store.decide(approval(text, session=text, by=text, request_id=made.request_id), now=NOW)
    (session,) = [row.session_key for row in store.changes(0).rows if row.target == text]
    assert session == text
    assert list(store.audit_rows())[-1].actor == text


def test_the_longest_targets_are_stored(store):
    """A target may be as long as any normalized one, although an index could not contain it."""
    target = "/" + "x" * 65_000
    made = store.register(request(target), now=NOW)
    assert not store.register(request(target), now=NOW).created
    store.decide(approval(target, request_id=made.request_id), now=NOW)
    assert store.changes(0).rows[0].target == target
