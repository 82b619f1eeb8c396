"""Undo of a decision, and versions of a state, on each database."""

from __future__ import annotations

from dataclasses import replace

import pytest

from democrai_sandbox.access.values import Expected, RequestState
from democrai_sandbox.errors import DecisionConflict
from tests.access.store.samples import NOW, about, approval, at, denial, live, request


def test_what_was_answered_waits_again_and_what_was_replaced_is_in_force(store):
    """Undoing an approval that replaced a denial and answered two requests with actions restores the previous state."""
    store.decide(approval(session="s-9"), now=NOW)
    store.decide(denial(), now=at(1))
    mine = store.register(request("/srv/data/below", action="go"), now=at(2)).request_id
    before = store.request(mine), live(store)
    made = store.decide(approval(also=(mine,)), now=at(3))
    assert store.aftermath(made.id).answered == (mine,)
    undone = store.undo(made.id, actor="root", reason="", now=at(4))
    assert (undone.reopened, undone.kept) == ((mine,), ())
    assert (store.request(mine), live(store)) == before
    assert store.resume_of(mine) is None
    assert store.decision(made.id).ended_at == at(4)


def test_a_request_that_was_made_again_is_not_doubled(store):
    """A lagging node has filed the same request meanwhile, so the older one is not reopened."""
    mine = store.register(request("/srv/data/below"), now=NOW).request_id
    made = store.decide(approval(also=(mine,)), now=at(1))
    again = store.register(request("/srv/data/below"), now=at(2)).request_id
    undone = store.undo(made.id, actor="root", reason="", now=at(3))
    assert (undone.reopened, undone.kept) == ((), (mine,))
    assert [store.request(one).state for one in (mine, again)] == [RequestState.REVOKED, RequestState.PENDING]


def test_the_version_grows_with_every_change(store):
    """Each decision and each end of one changes the version of that access only."""
    other = about("/else")

    def version():
        found = store.versions([about(), other])
        assert found[other.digest] == 0
        return found[about().digest]

    seen = [version()]
    made = store.decide(approval(), now=NOW)
    seen.append(version())
    store.revoke(made.id, actor="root", reason="", now=at(1))
    seen.append(version())
    denied = store.decide(denial(), now=at(2))
    seen.append(version())
    store.undo(denied.id, actor="root", reason="", now=at(3))
    seen.append(version())
    assert seen == sorted(set(seen))
    with pytest.raises(DecisionConflict):
        store.decide(replace(approval(), expected=Expected((about(),), seen[0])), now=at(4))
    assert store.decide(replace(approval(), expected=Expected((about(),), seen[-1])), now=at(4))


def test_requests_show_the_decision_again_that_is_in_force_again(store):
    """One request's decision was replaced by its contrary, another's was repeated; the undo restores both."""
    asked = store.register(request("/srv/a"), now=NOW).request_id
    first = store.decide(approval("/srv/a", request_id=asked), now=at(1))
    before = store.request(asked)
    for number, verdict in enumerate([denial("/srv/a"), approval("/srv/a")], 2):
        second = store.decide(verdict, now=at(number))
        assert store.request(asked) != before
        store.undo(second.id, actor="root", reason="", now=at(number))
        assert store.request(asked) == before
    assert before.decision_id == first.id
