"""Queue: one row per access, by risk and then the newest first, in stable pages."""

from __future__ import annotations

import re

import pytest

from democrai_sandbox.access.store import queries
from democrai_sandbox.access.values import AuditAction, PageRequest, RequestFilter, RequestState
from democrai_sandbox.access.verdicts import OPERATIONS, RiskLevel
from democrai_sandbox.errors import InvalidInputError
from democrai_sandbox.errors.access import AuditRecordUnknown
from democrai_sandbox.policy import Operation, ResourceType, Subject, SubjectKind
from tests.access.store.samples import ALL, NOW, about, approval, at, denial, request, sql
from tests.access.store.test_lists import NO_MARKS, mark, pages

SEND = {"operation": Operation.SEND, "resource_type": ResourceType.NETWORK}
CONNECT = {"operation": Operation.CONNECT, "resource_type": ResourceType.NETWORK}
URL = "https://api.example.com/v1"


def put(store, number, target, **kwargs):
    """Register a request with an id that encodes its time."""
    return store.register(request(target, key=f"id{number:06d}", **kwargs), now=at(number)).request_id


def targets(listing):
    return [group.access.target for group in listing.items]


def test_every_operation_has_a_risk():
    """Every operation has a position in the order."""
    assert set(OPERATIONS) == set(Operation)
    assert RiskLevel.HIGH.rank > RiskLevel.MEDIUM.rank > RiskLevel.LOW.rank


def test_one_row_for_all_who_wait_for_the_same(store):
    """The row contains the numbers of requests and questions, some user names, and the times."""
    for number in range(7):
        put(store, number, "/srv/a", user=f"user{number}", session=f"s-{number // 2}")
    store.register(request("/srv/a", user="user3", session="s-1"), now=at(50))
    put(store, 8, "/srv/a", user="", session="")
    (group,) = store.queue(RequestFilter(), ALL).items
    assert group.access == about("/srv/a")
    assert (group.newest_id, group.requests, group.count) == ("id000008", 8, 9)
    assert group.users == ("user6", "user5", "user4", "user3", "user2")
    assert (group.user_count, group.session_count) == (7, 4)
    assert (group.first_seen, group.last_seen) == (at(0), at(50))
    assert (group.risk, group.chain) == (RiskLevel.LOW, ("module:shell", "module:reports"))


def test_what_differs_is_another_group(store):
    """Another subject, operation or target is another group; spellings of one host are the same."""
    put(store, 1, "/srv/a")
    put(store, 2, "/srv/a", subject="tool:x")
    put(store, 3, "/srv/a", operation=Operation.DELETE)
    put(store, 4, "/srv/b")
    put(store, 5, "http://127.0.0.1/x", user="ann", **SEND)
    put(store, 6, "http://localhost/x", user="bob", **SEND)
    found = store.queue(RequestFilter(), ALL).items
    assert [group.newest_id for group in found] == ["id000003", "id000006", "id000004", "id000002", "id000001"]
    assert found[1].requests == 2


def test_the_order_is_risk_and_then_the_newest(store):
    """An old request to send is listed before a new one to read; among equals the newest is first."""
    put(store, 1, URL, **SEND)
    put(store, 2, "api.example.com:443", **CONNECT)
    for number in (3, 4, 5):
        put(store, number, f"/srv/{number}")
    put(store, 6, "/srv/x", operation=Operation.EXECUTE)
    expected = ["/srv/x", "api.example.com:443", URL, "/srv/5", "/srv/4", "/srv/3"]
    assert targets(store.queue(RequestFilter(), ALL)) == expected


def test_the_order_depends_on_the_target(store):
    """A password file, the root, plain http and a name of mixed scripts are listed before a harmless file."""
    risky = ["/etc/shadow", "/", "https://xn--pypal-4ve.com/"]
    for number, target in enumerate([*risky, "/srv/a"]):
        kind = ResourceType.NETWORK if "://" in target else ResourceType.FILESYSTEM
        operation = Operation.RECEIVE if "://" in target else Operation.READ
        put(store, number, target, operation=operation, resource_type=kind)
    put(store, 9, "http://api.example.com/", **SEND)
    found = store.queue(RequestFilter(), ALL).items
    assert [(group.access.target, group.risk) for group in found] == [
        ("http://api.example.com/", RiskLevel.HIGH),
        *((target, RiskLevel.HIGH) for target in reversed(risky)),
        ("/srv/a", RiskLevel.LOW),
    ]


def test_an_earlier_denial_or_revocation_raises_the_risk(store):
    """An access that was denied, or approved and revoked, is not routine when it is requested again."""
    put(store, 1, "/srv/new")
    for number, verdict in enumerate([denial("/srv/a"), approval("/srv/b")], 2):
        made = store.decide(verdict, now=at(number))
        store.revoke(made.id, actor="ada", reason="", now=at(number + 10))
        put(store, number, verdict.access.target)
    found = store.queue(RequestFilter(), ALL).items
    assert [(group.access.target, group.risk, group.risk_reasons[0].code) for group in found] == [
        ("/srv/b", RiskLevel.MEDIUM, "revoked_before"),
        ("/srv/a", RiskLevel.MEDIUM, "denied_before"),
        ("/srv/new", RiskLevel.LOW, "operation"),
    ]
    assert store.assessments(about("/srv/a"))[0].level is RiskLevel.MEDIUM


def test_requests_of_an_earlier_version_come_first_until_they_are_assessed(url, store):
    """They were stored without a risk."""
    put(store, 1, "/srv/a")
    put(store, 2, "/srv/x", operation=Operation.EXECUTE)
    sql(url, "UPDATE access_requests SET risk = 3 WHERE id = 'id000001'")
    assert targets(store.queue(RequestFilter(), ALL)) == ["/srv/a", "/srv/x"]
    assert (store.rank_waiting(), store.rank_waiting()) == (1, 0)
    assert targets(store.queue(RequestFilter(), ALL)) == ["/srv/x", "/srv/a"]


def test_what_is_decided_is_not_in_the_queue(store):
    """A partly decided group shows the users who still wait."""
    first = put(store, 1, "/srv/a", user="ann", session="s-1")
    put(store, 2, "/srv/a", user="bob", session="s-2")
    store.decide(approval("/srv/a", request_id=first, session="s-1"), now=at(9))
    (group,) = store.queue(RequestFilter(), ALL).items
    assert (group.requests, group.users) == (1, ("bob",))
    store.decide(denial("/srv/a"), now=at(10))
    assert store.queue(RequestFilter(), ALL).items == ()


def test_every_group_is_on_exactly_one_page(store):
    """This applies to any page size, all risks and groups of several requests."""
    for number in range(30):
        kwargs = (SEND, CONNECT, {})[number % 3]
        target = f"/srv/{number // 2}" if not kwargs else f"h{number // 2}.example.com:{80 + number % 2}"
        put(store, number, target, user=f"u{number}", **kwargs)
        put(store, 100 + number, target, user="other", **kwargs)
    whole = store.queue(RequestFilter(), ALL).items
    assert len(whole) == 30
    for limit in (1, 4, 29, 30):
        parts = pages(lambda page: store.queue(RequestFilter(), page), limit)
        assert sum(parts, ()) == whole


def test_asking_again_moves_nothing_between_pages(store):
    """Counting neither repeats a shown row nor hides another one."""
    for number in range(6):
        put(store, number, f"/srv/{number}")
    first = store.queue(RequestFilter(), PageRequest(limit=3))
    for number in (0, 5):
        store.register(request(f"/srv/{number}"), now=at(1000))
    put(store, 900, "/srv/new")
    second = store.queue(RequestFilter(), PageRequest(limit=3, after=first.next))
    assert (targets(first), targets(second)) == (["/srv/5", "/srv/4", "/srv/3"], ["/srv/2", "/srv/1", "/srv/0"])
    assert second.next == ""


def test_a_mark_that_no_page_of_the_queue_gave_is_refused(store):
    """Cursors of other lists and invalid texts are rejected."""
    for after in (*NO_MARKS, mark("access_requests.id", 1, "x"), mark("queue", "1", "x"), mark("queue", 1)):
        with pytest.raises(InvalidInputError, match="/after"):
            store.queue(RequestFilter(), PageRequest(after=after))
    assert store.queue(RequestFilter(), PageRequest(after=mark("queue", 99, "zzz"))).items == ()


def test_the_queue_holds_what_is_pending(store):
    """Other states are rejected; page sizes are limited as in every list."""
    with pytest.raises(InvalidInputError, match="/states"):
        store.queue(RequestFilter(states=(RequestState.DENIED,)), ALL)
    with pytest.raises(InvalidInputError, match="/limit"):
        store.queue(RequestFilter(), PageRequest(limit=0))
    assert store.queue(RequestFilter(states=("pending",)), ALL).items == ()


def test_filters_apply_to_the_requests_in_the_groups(store):
    """A group contains only its matching requests; a group without any is not listed."""
    put(store, 1, "/srv/a", user="ann", session="s-1")
    put(store, 2, "/srv/a", user="bob", session="s-2")
    put(store, 3, URL, subject="tool:x", user="cat", session="s-3", **SEND)
    for wanted, expected in [
        (RequestFilter(user_id="ann"), [("/srv/a", 1)]),
        (RequestFilter(session_key="s-2"), [("/srv/a", 1)]),
        (RequestFilter(organization_id="acme"), [(URL, 1), ("/srv/a", 2)]),
        (RequestFilter(organization_id="other"), []),
        (RequestFilter(subject=Subject.parse("module:reports")), [("/srv/a", 2)]),
        (RequestFilter(subject_kind=SubjectKind.TOOL), [(URL, 1)]),
        (RequestFilter(resource_type=ResourceType.FILESYSTEM), [("/srv/a", 2)]),
        (RequestFilter(operation=Operation.SEND), [(URL, 1)]),
        (RequestFilter(text="API.Example"), [(URL, 1)]),
        (RequestFilter(newer_than=at(2)), [(URL, 1), ("/srv/a", 1)]),
        (RequestFilter(older_than=at(2)), [("/srv/a", 1)]),
        (RequestFilter(newer_than=at(2), older_than=at(3), user_id="ann"), []),
    ]:
        found = store.queue(wanted, ALL).items
        assert [(group.access.target, group.requests) for group in found] == expected, wanted
        counts = store.counts(wanted)
        assert counts[RequestState.PENDING] == sum(number for _, number in expected), wanted
        assert len(store.requests(wanted, ALL).items) == counts[RequestState.PENDING]


def test_requests_are_counted_by_state(store):
    """All states, or those in the filter; an unknown state is rejected."""
    assert store.counts(RequestFilter()) == dict.fromkeys(RequestState, 0)
    asked = [put(store, number, f"/srv/{number}") for number in range(8)]
    store.decide(denial("/srv/0", request_id=asked[0]), now=at(9))
    store.decide(approval("/srv/1", request_id=asked[1]), now=at(9))
    store.decide(approval("/srv/2", request_id=asked[2], session="s-1"), now=at(9))
    revoked = store.decide(approval("/srv/5", request_id=asked[5]), now=at(9))
    store.revoke(revoked.id, actor="ann", reason="", now=at(10))
    store.decide(approval("/srv/6", request_id=asked[6], expires_at=at(10)), now=at(9))
    store.end_expired(now=at(10))
    store.decide(approval("/srv/7", request_id=asked[7]), now=at(9))
    store.decide(denial("/srv/7"), now=at(10))
    store.age_out(before=at(4), now=at(10))
    each = dict.fromkeys(RequestState, 1)
    assert store.counts(RequestFilter()) == each
    assert store.counts(RequestFilter(states=(RequestState.DENIED,))) == {RequestState.DENIED: 1}
    assert store.counts(RequestFilter(states=("denied", "pending"), user_id="ann")) == {"denied": 1, "pending": 1}
    with pytest.raises(InvalidInputError, match="/states"):
        store.counts(RequestFilter(states=("nonsense",)))


def test_counting_has_an_end(store, monkeypatch):
    """Only the latest part of a long history is counted."""
    for number in range(5):
        put(store, number, f"/srv/{number}", user="ann" if number < 2 else "bob")
    monkeypatch.setattr(queries, "MOST_COUNTED", 3)
    assert store.counts(RequestFilter())[RequestState.PENDING] == 3
    assert store.counts(RequestFilter(user_id="ann"))[RequestState.PENDING] == 2
    store.age_out(before=at(100), now=at(100))
    assert store.counts(RequestFilter())[RequestState.AGED_OUT] == 3
    assert store.counts(RequestFilter(user_id="ann"))[RequestState.AGED_OUT] == 0


def test_the_pulse_beats_with_every_change(store, other):
    """The pulse also changes with acts of another node; reading does not change it."""
    seen = [store.pulse()]
    asked = other.register(request("/srv/a"), now=NOW).request_id
    seen.append(store.pulse())
    other.decide(approval("/srv/a", request_id=asked), now=at(1))
    seen.append(store.pulse())
    other.record(AuditAction.NOTED, actor="ann", now=at(2), request_id=asked, after={"text": "why?"})
    seen.append(store.pulse())
    assert len(set(seen)) == 4
    assert store.pulse() == seen[-1]


def test_how_long_requests_wait(store):
    """The oldest pending request, and the waiting times of requests that were decided in a period."""
    assert store.oldest_pending() is None
    asked = [put(store, number, f"/srv/{number}") for number in (10, 20, 30)]
    assert store.oldest_pending() == at(10)
    store.decide(denial("/10", request_id=asked[0]), now=at(70))
    store.decide(approval("/20", request_id=asked[1]), now=at(140))
    assert store.oldest_pending() == at(30)
    assert store.decision_seconds(NOW) == (60.0, 120.0)
    assert store.decision_seconds(at(70), at(140)) == (60.0,)
    assert store.decision_seconds(at(141)) == ()


def test_one_record_of_the_audit(store):
    """The record is found by its number; an unknown number is an error."""
    store.register(request("/srv/a"), now=NOW)
    assert store.audit_record(1).action is AuditAction.REQUESTED
    for sequence in (0, 2, -1, 1 << 70):
        with pytest.raises(AuditRecordUnknown, match=rf"(?<!\d){sequence}\b"):
            store.audit_record(sequence)


def test_what_became_of_an_action(store):
    """An approved request with a resume action has a resumption; others have none."""
    bare = put(store, 1, "/srv/a")
    asked = put(store, 2, "/srv/b", action="reports.go_on")
    assert store.resume_of(asked) is None
    store.decide(approval("/srv/b", request_id=asked), now=at(5))
    assert store.resume_of(asked).action == "reports.go_on"
    assert store.resume_of(bare) is None


def test_similar_decisions(store):
    """Decisions about the same access, including ended ones, about nearby targets, and of others about the target."""
    store.decide(approval("/srv/a"), now=at(1))
    store.decide(denial("/srv/a"), now=at(2))
    store.decide(approval("/srv/b"), now=at(3))
    store.decide(approval("/srv/a", subject="tool:x"), now=at(4))
    store.decide(approval("/srv/b", subject="tool:x"), now=at(5))
    store.decide(approval(URL, **SEND), now=at(6))
    found = [(str(row.access.subject), row.access.target, row.effect) for row in store.similar(about("/srv/a"))]
    assert found == [
        ("module:reports", "/srv/a", "denial"),
        ("module:reports", "/srv/a", "approval"),
        ("module:reports", "/srv/b", "approval"),
        ("tool:x", "/srv/a", "approval"),
    ]


def plan(url, query):
    """Return SQLite's plan of a statement; bound values do not matter."""
    text = re.sub(r":\w+|\(__\[\w+\]\)", "('x')", str(query))
    text = re.sub(r"LIMIT \('x'\)", "LIMIT 26", text)
    return [row[3] for row in sql(url, f"EXPLAIN QUERY PLAN {text}")]


def test_a_page_is_read_by_indexes(url, store):
    """However many requests are pending, the database scans no table and sorts nothing."""
    if not url.startswith("sqlite"):
        pytest.skip("PostgreSQL plans by what it finds in the tables")
    everything = RequestFilter()
    for query, index in [
        (queries._heads(everything, is_first=True), "ix_access_requests_risk"),
        (queries._heads(everything, is_first=True), "ix_access_requests_group"),
        (queries._heads(everything, is_first=False), "ix_access_requests_risk"),
        (queries._HISTORY, "ix_access_decisions_digest"),
        (queries._totals(everything), "ix_access_requests_group"),
        (queries._users(everything), "uq_access_requests_pending"),
        (queries._OLDEST, "ix_access_requests_waiting"),
    ]:
        steps = plan(url, query)
        assert any(index in step for step in steps), steps
        assert not any("ix_access_requests_seen" in step or "SCAN access_requests" in step for step in steps), steps
    for is_first in (True, False):
        steps = plan(url, queries._heads(everything, is_first=is_first))
        assert not any("TEMP B-TREE" in step for step in steps), steps
    del store
