"""Lists: filters, order and stable pages."""

from __future__ import annotations

import base64
import json
from datetime import datetime

import pytest

from democrai_sandbox.access.values import (
    AuditAction,
    AuditFilter,
    DecisionEffect,
    DecisionFilter,
    DecisionScope,
    PageRequest,
    RequestFilter,
    RequestState,
)
from democrai_sandbox.errors import InvalidInputError
from democrai_sandbox.policy import Operation, ResourceType, Subject
from tests.access.store.samples import ALL, NOW, approval, at, denial, request


def targets(listing):
    return [item.access.target for item in listing.items]


def pages(ask, limit):
    """Yield all pages."""
    found, page = [], PageRequest(limit=limit)
    while True:
        listing = ask(page)
        assert len(listing.items) <= limit
        found.append(listing.items)
        if not listing.next:
            return found
        page = PageRequest(limit=limit, after=listing.next)


def mark(*values):
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


def test_requests_come_last_seen_first(store):
    """A repeated request moves to the front."""
    for number, target in enumerate(("/a", "/b", "/c")):
        store.register(request(target), now=at(number))
    store.register(request("/a"), now=at(10))
    assert targets(store.requests(RequestFilter(), ALL)) == ["/a", "/c", "/b"]


def test_decisions_and_audit_come_newest_first(store):
    """Records with equal times have a fixed order."""
    made = [store.decide(approval(f"/{number}"), now=at(number // 2)) for number in range(4)]
    found = store.decisions(DecisionFilter(), ALL).items
    assert [row.created_at for row in found] == [at(1), at(1), at(0), at(0)]
    assert {row.id for row in found} == {row.id for row in made}
    assert [record.sequence for record in store.audit(AuditFilter(), ALL).items] == [4, 3, 2, 1]


def test_every_item_is_on_exactly_one_page(store):
    """This applies to any page size, also with many equal times."""
    for number in range(10):
        store.register(request(f"/{number}"), now=at(number // 4))
        store.decide(approval(f"/{number}", request_id="", session="s"), now=at(number // 4))
    for ask in (
        lambda page: store.requests(RequestFilter(), page),
        lambda page: store.decisions(DecisionFilter(), page),
        lambda page: store.audit(AuditFilter(), page),
    ):
        whole = ask(ALL).items
        assert ask(ALL).next == ""
        for limit in (1, 3, len(whole) - 1, len(whole)):
            parts = pages(ask, limit)
            assert sum(parts, ()) == whole
            assert len(parts) == -(-len(whole) // limit)


def test_what_comes_in_meanwhile_moves_nothing(store):
    """The next page continues after the last item."""
    for number in range(4):
        store.decide(approval(f"/{number}"), now=at(number))
    first = store.decisions(DecisionFilter(), PageRequest(limit=2))
    store.decide(approval("/new"), now=at(100))
    second = store.decisions(DecisionFilter(), PageRequest(limit=2, after=first.next))
    assert (targets(first), targets(second)) == (["/3", "/2"], ["/1", "/0"])


NO_MARKS = [
    "x",
    "!!!!",
    "\udcff",
    "é",
    mark(),
    mark("access_requests.id"),
    mark("access_decisions.id", 1, "x"),
    mark("access_requests.id", "1", "x"),
    mark("access_requests.id", 1, 2),
    mark("access_requests.id", True, "x"),
    mark("access_requests.id", -1, "x"),
    mark("access_requests.id", 2**62, "x"),
    mark("access_requests.id", 2**80, "x"),
    mark("access_requests.id", 1.5, "x"),
    mark("access_requests.id", 1, "x", 3),
    "A" * 5000,
    base64.urlsafe_b64encode(b"[" * 3000).decode(),
    base64.urlsafe_b64encode(b'{"a": 1}').decode(),
    base64.urlsafe_b64encode(b"7").decode(),
]


def test_a_mark_that_no_page_gave_is_refused(store):
    """An invalid cursor is invalid input; one of the right form is accepted."""
    for after in NO_MARKS:
        with pytest.raises(InvalidInputError, match="/after"):
            store.requests(RequestFilter(), PageRequest(after=after))
    assert store.requests(RequestFilter(), PageRequest(after=mark("access_requests.id", 1, "x"))).items == ()


def test_pages_have_a_size(store):
    """Empty and unlimited pages are rejected."""
    for limit in (0, -1, 1001, "5", None, 1.5, True):
        with pytest.raises(InvalidInputError, match="/limit"):
            store.requests(RequestFilter(), PageRequest(limit=limit))


def test_what_is_of_the_wrong_type_is_the_callers_mistake(store):
    """It is not reported as a database failure, and the statement is not revealed."""
    for ask in (
        lambda: store.requests(RequestFilter(user_id=7), PageRequest()),
        lambda: store.audit(AuditFilter(since=datetime(2026, 1, 1)), PageRequest()),
        lambda: store.audit(AuditFilter(until="yesterday"), PageRequest()),
        lambda: store.request(7),
        lambda: store.revoke(b"x", actor="ann", reason="", now=NOW),
        lambda: store.requests(RequestFilter(text="x" * 1001), PageRequest()),
    ):
        with pytest.raises(InvalidInputError) as caught:
            ask()
        assert "SELECT" not in f"{caught.value} {caught.value.__cause__}"


def test_states_and_actions_may_be_plain_texts(store):
    """They are compared as text; an unknown one matches nothing."""
    store.register(request(), now=NOW)
    assert len(store.requests(RequestFilter(states=("pending",)), ALL).items) == 1
    assert len(store.audit(AuditFilter(actions=("requested",)), ALL).items) == 1
    assert store.requests(RequestFilter(states=("nonsense",)), ALL).items == ()


def test_filters_of_requests(store):
    """Each filter narrows, several narrow together."""
    network = {"operation": Operation.SEND, "resource_type": ResourceType.NETWORK}
    store.register(request("/a", user="ann", session="s-1"), now=NOW)
    store.register(request("/b", user="bob", session="s-2"), now=at(1))
    store.register(request("https://example.com/Up", subject="tool:x", **network), now=at(2))
    denied = store.register(request("/d"), now=at(3)).request_id
    store.decide(denial("/d", request_id=denied), now=at(4))
    cases = [
        (RequestFilter(states=(RequestState.DENIED,)), ["/d"]),
        (RequestFilter(states=(RequestState.DENIED, RequestState.PENDING), user_id="bob"), ["/b"]),
        (RequestFilter(subject=Subject.parse("tool:x")), ["https://example.com/Up"]),
        (RequestFilter(resource_type=ResourceType.NETWORK), ["https://example.com/Up"]),
        (RequestFilter(operation=Operation.READ), ["/d", "/b", "/a"]),
        (RequestFilter(session_key="s-2"), ["/b"]),
        (RequestFilter(organization_id="other"), []),
        (RequestFilter(organization_id="acme", text="/A"), ["/a"]),
        (RequestFilter(text="example.COM/up"), ["https://example.com/Up"]),
    ]
    for wanted, expected in cases:
        assert targets(store.requests(wanted, ALL)) == expected, wanted


def test_text_is_looked_for_as_text(store):
    """Case is ignored in any script, and no character has a special meaning."""
    for target in ("/100%", "/1000", "/a_b", "/axb", "/STRASSE", "/Ärger", "/back\\slash", "/\udcff"):
        store.decide(approval(target), now=NOW)
    for text, expected in {
        "100%": ["/100%"],
        "a_b": ["/a_b"],
        "straße": ["/STRASSE"],
        "äRGER": ["/Ärger"],
        "k\\s": ["/back\\slash"],
        "\udcff": ["/\udcff"],
    }.items():
        assert targets(store.decisions(DecisionFilter(text=text), ALL)) == expected


def test_filters_of_decisions(store):
    """In force, ended or both; by effect, scope and session."""
    store.decide(approval("/a"), now=NOW)
    store.decide(approval("/b", session="s-1"), now=at(1))
    store.decide(approval("/c", session="s-2"), now=at(2))
    store.decide(denial("/a"), now=at(3))
    for wanted, expected in [
        (DecisionFilter(), ["/a", "/c", "/b"]),
        (DecisionFilter(live=False), ["/a"]),
        (DecisionFilter(live=None), ["/a", "/c", "/b", "/a"]),
        (DecisionFilter(effect=DecisionEffect.DENIAL), ["/a"]),
        (DecisionFilter(scope=DecisionScope.SESSION), ["/c", "/b"]),
        (DecisionFilter(session_key="s-1"), ["/b"]),
        (DecisionFilter(subject=Subject.parse("module:other")), []),
        (DecisionFilter(subject=Subject.parse("module:reports"), operation=Operation.READ, text="/B"), ["/b"]),
    ]:
        assert targets(store.decisions(wanted, ALL)) == expected, wanted


def test_filters_of_the_audit(store):
    """By action, actor, subject, request and time; the end of a period is exclusive."""
    asked = store.register(request("/a"), now=at(0)).request_id
    store.decide(approval("/a", request_id=asked, by="ann"), now=at(10))
    store.decide(denial("/b", by="bob", subject="tool:x"), now=at(20))
    for wanted, expected in [
        (AuditFilter(), [3, 2, 1]),
        (AuditFilter(actions=(AuditAction.REQUESTED, AuditAction.DENIED)), [3, 1]),
        (AuditFilter(actor="ann"), [2]),
        (AuditFilter(actor="subject:module:reports"), [1]),
        (AuditFilter(subject=Subject.parse("tool:x")), [3]),
        (AuditFilter(request_id=asked), [2, 1]),
        (AuditFilter(since=at(10)), [3, 2]),
        (AuditFilter(until=at(10)), [1]),
        (AuditFilter(since=at(5), until=at(15)), [2]),
    ]:
        assert [record.sequence for record in store.audit(wanted, ALL).items] == expected, wanted
