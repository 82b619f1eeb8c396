"""Attacks with lagging or forked nodes, other spellings of a target, links, and concurrent acts."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from democrai_sandbox.access.audit import verify_store
from democrai_sandbox.access.caller import Caller
from democrai_sandbox.access.values import AuditFilter, DecisionEffect, DecisionFilter, PageRequest, RequestState
from democrai_sandbox.errors import DecisionConflict, ExternalAccessCheckFailed
from democrai_sandbox.policy import DecisionCode, InvalidInputError
from tests.access.conftest import ADMIN, DEMO
from tests.services.rows import rows

URL = "https://api.test/v1"
LOOPBACK = (
    "http://127.0.0.1:8000/a",
    "http://localhost:8000/a",
    "http://[::1]:8000/a",
    "http://[::ffff:127.0.0.1]:8000/a",
)


def unasked(desk, target, effect, *, kind="network", operation="receive", **details):
    """Decide without a request."""
    return desk.decide(
        "decide_unasked", DEMO, resource_type=kind, operation=operation, target=target, effect=effect, **details
    ).decision


# ---- spellings ------------------------------------------------------------------------------------------------------


@rows("first", LOOPBACK)
@rows("second", LOOPBACK)
def test_a_denial_in_another_spelling_ends_the_approval_for_good(desk, first, second):
    """Revoking the denial leaves the access undecided, as in the same spelling; the old approval does not return."""
    unasked(desk, first, DecisionEffect.APPROVAL)
    denial = unasked(desk, second, DecisionEffect.DENIAL)
    assert desk.check(first).code is DecisionCode.DENIED
    desk.decide("revoke", denial.id)
    assert desk.check(first, register_request=False).code is DecisionCode.NOT_ENABLED


@rows(("approved", "asked"), [
    ("https://api.test/v1", "https://api.test/v1/"),
    ("https://api.test/v1/", "https://api.test/v1"),
    ("https://API.test:443/v1", "https://api.test/v1"),
    ("https://api.test./v1", "https://api.test/v1"),
    ("https://b\u00fccher.test/", "https://xn--bcher-kva.test/"),
    ("https://api.test/%76%31", "https://api.test/v1"),
    *[(one, other) for one in LOOPBACK for other in LOOPBACK],
])  # fmt: skip
def test_a_spelling_is_no_other_target(desk, approved, asked):
    """A denial covers all spellings, and the same access never has a second request."""
    try:
        denial = unasked(desk, approved, DecisionEffect.DENIAL)
    except InvalidInputError:
        return
    assert desk.check(asked).code is DecisionCode.DENIED
    desk.decide("revoke", denial.id)


@rows("asked", [
    "https://api.test/v1/../secret", "https://api.test/v1/..%2fsecret", "https://api.test/v1/%2e%2e/secret", "https://api.test/v1;/../s",
    "https://api.test/v1x", "https://api.test/V1", "https://api.test:444/v1", "http://api.test/v1", "https://api.test/v1//../../x",
    "https://api.test/v1\\..\\x", "https://evil.test/https://api.test/v1", "https://api.test@evil.test/v1", "https://evil.test#https://api.test/v1",
    "https://api.test.evil.test/v1", "https://xapi.test/v1", "https://api.test%2eevil.test/v1",
    "https://api.test/%761/../x", "https://api.test/v1/%252e%252e/x",
])  # fmt: skip
def test_an_approval_covers_nothing_beside_it(desk, asked):
    """An approval does not cover dot segments, encodings, other ports and similar hosts."""
    unasked(desk, URL, DecisionEffect.APPROVAL)
    try:
        found = desk.check(asked, register_request=False)
    except InvalidInputError:
        return
    if found.allowed:
        assert asked == "https://api.test/v1/%252e%252e/x", (
            "only a name that is spelled with a percent sign lies below it"
        )


# ---- links ----------------------------------------------------------------------------------------------------------


def test_an_approved_link_whose_target_changes_opens_nothing_else(desk, tmp_path):
    """A decision covers the path that the link pointed to when it was requested."""
    (tmp_path / "good").write_text("")
    (tmp_path / "evil").write_text("")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "good")
    asked = desk.check(str(link), kind="filesystem", operation="read")
    desk.decide("approve_permanently", asked.request_id)
    assert desk.check(str(link), kind="filesystem", operation="read").allowed
    link.unlink()
    link.symlink_to(tmp_path / "evil")
    assert not desk.check(str(link), kind="filesystem", operation="read").allowed
    assert desk.check(str(tmp_path / "good"), kind="filesystem", operation="read").allowed


@pytest.mark.parametrize("effect", [DecisionEffect.APPROVAL, DecisionEffect.DENIAL])
def test_a_decision_about_a_link_is_about_where_it_leads(desk, tmp_path, effect):
    """Checks follow links; a decision that does not would be shown as in force without any effect."""
    (tmp_path / "v1").mkdir()
    (tmp_path / "current").symlink_to(tmp_path / "v1")
    place = str(tmp_path / "current" / "data")
    try:
        unasked(desk, place, effect, kind="filesystem", operation="read")
    except InvalidInputError:
        return
    expected = DecisionCode.PERMANENT_APPROVAL if effect is DecisionEffect.APPROVAL else DecisionCode.DENIED
    assert desk.check(place, kind="filesystem", operation="read", register_request=False).code is expected


# ---- nodes ----------------------------------------------------------------------------------------------------------


def test_a_forked_process_does_not_answer_from_what_its_parent_knew(desk):
    """A forked process has no refresh thread: a revoked approval would stay in its snapshot forever."""
    decision = unasked(desk, URL, DecisionEffect.APPROVAL)
    desk.node.start()
    reading, writing = os.pipe()
    told, go = os.pipe()
    child = os.fork()
    if not child:  # pragma: no cover - another process
        try:
            os.read(told, 1)
            time.sleep(0.6)
            try:
                word = b"allowed" if desk.check(URL, register_request=False).allowed else b"not"
            except ExternalAccessCheckFailed:
                word = b"failed"
            os.write(writing, word)
        finally:
            os._exit(0)
    os.close(writing)
    desk.decide("revoke", decision.id)
    os.write(go, b"x")
    with os.fdopen(reading, "rb") as answer:
        word = answer.read()
    os.waitpid(child, 0)
    os.close(told)
    os.close(go)
    assert word in (b"not", b"failed")


def test_a_node_that_lags_cannot_approve_what_was_denied_elsewhere(make_desk):
    """The store decides, not the knowledge of a node."""
    here, there = make_desk(), make_desk()
    asked = here.check(URL).request_id
    there.decide("deny_external_access", asked)
    with pytest.raises(DecisionConflict):
        here.decide("approve_permanently", asked)
    assert here.check(URL).code is not DecisionCode.PERMANENT_APPROVAL


def test_an_expired_approval_does_not_come_back_with_the_clock(desk, monkeypatch):
    """Setting the clock back after a stored expiry does not revive the approval."""
    hour = 3600 * 10**9
    ahead = lambda by: monkeypatch.setattr("democrai_sandbox.access.checks.time_ns", lambda: time.time_ns() + by)
    unasked(desk, URL, DecisionEffect.APPROVAL, lifetime=timedelta(hours=1))
    assert desk.check(URL, register_request=False).allowed
    ahead(2 * hour)
    assert not desk.check(URL, register_request=False).allowed
    monkeypatch.setattr(desk.node, "clock", lambda: datetime.now(UTC) + timedelta(hours=2))
    desk.administration.tidy(pending_lifetime=timedelta(days=1))
    desk.node.refresh()
    ahead(0)
    assert not desk.check(URL, register_request=False).allowed


# ---- concurrent acts
# --------------------------------------------------------------------------------------------------


def test_acts_that_meet_leave_one_state_and_a_whole_audit(make_desk):
    """Concurrent approvals, denials, revocations, session ends, drops and requests from two nodes."""
    desks = [make_desk(), make_desk()]
    stop = time.monotonic() + 2.0
    came: Counter[str] = Counter()

    def work(number):
        desk = desks[number % 2]
        admin, around = desk.administration, desk.around
        around.present = ADMIN  # both are present at the same time here, and the guard is not asked
        while time.monotonic() < stop:
            try:
                if number % 4 == 0:
                    desk.service.check_external_access(
                        resource_type="network", operation="receive", target=URL, subject=DEMO
                    )
                elif number % 4 == 1:
                    pending = admin.pending_requests().items
                    for found in pending[:2]:
                        (admin.approve_permanently, admin.deny_external_access)[number // 4 % 2](found.id)
                elif number % 4 == 2:
                    for found in admin.approvals().items[:1] + admin.denials().items[:1]:
                        admin.revoke(found.id)
                else:
                    admin.tidy(pending_lifetime=timedelta(milliseconds=1))
                came["done"] += 1
            except DecisionConflict:
                came["conflict"] += 1
            except Exception as error:  # noqa: BLE001 - counted, and shown
                came[repr(error)] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store = desks[0].store
    assert set(came) <= {"done", "conflict"}, came
    assert verify_store(store).ok
    live = store.decisions(DecisionFilter(), PageRequest(limit=1000)).items
    assert len(live) <= 1
    acts = Counter(
        record.action.value for desk in desks[:1] for record in desk.store.audit_rows() if record.action != "requested"
    )
    ended = store.decisions(DecisionFilter(live=None), PageRequest(limit=1000)).items
    assert len(ended) == min(1000, acts["approved"] + acts["denied"])


def test_every_request_that_ends_has_its_record(desk):
    """One record names each state of a request."""
    asked = [desk.check(f"{URL}/{number}").request_id for number in range(4)]
    desk.decide("approve_permanently", asked[0])
    desk.decide("deny_external_access", asked[1])
    desk.decide("approve_for_session", asked[2])
    desk.store.age_out(before=desk.node.clock() + timedelta(days=1), now=desk.node.clock())
    for request_id in asked:
        assert desk.store.request(request_id).state is not RequestState.PENDING
        told = desk.store.audit(AuditFilter(request_id=request_id), PageRequest()).items
        assert len(told) == 2, told


def test_a_request_of_nobody_is_not_that_of_an_empty_name(desk):
    """No user and no session is one origin, which gets no session approval."""
    with desk.around.serving(Caller(user_id="uma", session_key="s1")):
        asked = desk.check(URL).request_id
    desk.decide("approve_for_session", asked)
    assert desk.check(URL, user=Caller(user_id="uma", session_key="s1")).allowed
    for other in (Caller(), Caller(user_id="uma"), Caller(user_id="uma", session_key="S1"), Caller(session_key="s1 ")):
        assert not desk.check(URL, user=other, register_request=False).allowed
