"""Views of administrators and requesters, notes, and bulk decisions."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from democrai_sandbox.access.administration import Outcome
from democrai_sandbox.access.caller import Caller
from democrai_sandbox.access.store.queries import similar_first
from democrai_sandbox.access.values import AuditAction, RequestFilter, RequestState
from democrai_sandbox.access.verdicts import RiskLevel
from democrai_sandbox.errors import (
    DecisionConflict,
    DecisionUnknown,
    ExternalAccessAdminRequired,
    RequestUnknown,
    StoreUnavailable,
)
from democrai_sandbox.errors.access import AuditRecordUnknown
from democrai_sandbox.policy import InvalidInputError, Operation, ResourceType, Subject
from tests.access.conftest import DEMO
from tests.services.rows import rows

URL = "https://api.test/v1"
UMA = Caller(user_id="uma", session_key="s1")
BOB = Caller(user_id="bob", session_key="s2")


class TestReading:
    """Only users who may decide read lists; all users read their own requests."""

    def test_the_queue_groups_what_waits(self, desk):
        """Two users who want the same access share a row."""
        desk.check(URL, user=UMA)
        desk.check(URL, user=BOB)
        desk.check("/srv/x", kind="filesystem", operation="delete")
        found = desk.decide("queue").items
        assert [(group.access.target, group.users, group.risk) for group in found] == [
            ("/srv/x", ("uma",), RiskLevel.HIGH),
            (URL, ("bob", "uma"), RiskLevel.LOW),
        ]
        assert desk.decide("counts")[RequestState.PENDING] == 3
        assert desk.decide("counts", RequestFilter(user_id="bob"))[RequestState.PENDING] == 1

    def test_the_parts_of_a_request(self, desk):
        """The request, its history, the decision, and an audit record."""
        asked = desk.check(URL).request_id
        made = desk.decide("approve_permanently", asked).decision
        assert desk.decide("request", asked).state is RequestState.APPROVED
        assert desk.decide("decision", made.id) == made
        history = desk.decide("history_of", asked)
        assert [record.action for record in history] == [AuditAction.APPROVED, AuditAction.REQUESTED]
        assert desk.decide("audit_record", history[0].sequence) == history[0]
        assert desk.decide("resume_of", asked) is None

    def test_what_is_not_there_is_told(self, desk):
        """Unknown ids have specific errors."""
        with pytest.raises(RequestUnknown):
            desk.decide("request", "nothing")
        with pytest.raises(DecisionUnknown):
            desk.decide("decision", "nothing")
        with pytest.raises(AuditRecordUnknown, match="7"):
            desk.decide("audit_record", 7)
        for act, argument in (("request", 7), ("decision", "x" * 101), ("audit_record", "7"), ("resume_of", None)):
            with pytest.raises(InvalidInputError):
                desk.decide(act, argument)

    def test_requesters_see_their_own_and_no_more(self, desk):
        """They read their requests and the results; not those of others, nor any list."""
        asked = desk.check(URL, user=UMA).request_id
        other = desk.check(URL, user=BOB).request_id
        reading = desk.administration
        with desk.around.serving(UMA):
            assert [request.id for request in reading.own_requests().items] == [asked]
            assert reading.own_requests(states=(RequestState.DENIED,)).items == ()
            assert reading.request(asked).id == asked
            assert len(reading.history_of(asked)) == 1
            assert reading.resume_of(asked) is None
            for unknown in (reading.request, reading.history_of, reading.resume_of, lambda one: reading.note(one, "x")):
                with pytest.raises(RequestUnknown, match=other):
                    unknown(other)
            for refused in (
                reading.queue,
                reading.counts,
                lambda: reading.decision("x"),
                lambda: reading.audit_record(1),
                lambda: reading.alike(reading.request(asked)),
                lambda: reading.similar(reading.request(asked)),
                lambda: reading.decide_many([asked], "permanent"),
            ):
                with pytest.raises(ExternalAccessAdminRequired):
                    refused()
        for nobody in (None, Caller()):
            with desk.around.serving(nobody), pytest.raises(ExternalAccessAdminRequired):
                reading.own_requests()

    def test_who_else_waits_for_the_same(self, desk):
        """Other spellings count; other accesses do not."""
        mine = desk.check("http://127.0.0.1:80/x", user=UMA).request_id
        other = desk.check("http://localhost/x", user=BOB).request_id
        desk.check("http://localhost/y", user=BOB)
        request = desk.decide("request", mine)
        assert [found.id for found in desk.decide("alike", request)] == [other]

    def test_similar_decisions(self, desk):
        """The same access first, then the same host or folder, then decisions of other subjects about this target."""
        decided = {}
        for subject, target in [
            (DEMO, "https://api.test/v2"),
            (DEMO, "https://other.test/"),
            (Subject.parse("module:other"), URL),
            (DEMO, URL),
            (DEMO, "api.test:443"),
        ]:
            operation = "connect" if ":" in target[6:] else "receive"
            asked = desk.check(target, operation=operation, subject=subject).request_id
            decided[str(subject), target] = desk.decide("deny_external_access", asked).decision.id
        desk.decide("revoke", decided["module:demo", URL])
        again = desk.decide("request", desk.check(URL).request_id)
        assert [decision.id for decision in desk.decide("similar", again)] == [
            decided["module:demo", URL],
            decided["module:demo", "api.test:443"],
            decided["module:demo", "https://api.test/v2"],
            decided["module:other", URL],
        ]

    def test_the_answer_to_a_request_is_not_similar_to_itself(self, desk):
        """Its own decision, or a broader one that answered it, is not listed; an earlier one is."""
        earlier = desk.decide("deny_external_access", desk.check(URL).request_id).decision
        desk.decide("revoke", earlier.id)
        asked = [desk.check(URL, user=user).request_id for user in (UMA, BOB)]
        desk.decide("approve_permanently", asked[0], target="https://api.test")
        for request in (desk.decide("request", one) for one in asked):
            assert [decision.id for decision in desk.decide("similar", request)] == [earlier.id]

    def test_similar_folders(self, desk):
        """Parent, sibling and child folders; the root does not count as a shared folder."""
        for target in ("/srv/a/one", "/srv/a/deep/er", "/srv/b", "/etc/x", "/srv"):
            asked = desk.check(target, kind="filesystem", operation="read").request_id
            desk.decide("deny_external_access", asked)
        access = desk.decide("denials").items[0].access
        two = type(access)(DEMO, ResourceType.FILESYSTEM, Operation.READ, "/srv/a/two")
        request = replace(desk.decide("request", asked), access=two, decision_id="")
        found = {decision.access.target for decision in desk.decide("similar", request)}
        assert found == {"/srv", "/srv/a/one", "/srv/a/deep/er"}
        top = type(access)(DEMO, ResourceType.FILESYSTEM, Operation.READ, "/two")
        assert similar_first(top, desk.decide("denials").items) == ()


class TestNotes:
    """A note stays in the audit log and decides nothing."""

    def test_a_note_is_in_the_history_of_its_request(self, desk):
        """The note has its author; the request stays pending."""
        asked = desk.check(URL).request_id
        before = desk.store.pulse()
        made = desk.decide("note", asked, "What is it for?\n\u202eDo tell.")
        assert (made.action, made.actor, made.request_id) == (AuditAction.NOTED, "ada", asked)
        assert made.after == {"text": "What is it for?\n\u202eDo tell."}
        assert desk.decide("history_of", asked)[0] == made
        assert desk.store.request(asked).state is RequestState.PENDING
        assert desk.store.pulse() != before

    def test_requesters_answer_a_few_times(self, desk):
        """Notes are kept forever, so requesters have a limit; administrators have none."""
        asked = desk.check(URL, user=UMA).request_id
        with desk.around.serving(UMA):
            for number in range(20):
                assert desk.administration.note(asked, f"{number}").actor == "uma"
            with pytest.raises(DecisionConflict, match=r"\b20\b"):
                desk.administration.note(asked, "one more")
        assert desk.decide("note", asked, "enough").actor == "ada"

    @staticmethod
    @rows("text", ["", "  \n", "x" * 2001, None, 7])
    def test_a_note_says_something(desk, text):
        """Empty and overlong notes are rejected."""
        asked = desk.check(URL).request_id
        with pytest.raises(InvalidInputError) as caught:
            desk.decide("note", asked, text)
        assert [problem.pointer for problem in caught.value.problems] == ["/text"]
        assert [record.action for record in desk.decide("history_of", asked)] == [AuditAction.REQUESTED]


class TestDecidingMany:
    """Each request is decided separately, with its own outcome."""

    def test_all_acts(self, desk):
        """Approve for the session, permanently, or deny."""
        for act, state in (
            ("session", RequestState.APPROVED_FOR_SESSION),
            ("permanent", RequestState.APPROVED),
            ("deny", RequestState.DENIED),
        ):
            asked = [desk.check(f"https://{act}{number}.test/").request_id for number in range(3)]
            found = desk.decide("decide_many", [*asked, asked[0]], act, reason="looked at")
            assert [request_id for request_id, _ in found] == asked
            assert all(outcome.decision.reason == "looked at" for _, outcome in found)
            assert {desk.store.request(request_id).state for request_id in asked} == {state}

    def test_one_that_fails_stops_no_other(self, desk):
        """Conflicts, unknown ids and skipped session approvals are returned with their requests."""
        first = desk.check("https://a.test/").request_id
        desk.decide("deny_external_access", first)
        without = desk.check("https://b.test/", user=Caller(user_id="uma")).request_id
        last = desk.check("https://c.test/").request_id
        found = dict(desk.decide("decide_many", [first, "unknown", 7, without, last], "session"))
        assert isinstance(found[first], DecisionConflict)
        assert re.search(r"\bdenied\b.*\bada\b", str(found[first]))
        assert isinstance(found["unknown"], RequestUnknown)
        assert isinstance(found[7], InvalidInputError)
        assert found[without].decision is None
        assert found[without].skipped
        assert found[last].decision is not None

    def test_what_one_decision_answers_is_no_conflict(self, desk):
        """Two requests for the same access are answered by one decision, which both outcomes contain."""
        mine = desk.check(URL, user=UMA).request_id
        other = desk.check(URL, user=BOB).request_id
        (_, first), (_, second) = desk.decide("decide_many", [mine, other], "deny")
        assert isinstance(second, Outcome)
        assert first.decision == second.decision

    def test_bad_input_decides_nothing(self, desk):
        """An unknown act, no ids, too many ids, a reason that is too long."""
        asked = desk.check(URL).request_id
        for ids, act, reason in (
            ([asked], "maybe", ""),
            ([], "deny", ""),
            ([asked, *map(str, range(500))], "deny", ""),
            ([asked], "deny", "x" * 2001),
        ):
            with pytest.raises(InvalidInputError):
                desk.decide("decide_many", ids, act, reason=reason)
        assert desk.store.request(asked).state is RequestState.PENDING

    def test_a_store_that_goes_away_is_asked_once(self, desk, monkeypatch):
        """The others get the same error without waiting again."""
        asked = [desk.check(f"https://{number}.test/").request_id for number in range(3)]
        calls = []

        def away(*_, **__):
            calls.append(1)
            raise StoreUnavailable

        monkeypatch.setattr(desk.store, "decide", away)
        found = desk.decide("decide_many", asked, "deny")
        assert [type(outcome) for _, outcome in found] == [StoreUnavailable] * 3
        assert len(calls) == 1
