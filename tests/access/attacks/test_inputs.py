"""Hostile texts, numbers and objects: each is answered or rejected with its specific error."""

from __future__ import annotations

import sys
import time
import tracemalloc
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from democrai_sandbox.access.caller import SUPER, Caller, GuardedSubject
from democrai_sandbox.access.values import (
    AccessTuple,
    AuditFilter,
    DecisionEffect,
    DecisionFilter,
    DecisionScope,
    NewDecision,
    PageRequest,
    RequestFilter,
    RequestState,
)
from democrai_sandbox.errors import (
    DecisionConflict,
    DecisionUnknown,
    ExternalAccessAdminRequired,
    RequestUnknown,
    StoreUnavailable,
)
from democrai_sandbox.policy import (
    DecisionCode,
    InvalidInputError,
    Operation,
    ResourceType,
    SandboxError,
    Subject,
    SubjectKind,
)
from tests.access.conftest import DEMO, limits
from tests.services.rows import rows

URL = "https://api.test/v1"


@rows("given", [None, 7, b"x", "", "\0", "\ud800", "x" * 100_000, "' OR 1=1 --", object()])
@rows("act", ["approve_for_session", "approve_permanently", "deny_external_access", "revoke"])
def test_ids_that_are_none_are_unknown_or_refused(desk, act, given):
    """Errors reveal nothing of the database, and do not claim that it is unavailable."""
    desk.check(URL)
    with pytest.raises((RequestUnknown, DecisionUnknown, InvalidInputError)):
        desk.decide(act, given)


@rows("after", [
    "x", "%", "W10", "\ud800", 7, b"W10", "A" * 100_000,
    "WyJhY2Nlc3NfcmVxdWVzdHMuaWQiLCAxLCAiJyBPUiAxPTEgLS0iXQ",
    "WyJhY2Nlc3NfcmVxdWVzdHMuaWQiLCAxZTQwMCwgIngiXQ",
])  # fmt: skip
def test_marks_of_pages_that_nobody_gave_out_are_refused_or_lead_nowhere(desk, after):
    """A cursor is treated as data: it neither breaks out of the statement nor reveals other rows."""
    desk.check(URL)
    try:
        assert len(desk.decide("pending_requests", None, PageRequest(after=after)).items) <= 1
    except InvalidInputError:
        pass


@rows("limit", [0, -1, 1001, 10**30, "5", None, 1.5])
def test_page_limits_are_whole_numbers_in_their_range(desk, limit):
    """Invalid limits are rejected with their name."""
    with pytest.raises(InvalidInputError):
        desk.decide("pending_requests", None, PageRequest(limit=limit))


@rows("wanted", [
    RequestFilter(text="%"), RequestFilter(text="_" * 10), RequestFilter(text="' OR '1'='1"), RequestFilter(text="/%"),
    RequestFilter(text="\\"), RequestFilter(text="\0"), RequestFilter(text="\udc80"), RequestFilter(text="x" * 60_000),
    RequestFilter(user_id="' OR 1=1 --"), RequestFilter(session_key="\0"), RequestFilter(organization_id="%"),
])  # fmt: skip
def test_filters_are_texts_and_nothing_else(desk, wanted):
    """SQL wildcards match only themselves; they find nothing here and break nothing."""
    desk.check(URL)
    try:
        assert desk.decide("pending_requests", wanted).items == ()
    except InvalidInputError:
        pass


@rows(("listing", "wanted"), [
    ("pending_requests", RequestFilter(states=("pending",))),
    ("pending_requests", RequestFilter(states=("nonsense",))),
    ("pending_requests", RequestFilter(user_id=7)),
    ("approvals", DecisionFilter(scope="nonsense")),
    ("approvals", DecisionFilter(session_key=7)),
    ("history", AuditFilter(actions=("approved",))),
    ("history", AuditFilter(since=datetime(2026, 1, 1))),  # noqa: DTZ001 - that is what is wrong
    ("history", AuditFilter(since="yesterday")),
    ("history", AuditFilter(since=datetime.max.replace(tzinfo=UTC), until=datetime.min.replace(tzinfo=UTC))),
])  # fmt: skip
def test_filters_of_the_wrong_type_are_refused_or_match(desk, listing, wanted):
    """Filters come from an administrator's page: a typing mistake is neither a database failure nor a crash."""
    desk.check(URL)
    try:
        desk.decide(listing, wanted)
    except InvalidInputError:
        pass


@rows("lifetime", [timedelta.max, timedelta(days=365 * 9000), 5, "1h", timedelta(0)])
def test_lifetimes_that_make_no_sense_are_refused(desk, lifetime):
    """Lifetimes beyond the calendar are rejected too."""
    asked = desk.check(URL).request_id
    with pytest.raises(InvalidInputError):
        desk.decide("approve_permanently", asked, lifetime=lifetime)
    assert desk.store.request(asked).state is RequestState.PENDING


@rows("target", [
    "/tmp/\ud83d", "/tmp/\ud83d\ude00", "/tmp/\udc80x", "/\0", "/proc/self/fd/999", "/proc/self/root/../etc",
    "/" + "a/" * 3000,
    "/" + "x" * 5000, "/dev/stdin", "/tmp/\n", "/tmp/\u202egnp.exe",
])  # fmt: skip
def test_paths_of_all_kinds_are_answered_or_refused(desk, target):
    """Every path gets a result or a declared error."""
    try:
        found = desk.check(target, kind="filesystem", operation="read")
    except SandboxError as error:
        assert not isinstance(error, StoreUnavailable)
        return
    assert found.allowed is False


def test_two_targets_never_have_the_same_digest():
    """Two halves of a surrogate pair are not the character that they form together."""
    texts = ["\U0001f600", "\ud83d\ude00", "\\ud83d\\ude00", "a\0b", 'a", "b', "a"]
    tuples = [AccessTuple(DEMO, ResourceType.FILESYSTEM, Operation.READ, f"/{text}") for text in texts]
    assert len({access.digest for access in tuples}) == len(texts)


@rows("organization", [0, False, b"", 0.0, ()])
def test_an_organization_is_one_whatever_its_number(desk, organization):
    """Organization 0 is an organization, so its users may not decide."""
    asked = desk.check(URL).request_id
    with pytest.raises((ExternalAccessAdminRequired, InvalidInputError)):
        caller = Caller(user_id="ada", role=SUPER, organization_id=organization)
        with desk.around.serving(caller):
            desk.administration.approve_permanently(asked)


@rows("caller", [{"user_id": 7}, {"session_key": None}, {"session_key": 7}, {"task_id": None}])
def test_identities_that_are_no_texts_are_refused_or_written_as_texts(desk, caller):
    """An invalid identity is not reported as an unavailable database."""
    try:
        found = desk.check(URL, user=Caller(**{"user_id": "uma", **caller}))
    except InvalidInputError:
        return
    assert found.code is DecisionCode.PENDING


def test_guarded_code_does_not_tidy(desk):
    """Guarded code could otherwise drop the requests of others, or end their sessions."""
    asked = desk.check(URL).request_id
    who = Subject(SubjectKind.MODULE, "evil")
    desk.around.guarded = GuardedSubject(who, (who,))
    with pytest.raises(ExternalAccessAdminRequired):
        desk.administration.tidy(pending_lifetime=timedelta(days=-1))
    assert desk.store.request(asked).state is RequestState.PENDING


def test_lifetimes_of_pending_requests_are_positive(desk):
    """A lifetime with the wrong sign does not drop recent requests."""
    asked = desk.check(URL).request_id
    with pytest.raises(InvalidInputError):
        desk.administration.tidy(pending_lifetime=timedelta(days=-1))
    assert desk.store.request(asked).state is RequestState.PENDING


# ---- large amounts --------------------------------------------------------------------------------------------------


def test_what_is_remembered_of_questions_stays_small(desk):
    """Thousands of questions with long targets that file no request must not stay in the host's memory."""
    size = 8_000
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(200):
            desk.check(f"https://api.test/{number}/" + "x" * size, register_request=False)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / 200 < 4 * size


def test_what_one_request_leaves_on_the_disk_is_small(desk):
    """The audit log, which is never cleared, stores the longest target at most twice: normalized and as written."""
    before = desk.store.audit_head()[0]
    desk.check("https://api.test/" + "x" * 8_000)
    rows = list(desk.store.audit_rows(before))
    assert sum(sys.getsizeof(str(row)) for row in rows) < 20_000


def test_one_subject_cannot_fill_the_list_for_ever(make_desk):
    """The allowance refills, but the number of pending requests per subject and user is limited."""
    desk = make_desk(limits=limits(new_requests=50, refill_per_second=1e9, pending=60))
    for number in range(80):
        desk.check(f"{URL}/{number}")
    assert len(desk.pending()) <= 60


def test_deciding_about_long_targets_takes_no_time(make_desk):
    """One request is decided while many long requests of the same subject are pending."""
    desk = make_desk(limits=limits(new_requests=1000))
    for number in range(60):
        desk.check(f"https://api.test/{number}/" + "%C3%A9" * 1_300)
    asked = desk.check(URL).request_id
    began = time.process_time()  # processor time, independent of other processes
    desk.decide("approve_permanently", asked)
    assert time.process_time() - began < 2.0


def test_more_denials_than_a_page_still_stand_against_an_approval(desk, monkeypatch):
    """The denial that covers an approval may be old and listed after the first page."""
    monkeypatch.setattr("democrai_sandbox.access.administration._AT_ONCE", 5)
    old = desk.decide(
        "decide_unasked",
        DEMO,
        resource_type="network",
        operation="receive",
        target="https://old.test",
        effect=DecisionEffect.DENIAL,
    ).decision
    now = desk.node.clock()
    for number in range(20):
        access = AccessTuple(DEMO, ResourceType.NETWORK, Operation.RECEIVE, f"https://n{number}.test")
        desk.store.decide(
            NewDecision(access, DecisionEffect.DENIAL, DecisionScope.PERMANENT, "ada"), now=now + timedelta(seconds=1)
        )
    assert old.ended_at is None
    with pytest.raises(DecisionConflict, match=old.id):
        desk.decide(
            "decide_unasked",
            DEMO,
            resource_type="network",
            operation="receive",
            target="https://old.test/x",
            effect=DecisionEffect.APPROVAL,
        )
