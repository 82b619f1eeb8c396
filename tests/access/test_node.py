"""Node that follows the store: by events, by polling, and after failures."""

from __future__ import annotations

import threading
import time

import pytest

from democrai_sandbox.errors import ExternalAccessCheckFailed
from democrai_sandbox.policy import DecisionCode
from tests.access.conftest import Desk
from tests.access.test_checks import URL, Broken


def soon(condition, seconds=30.0):
    """Wait until a condition is true; return whether it became true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


@pytest.fixture
def pair(make_desk):
    """Two nodes over one store that receive each other's events."""
    one, other = make_desk(), make_desk()
    one.node.start()
    other.node.start()
    return one, other


def test_a_decision_on_one_node_is_answered_on_the_other(pair):
    """The end of the decision is seen too."""
    one, other = pair
    decision = one.decide("approve_permanently", one.check(URL).request_id).decision
    assert soon(lambda: other.check(URL, register_request=False).allowed)
    one.decide("revoke", decision.id)
    assert soon(lambda: not other.check(URL, register_request=False).allowed)


def test_without_events_a_node_looks_by_itself(database):
    """Without any event, the poll finds the change."""
    one, other = Desk(database), Desk(database)
    other.node.bus.start = lambda heard: None
    try:
        other.node.start()
        one.decide("approve_permanently", one.check(URL).request_id)
        assert soon(lambda: other.check(URL, register_request=False).allowed)
    finally:
        one.close()
        other.close()


def test_listeners_are_told_after_the_change_is_in_force(pair):
    """A listener that checks gets the new result; a failing listener does not affect the others."""
    one, other = pair
    seen = threading.Event()

    def fail():
        raise RuntimeError("a listener of the host")

    def look():
        if other.check(URL, register_request=False).allowed:
            seen.set()

    other.node.on_change(fail)
    other.node.on_change(look)
    one.decide("approve_permanently", one.check(URL).request_id)
    assert seen.wait(5)


def test_a_store_that_was_away_is_caught_up_with(make_desk):
    """Meanwhile the node answers from its snapshot and reports that the store is unreachable."""
    one, other = make_desk(), make_desk()
    other.node.store = broken = Broken(other.store)
    other.node.start()
    broken.away = True
    assert soon(lambda: not other.node.status.store_reachable)
    one.decide("approve_permanently", one.check(URL).request_id)
    assert other.check(URL, register_request=False).code is DecisionCode.NOT_ENABLED
    broken.away = False
    assert soon(lambda: other.check(URL, register_request=False).allowed)
    assert other.node.status.store_reachable


def test_a_store_that_was_set_back_is_read_from_the_beginning(desk):
    """After a restored backup, later decisions are not in force anymore."""
    desk.decide("approve_permanently", desk.check(URL).request_id)
    assert desk.check(URL).allowed

    class SetBack(Broken):
        def generation(self):
            return 0

        def changes(self, since):
            assert since == 0
            return self._store.changes(10**6)

    desk.node.store = SetBack(desk.store)
    desk.node.refresh()
    assert not desk.check(URL, register_request=False).allowed


def test_a_forged_event_changes_nothing(pair):
    """A node that receives an unknown generation refreshes, finds nothing, and continues."""
    one, other = pair
    other.node._heard(2**62)
    other.node._heard(None)
    other.node._heard(0)
    one.decide("approve_permanently", one.check(URL).request_id)
    assert soon(lambda: other.check(URL, register_request=False).allowed)
    assert other.node.status.generation == 1


def test_a_node_does_not_start_without_its_store(database):
    """Without decisions nothing can be answered."""
    desk = Desk(database)
    desk.node.store = broken = Broken(desk.store)
    broken.away = True
    try:
        with pytest.raises(ExternalAccessCheckFailed):
            desk.node.start()
    finally:
        desk.close()


def test_stopping_twice_is_stopping_once(pair):
    """The last snapshot still answers checks."""
    one, _ = pair
    one.decide("approve_permanently", one.check(URL).request_id)
    one.node.stop()
    one.node.stop()
    assert one.check(URL).allowed
