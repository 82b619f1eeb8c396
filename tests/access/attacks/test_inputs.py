"""Texts, numbers and objects that somebody chose badly on purpose: each is answered or refused by its own error."""

from __future__ import annotations

import sys
import time
import tracemalloc
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from democrai_sandbox.access.identity import SUPER, Caller
from democrai_sandbox.access.values import (
    AccessTuple,
    AuditFilter,
    DecisionFilter,
    Effect,
    NewDecision,
    Page,
    RequestFilter,
    RequestState,
    Scope,
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
    """Nothing of the database shows through, and it is not said that the database is away."""
    desk.check(URL)
    with pytest.raises((RequestUnknown, DecisionUnknown, InvalidInputError)):
        desk.decide(act, given)


@rows("after", [
    "x", "%", "W10", "\ud800", 7, b"W10", "A" * 100_000,
    "WyJhY2Nlc3NfcmVxdWVzdHMuaWQiLCAxLCAiJyBPUiAxPTEgLS0iXQ",
    "WyJhY2Nlc3NfcmVxdWVzdHMuaWQiLCAxZTQwMCwgIngiXQ",
])  # fmt: skip
def test_marks_of_pages_that_nobody_gave_out_are_refused_or_lead_nowhere(desk, after):
    """A mark is read as data: it neither breaks out of the statement nor shows what the list would not."""
    desk.check(URL)
    try:
        assert len(desk.decide("pending_requests", None, Page(after=after)).items) <= 1
    except InvalidInputError:
        pass


@rows("limit", [0, -1, 1001, 10**30, "5", None, 1.5])
def test_page_limits_are_whole_numbers_in_their_range(desk, limit):
    """Refused by name."""
    with pytest.raises(InvalidInputError):
        desk.decide("pending_requests", None, Page(limit=limit))


@rows("wanted", [
    RequestFilter(text="%"), RequestFilter(text="_" * 10), RequestFilter(text="' OR '1'='1"), RequestFilter(text="/%"),
    RequestFilter(text="\\"), RequestFilter(text="\0"), RequestFilter(text="\udc80"), RequestFilter(text="x" * 60_000),
    RequestFilter(user_id="' OR 1=1 --"), RequestFilter(session_key="\0"), RequestFilter(organization_id="%"),
])  # fmt: skip
def test_filters_are_texts_and_nothing_else(desk, wanted):
    """Wildcards of SQL match themselves alone; nothing is found by them here, and nothing breaks."""
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
    """They come from an administrator's page: a typing mistake is no failure of the database, and no crash."""
    desk.check(URL)
    try:
        desk.decide(listing, wanted)
    except InvalidInputError:
        pass


@rows("lifetime", [timedelta.max, timedelta(days=365 * 9000), 5, "1h", timedelta(0)])
def test_lifetimes_that_make_no_sense_are_refused(desk, lifetime):
    """A time beyond the calendar too."""
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
    """Never by an error that nobody declared."""
    try:
        found = desk.check(target, kind="filesystem", operation="read")
    except SandboxError as error:
        assert not isinstance(error, StoreUnavailable)
        return
    assert found.allowed is False


def test_two_targets_never_have_the_same_digest():
    """Half a surrogate pair and another half are not the character that both make together."""
    texts = ["\U0001f600", "\ud83d\ude00", "\\ud83d\\ude00", "a\0b", 'a", "b', "a"]
    tuples = [AccessTuple(DEMO, ResourceType.FILESYSTEM, Operation.READ, f"/{text}") for text in texts]
    assert len({access.digest for access in tuples}) == len(texts)


@rows("organization", [0, False, b"", 0.0, ()])
def test_an_organization_is_one_whatever_its_number(desk, organization):
    """An application whose organizations are numbers has one with the number nought: its users decide nothing."""
    asked = desk.check(URL).request_id
    with pytest.raises((ExternalAccessAdminRequired, InvalidInputError)):
        caller = Caller(user_id="ada", role=SUPER, organization_id=organization)
        with desk.around.serving(caller):
            desk.administration.approve_permanently(asked)


@rows("caller", [{"user_id": 7}, {"session_key": None}, {"session_key": 7}, {"task_id": None}])
def test_identities_that_are_no_texts_are_refused_or_written_as_texts(desk, caller):
    """It is not the database that is away then."""
    try:
        found = desk.check(URL, user=Caller(**{"user_id": "uma", **caller}))
    except InvalidInputError:
        return
    assert found.code is DecisionCode.PENDING


def test_guarded_code_does_not_tidy(desk):
    """It would make every question of others go away unanswered, as it would by ending their sessions."""
    asked = desk.check(URL).request_id
    who = Subject(SubjectKind.MODULE, "evil")
    desk.around.guarded = SimpleNamespace(subject="evil", subject_kind=SubjectKind.MODULE, subject_chain=(who,))
    with pytest.raises(ExternalAccessAdminRequired):
        desk.administration.tidy(pending_lifetime=timedelta(days=-1))
    assert desk.store.request(asked).state is RequestState.PENDING


def test_lifetimes_of_pending_requests_are_positive(desk):
    """A host that gets its sign wrong does not throw away what was asked a moment ago."""
    asked = desk.check(URL).request_id
    with pytest.raises(InvalidInputError):
        desk.administration.tidy(pending_lifetime=timedelta(days=-1))
    assert desk.store.request(asked).state is RequestState.PENDING


# ---- much of it -----------------------------------------------------------------------------------------------------


def test_what_is_remembered_of_questions_stays_small(desk):
    """Thousands of questions with long targets, nothing of which is put down, must not stay in the host's memory."""
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
    """The audit, which nobody can clear, takes the longest target twice at most: as it is, and as it was written."""
    before = desk.store.audit_head()[0]
    desk.check("https://api.test/" + "x" * 8_000)
    rows = list(desk.store.audit_rows(before))
    assert sum(sys.getsizeof(str(row)) for row in rows) < 20_000


def test_one_subject_cannot_fill_the_list_for_ever(make_desk):
    """The allowance refills; what is pending at one time from one subject for one user has an end all the same."""
    desk = make_desk(limits=limits(new_requests=50, refill_per_second=1e9, pending=60))
    for number in range(80):
        desk.check(f"{URL}/{number}")
    assert len(desk.pending()) <= 60


def test_deciding_about_long_targets_takes_no_time(make_desk):
    """Many long requests of the same subject wait while one of them is decided."""
    desk = make_desk(limits=limits(new_requests=1000))
    for number in range(60):
        desk.check(f"https://api.test/{number}/" + "%C3%A9" * 1_300)
    asked = desk.check(URL).request_id
    began = time.process_time()  # what it works, however long others keep it from working
    desk.decide("approve_permanently", asked)
    assert time.process_time() - began < 2.0


def test_more_denials_than_a_page_still_stand_against_an_approval(desk, monkeypatch):
    """The denial that covers an approval may be an old one, behind a page of others."""
    monkeypatch.setattr("democrai_sandbox.access.reading._AT_ONCE", 5)
    old = desk.decide(
        "decide_unasked",
        DEMO,
        resource_type="network",
        operation="receive",
        target="https://old.test",
        effect=Effect.DENIAL,
    ).decision
    now = desk.node.clock()
    for number in range(20):
        access = AccessTuple(DEMO, ResourceType.NETWORK, Operation.RECEIVE, f"https://n{number}.test")
        desk.store.decide(NewDecision(access, Effect.DENIAL, Scope.PERMANENT, "ada"), now=now + timedelta(seconds=1))
    assert old.ended_at is None
    with pytest.raises(DecisionConflict, match=old.id):
        desk.decide(
            "decide_unasked",
            DEMO,
            resource_type="network",
            operation="receive",
            target="https://old.test/x",
            effect=Effect.APPROVAL,
        )
