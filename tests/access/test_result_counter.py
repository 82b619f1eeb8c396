"""Results are counted by their code, exactly and from any thread."""

from __future__ import annotations

import threading

import pytest

from democrai_sandbox.access.checks import FAILED, ResultCounter
from democrai_sandbox.errors import ExternalAccessCheckFailed
from democrai_sandbox.policy import DecisionCode

from .conftest import Desk

NOTHING = dict.fromkeys((*(code.value for code in DecisionCode), FAILED), 0)


def test_each_answer_counts_once(desk):
    """Each result counts under its code, also when totals are read in between."""
    assert desk.service.answers() == NOTHING
    approved, session, denied = (desk.check(f"https://{name}.test/") for name in ("a", "s", "d"))
    desk.decide("approve_permanently", approved.request_id)
    desk.decide("approve_for_session", session.request_id)
    desk.decide("deny_external_access", denied.request_id)
    assert desk.service.answers() == NOTHING | {"pending": 3}
    for name in ("a", "a", "s", "d"):
        desk.check(f"https://{name}.test/")
    desk.check("https://other.test/", register_request=False)
    desk.check("https://other.test/a/..%2fb")
    expected = {"pending": 3, "permanent_approval": 2, "session_approval": 1, "denied": 1, "not_enabled": 2}
    assert desk.service.answers() == NOTHING | expected
    assert desk.service.answers() == NOTHING | expected


def test_a_failed_check_counts_as_one(database):
    """A node without a snapshot gives no result, and that is counted."""
    desk = Desk(database)
    desk.node._snapshot = None
    with pytest.raises(ExternalAccessCheckFailed):
        desk.check("https://a.test/")
    assert desk.service.answers() == NOTHING | {FAILED: 1}
    desk.close()


def test_no_thread_loses_a_count():
    """Concurrent readers lose no count either."""
    tally = ResultCounter()

    def add():
        for _ in range(20_000):
            tally.add(DecisionCode.DENIED)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    seen = [tally.totals()["denied"] for _ in range(50)]
    for thread in threads:
        thread.join()
    assert seen == sorted(seen)
    assert tally.totals() == NOTHING | {"denied": 80_000}
