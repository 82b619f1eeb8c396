"""A node follows the store: told by events, by looking on its own, and after failures."""

from __future__ import annotations

import threading
import time

import pytest

from democrai_sandbox.errors import ExternalAccessCheckFailed
from democrai_sandbox.policy import DecisionCode
from tests.access.conftest import Desk
from tests.access.test_service import URL, Broken


def soon(condition, seconds=30.0):
    """Wait until something is so; say whether it came to be."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


@pytest.fixture
def pair(make_desk):
    """Two nodes over one store that hear each other."""
    one, other = make_desk(), make_desk()
    one.node.start()
    other.node.start()
    return one, other


def test_a_decision_on_one_node_is_answered_on_the_other(pair):
    """And its end too."""
    one, other = pair
    decision = one.decide("approve_permanently", one.check(URL).request_id).decision
    assert soon(lambda: other.check(URL, register_request=False).allowed)
    one.decide("revoke", decision.id)
    assert soon(lambda: not other.check(URL, register_request=False).allowed)


def test_without_events_a_node_looks_by_itself(database):
    """The bus says nothing at all: the poll finds it."""
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
    """Whoever asks when it is told gets the new answer; one that fails keeps none of the others from it."""
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
    """Meanwhile the node answers what it knows, and says that it cannot reach the store."""
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
    """After a restored backup what was decided since is not in force any more."""
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
    """A node that is told of a generation that does not exist looks, finds nothing, and goes on."""
    one, other = pair
    other.node._heard(2**62)
    other.node._heard(None)
    other.node._heard(0)
    one.decide("approve_permanently", one.check(URL).request_id)
    assert soon(lambda: other.check(URL, register_request=False).allowed)
    assert other.node.status.generation == 1


def test_a_node_does_not_start_without_its_store(database):
    """Nothing is known then, so nothing can be answered."""
    desk = Desk(database)
    desk.node.store = broken = Broken(desk.store)
    broken.away = True
    try:
        with pytest.raises(ExternalAccessCheckFailed):
            desk.node.start()
    finally:
        desk.close()


def test_stopping_twice_is_stopping_once(pair):
    """And what is known goes on to be answered."""
    one, _ = pair
    one.decide("approve_permanently", one.check(URL).request_id)
    one.node.stop()
    one.node.stop()
    assert one.check(URL).allowed
