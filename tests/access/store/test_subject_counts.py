"""Numbers of requests and decisions per subject."""

from __future__ import annotations

from democrai_sandbox.access.store.queries import SubjectCounts, count_by_subject
from tests.access.store.samples import approval, at, denial, request


def test_nothing_is_counted_in_an_empty_store(store):
    """An empty store has no subjects."""
    assert store.database.read(count_by_subject) == {}


def test_what_waits_and_what_is_in_force_is_counted_by_subject(store):
    """Requests of all states are counted, pending ones also separately; decisions only while they are in force."""
    first = store.register(request("/a"), now=at(1)).request_id
    store.register(request("/b"), now=at(2))
    store.register(request("/a", subject="tool:x"), now=at(3))
    store.decide(approval("/a", request_id=first), now=at(4))
    store.decide(denial("/c"), now=at(5))
    ended = store.decide(approval("/d"), now=at(6))
    store.revoke(ended.id, actor="ada", reason="", now=at(7))
    found = store.database.read(count_by_subject)
    assert found["module", "reports"] == SubjectCounts(pending=1, requests=2, approvals=1, denials=1)
    assert found["tool", "x"] == SubjectCounts(pending=1, requests=1)
