"""Decisions: authorization, effects, and refusals without partial writes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest

from democrai_sandbox.access.administration import Administration
from democrai_sandbox.access.caller import SUPER, Caller, GuardedSubject
from democrai_sandbox.access.values import (
    DecisionEffect,
    DecisionFilter,
    DecisionScope,
    PageRequest,
    RequestFilter,
    RequestState,
)
from democrai_sandbox.errors import DecisionConflict, DecisionUnknown, ExternalAccessAdminRequired, RequestUnknown
from democrai_sandbox.policy import DecisionCode, InvalidInputError, Operation, Subject, SubjectKind
from tests.access.conftest import ADMIN, DEMO
from tests.services.golden import sentence
from tests.services.rows import rows

URL = "https://api.test/v1"
ACTS = ("approve_for_session", "approve_permanently", "deny_external_access")


class TestWhoMayDecide:
    """Only a runtime user without an organization, with the super role or access level, may decide."""

    @staticmethod
    @rows(
        "caller",
        [
            None,
            Caller(),
            Caller(role=SUPER),
            Caller(user_id="uma"),
            Caller(user_id="uma", role="admin"),
            Caller(user_id="ada", role=SUPER, organization_id="org"),
            Caller(user_id="ada", access_level=SUPER, organization_id="org"),
        ],
    )
    @rows("act", ACTS)
    def test_others_are_refused_by_name(desk, caller, act):
        """The refusal is a PermissionError with the documented code, and nothing is written."""
        asked = desk.check(URL).request_id
        with desk.around.serving(caller), pytest.raises(ExternalAccessAdminRequired) as caught:
            getattr(desk.administration, act)(asked)
        assert str(caught.value) == caught.value.code == "external_access_admin_required"
        assert isinstance(caught.value, PermissionError)
        assert caught.value.why
        assert desk.store.request(asked).state is RequestState.PENDING
        assert desk.store.generation() == 0

    def test_either_the_role_or_the_level_is_enough(self, desk):
        """Each of the two permits a user to decide."""
        for number, caller in enumerate((Caller(user_id="ada", role=SUPER), Caller(user_id="ada", access_level=SUPER))):
            asked = desk.check(f"{URL}/{number}").request_id
            with desk.around.serving(caller):
                assert desk.administration.approve_permanently(asked).decision.created_by == "ada"

    @staticmethod
    @rows("listing", ["pending_requests", "approvals", "denials", "history"])
    def test_lists_are_for_the_same_people(desk, listing):
        """Other users may not read the requests of subjects."""
        with desk.around.serving(Caller(user_id="uma")), pytest.raises(ExternalAccessAdminRequired):
            getattr(desk.administration, listing)()

    def test_guarded_code_does_not_decide_even_for_an_administrator(self, desk):
        """The subject could otherwise approve its own request."""
        asked = desk.check(URL).request_id
        desk.around.guarded = guard_of("other")
        for act in ACTS:
            with desk.around.serving(ADMIN), pytest.raises(ExternalAccessAdminRequired):
                getattr(desk.administration, act)(asked)
        with pytest.raises(ExternalAccessAdminRequired):
            desk.administration.end_session("s1")

    def test_a_manager_decides_about_others_and_never_about_itself(self, desk):
        """The host configures managers; a manager's call chain counts as itself."""
        desk.administration = Administration(desk.node, desk.around, managers=[Subject(SubjectKind.MODULE, "console")])
        asked, own = (
            desk.check(URL).request_id,
            desk.check(URL, subject=Subject(SubjectKind.MODULE, "console")).request_id,
        )
        desk.around.guarded = guard_of("console")
        with desk.around.serving(ADMIN):
            assert desk.administration.approve_permanently(asked).decision
            with pytest.raises(ExternalAccessAdminRequired):
                desk.administration.approve_permanently(own)


def guard_of(name):
    """Return a module as the guarded subject."""
    subject = Subject(SubjectKind.MODULE, name)
    return GuardedSubject(subject, (subject,))


class TestSessions:
    """A session approval is for the session of the request."""

    def test_without_a_session_it_is_skipped_and_said(self, desk):
        """Nothing is stored, and the request stays pending."""
        asked = desk.check(URL, user=Caller(user_id="uma")).request_id
        outcome = desk.decide("approve_for_session", asked)
        assert outcome.decision is None
        sentence("approved for no session", outcome.skipped)
        assert desk.store.request(asked).state is RequestState.PENDING

    def test_it_is_the_requesters_session_not_the_approvers(self, desk):
        """The administrator's session does not matter."""
        asked = desk.check(URL).request_id
        with desk.around.serving(Caller(user_id="ada", role=SUPER, session_key="admin-session")):
            decision = desk.administration.approve_for_session(asked).decision
        assert decision.session_key == "s1"

    def test_the_end_of_the_session_ends_its_approvals(self, desk):
        """Approvals of other sessions stay."""
        zoe = Caller(user_id="zoe", session_key="s2")
        desk.decide("approve_for_session", desk.check(URL).request_id)
        desk.decide("approve_for_session", desk.check(URL, user=zoe).request_id)
        assert desk.administration.end_session("s1") == 1
        assert not desk.check(URL, register_request=False).allowed
        assert desk.check(URL, user=zoe).allowed

    def test_what_was_asked_in_a_session_that_ended_is_not_approved_for_it(self, desk):
        """The outcome says so; a permanent approval is still possible."""
        asked = desk.check(URL).request_id
        desk.administration.end_session("s1")
        outcome = desk.decide("approve_for_session", asked)
        assert outcome.decision is None
        sentence("approved for a session that ended", outcome.skipped)
        assert desk.decide("approve_permanently", asked).decision


class TestDecisions:
    """One winner, one conflict; approvals and denials of an access exclude each other."""

    @staticmethod
    @rows("first", ACTS)
    @rows("second", ACTS)
    def test_deciding_twice_is_a_conflict_that_names_the_first(desk, first, second):
        """The first decision stays in force."""
        asked, before = desk.check(f"{URL}/{first}/{second}").request_id, desk.store.generation()
        decision = desk.decide(first, asked).decision
        with pytest.raises(DecisionConflict, match=r"\bada\b"):
            desk.decide(second, asked)
        assert desk.store.decision(decision.id).ended_at is None
        assert desk.store.generation() == before + 1

    @staticmethod
    @rows("act", ACTS)
    def test_an_unknown_request_is_told(desk, act):
        """An unknown id has a specific error."""
        with pytest.raises(RequestUnknown):
            desk.decide(act, "nothing")

    def test_approving_ends_the_denial_of_the_same_and_the_other_way_round(self, desk):
        """The store never contains contradicting decisions."""
        desk.decide("deny_external_access", desk.check(URL).request_id)
        wanted = {"resource_type": "network", "operation": "receive", "target": URL}
        desk.decide("decide_unasked", DEMO, **wanted, effect=DecisionEffect.APPROVAL)
        assert desk.check(URL).code is DecisionCode.PERMANENT_APPROVAL
        desk.decide("decide_unasked", DEMO, **wanted, effect=DecisionEffect.DENIAL)
        assert desk.check(URL).code is DecisionCode.DENIED
        assert len(desk.decide("denials").items) == 1
        assert desk.decide("approvals").items == ()

    def test_an_approval_below_a_denial_is_refused_with_what_to_revoke(self, desk):
        """The approval would have no effect."""
        denial = desk.decide("deny_external_access", desk.check("https://api.test").request_id).decision
        with pytest.raises(DecisionConflict, match=denial.id):
            desk.decide(
                "decide_unasked",
                DEMO,
                resource_type="network",
                operation="receive",
                target=URL,
                effect=DecisionEffect.APPROVAL,
            )
        assert desk.store.generation() == 1

    def test_a_broader_target_answers_every_request_that_it_covers(self, desk):
        """Requests of other operations and subjects stay pending."""
        first, second = desk.check(f"{URL}/1").request_id, desk.check(f"{URL}/2").request_id
        other = desk.check(f"{URL}/1", operation="send").request_id
        desk.decide("approve_permanently", first, target="https://api.test")
        states = [desk.store.request(found).state for found in (first, second, other)]
        assert states == [RequestState.APPROVED, RequestState.APPROVED, RequestState.PENDING]

    def test_a_target_that_does_not_cover_the_request_is_refused(self, desk):
        """It would not answer the request."""
        asked = desk.check(URL).request_id
        for target in ("https://other.test", f"{URL}/deeper", "not a target"):
            with pytest.raises(InvalidInputError):
                desk.decide("approve_permanently", asked, target=target)
        assert desk.store.request(asked).state is RequestState.PENDING

    def test_a_permanent_approval_may_end_by_itself(self, desk):
        """Checks see the expiry immediately, the store soon after."""
        asked = desk.check(URL).request_id
        desk.decide("approve_permanently", asked, lifetime=timedelta(microseconds=1))
        assert not desk.check(URL, register_request=False).allowed
        desk.administration.tidy(pending_lifetime=timedelta(days=1))
        assert desk.decide("approvals").items == ()
        assert desk.decide("history").items[0].action == "expired"

    def test_a_lifetime_lies_in_the_future(self, desk):
        """Other lifetimes are a mistake."""
        with pytest.raises(InvalidInputError):
            desk.decide("approve_permanently", desk.check(URL).request_id, lifetime=timedelta(0))

    def test_pending_requests_age_out_into_a_state_of_their_own(self, desk):
        """This is not a decision: a repeated request creates a new one."""
        asked = desk.check(URL).request_id
        desk.administration.tidy(pending_lifetime=timedelta(microseconds=1))
        assert desk.store.request(asked).state is RequestState.AGED_OUT
        assert desk.store.generation() == 0
        desk.service._pending._doubt()
        again = desk.check(URL)
        assert (again.code, again.request_id != asked) == (DecisionCode.PENDING, True)

    def test_revoking_leaves_the_question_open_again(self, desk):
        """Revoking twice is a conflict, an unknown decision is an error."""
        decision = desk.decide("approve_permanently", desk.check(URL).request_id).decision
        assert desk.decide("revoke", decision.id, reason="no longer needed").ended_by == "ada"
        assert desk.check(URL, register_request=False).code is DecisionCode.NOT_ENABLED
        with pytest.raises(DecisionConflict):
            desk.decide("revoke", decision.id)
        with pytest.raises(DecisionUnknown):
            desk.decide("revoke", "nothing")

    def test_a_reason_is_kept_and_bounded(self, desk):
        """Users read it."""
        asked = desk.check(URL).request_id
        with pytest.raises(InvalidInputError):
            desk.decide("approve_permanently", asked, reason="x" * 2001)
        assert desk.decide("approve_permanently", asked, reason="for the report").decision.reason == "for the report"

    def test_the_last_use_of_an_approval_is_known(self, desk):
        """It is written periodically, so that unused approvals can be found."""
        decision = desk.decide("approve_permanently", desk.check(URL).request_id).decision
        assert desk.check(URL).allowed
        desk.service._deferred.write_uses()
        assert desk.store.decision(decision.id).last_used is not None


class TestLists:
    """Filters and pages."""

    def test_requests_are_filtered_and_paged(self, desk):
        """Every request is listed once, the latest first."""
        asked = [desk.check(f"{URL}/{number}").request_id for number in range(5)]
        desk.check("/srv/x", operation="read", kind="filesystem")
        wanted = RequestFilter(states=(RequestState.PENDING,), resource_type="network")
        seen, page = [], PageRequest(limit=2)
        while True:
            listing = desk.decide("pending_requests", wanted, page)
            seen += [found.id for found in listing.items]
            if not listing.next:
                break
            page = PageRequest(limit=2, after=listing.next)
        assert sorted(seen) == sorted(asked)
        assert seen == list(reversed(asked))

    def test_approvals_and_denials_are_told_apart(self, desk):
        """A filter that contradicts the list is an error."""
        desk.decide("approve_for_session", desk.check(f"{URL}/1").request_id)
        desk.decide("deny_external_access", desk.check(f"{URL}/2").request_id)
        assert [found.scope for found in desk.decide("approvals").items] == [DecisionScope.SESSION]
        assert [found.effect for found in desk.decide("denials").items] == [DecisionEffect.DENIAL]
        with pytest.raises(InvalidInputError):
            desk.decide("denials", DecisionFilter(effect=DecisionEffect.APPROVAL))


class TestPatterns:
    """A path that looks like a pattern would name only a file of exactly that name."""

    ABOUT = {"resource_type": "filesystem", "operation": "read", "effect": "approval"}

    def test_it_is_refused_without_a_request(self, desk):
        """A literal spelling is accepted."""
        with pytest.raises(InvalidInputError) as caught:
            desk.decide("decide_unasked", DEMO, target="/srv/x/*.csv", **self.ABOUT)
        assert [(one.pointer, one.suggestion) for one in caught.value.problems] == [("/target", "/srv/x")]
        made = desk.decide("decide_unasked", DEMO, target="/srv/x/./*.csv", **self.ABOUT).decision
        assert made.access.target == "/srv/x/*.csv"


class TestExpectedState:
    """A decision with the version of an older state is a conflict and writes nothing."""

    @staticmethod
    def unasked(desk, effect, **more):
        rule = {"resource_type": "network", "operation": "receive", "target": URL}
        return desk.decide("decide_unasked", DEMO, **rule, effect=effect, **more)

    def test_a_newer_denial_is_kept(self, desk):
        """An approval from an older state neither takes effect nor ends the denial."""
        access = self.unasked(desk, DecisionEffect.APPROVAL).decision.access
        (seen,) = desk.decide("versions", access)
        denial = self.unasked(desk, DecisionEffect.DENIAL).decision
        with pytest.raises(DecisionConflict, match=denial.id):
            self.unasked(desk, DecisionEffect.APPROVAL, expected=seen)
        assert [found.id for found in desk.decide("denials").items] == [denial.id]

    def test_the_same_state_is_decided_once(self, desk):
        """The second decision from the same version is a conflict."""
        access = self.unasked(desk, DecisionEffect.DENIAL).decision.access
        (seen,) = desk.decide("versions", access)
        made = self.unasked(desk, DecisionEffect.APPROVAL, expected=seen).decision
        with pytest.raises(DecisionConflict):
            self.unasked(desk, DecisionEffect.APPROVAL, expected=seen)
        assert [found.id for found in desk.decide("approvals").items] == [made.id]

    def test_a_wider_target_has_a_version_too(self, desk):
        """Decisions about the chosen target count, not only those about the requested one."""
        request = desk.store.request(desk.check(f"{URL}/below").request_id)
        before = desk.decide("versions", request.access, [request.access.target, URL])
        assert before == (0, 0)
        ended = self.unasked(desk, DecisionEffect.APPROVAL).decision
        desk.decide("revoke", ended.id)
        exact, wider = desk.decide("versions", request.access, [request.access.target, URL])
        assert (exact, wider > 0) == (0, True)
        another = desk.store.request(desk.check(f"{URL}/other").request_id)
        with pytest.raises(DecisionConflict):
            desk.decide("deny_external_access", another.id, target=URL, expected=0)
        assert desk.decide("deny_external_access", another.id, target=URL, expected=wider).decision

    def test_what_nobody_can_decide_about_has_a_version_too(self, desk):
        """A page that offers a target shows its version, even if a decision about it is impossible."""
        request = desk.store.request(desk.check("/srv/data/x", kind="filesystem", operation="read").request_id)
        odd = replace(request.access, operation=Operation.RECEIVE)
        assert desk.decide("versions", odd, ["/srv/data", "/srv/\ud800"]) == (0, 0)

    def test_many_decided_at_once_are_no_conflict_among_themselves(self, desk):
        """Two sessions that wait for the same access are both approved; a change by another user is a conflict."""
        users = [Caller(user_id="uma", session_key=key) for key in ("s1", "s2", "s3")]
        ids = [desk.check(URL, user=user).request_id for user in users]
        outcomes = desk.decide("decide_many", ids[:2], "session", expected=dict.fromkeys(ids, 0))
        assert all(outcome.decision for _, outcome in outcomes)
        ((_, late),) = desk.decide("decide_many", ids[2:], "session", expected=dict.fromkeys(ids, 0))
        assert isinstance(late, DecisionConflict)

    @staticmethod
    @rows("wrong", [-1, "0", 1.0, True])
    def test_what_is_no_version_is_refused(desk, wrong):
        """A version is an integer of at least 0."""
        asked = desk.check(URL).request_id
        with pytest.raises(InvalidInputError):
            desk.decide("deny_external_access", asked, expected=wrong)
