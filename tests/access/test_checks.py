"""Check: its order, codes and messages, filed requests and rejected input."""

from __future__ import annotations

import pytest

from democrai_sandbox.access.caller import Caller
from democrai_sandbox.access.values import RequestState
from democrai_sandbox.errors import ExternalAccessCheckFailed, StoreUnavailable
from democrai_sandbox.policy import DecisionCode, InvalidInputError, NetworkTargetMissingError
from tests.access.conftest import DEMO, limits
from tests.services.golden import sentence
from tests.services.rows import rows

URL = "https://api.test/v1"
LOCKED = "External URL is locked."
"""Text of the specification."""


class TestOrder:
    """Normalize, policy, denial, session approval, permanent approval, file a request, deny."""

    def test_what_nobody_decided_is_pending_and_says_that_it_is_locked(self, desk):
        """The first question files a request; its id is returned with the documented message."""
        said = desk.check(URL)
        assert (said.allowed, said.code, said.requires_approval) == (False, DecisionCode.PENDING, True)
        assert said.message == LOCKED
        assert [request.id for request in desk.pending()] == [said.request_id]

    def test_without_registering_nothing_is_put_down(self, desk):
        """A check without registration returns not_enabled and leaves no trace."""
        said = desk.check(URL, register_request=False)
        assert (said.code, said.request_id, said.requires_approval) == (DecisionCode.NOT_ENABLED, None, True)
        assert said.message == LOCKED
        assert desk.pending() == ()

    def test_a_file_has_another_message(self, desk):
        """Only a URL is called locked; a path needs approval."""
        said = desk.check("/srv/x", operation="read", kind="filesystem")
        assert (said.code, said.requires_approval) == (DecisionCode.PENDING, True)
        assert said.message != LOCKED
        sentence("a file that needs approval", said.message)

    def test_a_session_approval_holds_in_its_session_only(self, desk):
        """Another session, or none, files a new request."""
        desk.decide("approve_for_session", desk.check(URL).request_id)
        assert desk.check(URL).code is DecisionCode.SESSION_APPROVAL
        for session in ("s2", ""):
            assert desk.check(URL, user=Caller(user_id="uma", session_key=session)).code is DecisionCode.PENDING

    def test_a_permanent_approval_holds_for_everybody(self, desk):
        """It applies to all users and sessions, also without a session."""
        desk.decide("approve_permanently", desk.check(URL).request_id)
        assert desk.check(URL, user=Caller(user_id="zoe")).code is DecisionCode.PERMANENT_APPROVAL

    def test_a_session_approval_is_told_before_a_permanent_one(self, desk):
        """If both exist, the session approval is returned."""
        first = desk.check(URL).request_id
        second = desk.check(URL, user=Caller(user_id="zoe", session_key="s2")).request_id
        desk.decide("approve_for_session", first)
        desk.decide("approve_permanently", second)
        assert desk.check(URL).code is DecisionCode.SESSION_APPROVAL

    def test_a_denial_comes_before_an_approval_of_something_broader(self, desk):
        """A part of an approved target can be denied."""
        desk.decide("approve_permanently", desk.check("https://api.test").request_id)
        # It is allowed, so no request is filed: the administrator decides without one.
        desk.decide("decide_unasked", DEMO, resource_type="network", operation="receive", target=URL, effect="denial")
        assert desk.check(f"{URL}/x").code is DecisionCode.DENIED
        assert desk.check("https://api.test/v2").allowed

    def test_a_denial_says_that_the_resource_is_disabled_and_registers_nothing(self, desk):
        """A denial is a decision, so nothing is left to approve."""
        desk.decide("deny_external_access", desk.check(URL).request_id)
        said = desk.check(URL)
        assert (said.code, said.requires_approval, said.request_id) == (DecisionCode.DENIED, False, None)
        sentence("denied", said.message)
        assert desk.pending() == ()

    def test_the_reason_of_a_denial_reaches_who_asks(self, make_desk):
        """The reason is shown on every node, on one line and truncated; the reason of an approval is not shown."""
        desk, other = make_desk(), make_desk()
        desk.decide("deny_external_access", desk.check(URL).request_id, reason="Use the mirror\n\x00instead, please.")
        other.node.refresh()
        for one in (desk, other):
            said = one.check(URL)
            assert said.code is DecisionCode.DENIED
            # wording: the reason that the administrator of this test gave
            assert said.message.endswith(": Use the mirror \x00instead, please.")
        long = desk.check("https://long.test/").request_id
        desk.decide("deny_external_access", long, reason="x" * 2000)
        assert len(desk.check("https://long.test/").message) == 500
        approved = desk.check("https://yes.test/").request_id
        desk.decide("approve_permanently", approved, reason="between us")
        assert "between us" not in str(desk.store.changes(0))
        said = desk.check("https://yes.test/")
        assert (said.code, "between us" in said.message) == (DecisionCode.PERMANENT_APPROVAL, False)
        sentence("approved permanently", said.message)

    @staticmethod
    @rows(
        ("approved", "asked", "covered"),
        [
            ("https://api.test/v1", "https://api.test/v1/7?q=1", True),
            ("https://api.test/v1", "https://api.test/v1x", False),
            ("https://api.test/v1", "http://api.test/v1", False),
            ("https://api.test/v1", "https://api.test:8443/v1", False),
            ("https://api.test", "https://api.test/anything", True),
            ("https://api.test/v1", "https://API.test:443/v1/", True),
        ],
    )
    def test_an_approval_covers_what_a_rule_would(desk, approved, asked, covered):
        """Whole segments are compared, with scheme, host and port."""
        decision = desk.decide("approve_permanently", desk.check(approved).request_id).decision
        assert desk.check(asked, register_request=False).allowed is covered
        desk.decide("revoke", decision.id)

    def test_an_approved_directory_covers_what_is_below_it(self, desk, tmp_path):
        """Whole components are compared, only for the approved operation."""
        folder = tmp_path / "data"
        desk.decide("approve_permanently", desk.check(str(folder), operation="read", kind="filesystem").request_id)
        below = {"kind": "filesystem", "register_request": False}
        assert desk.check(f"{folder}/a/b", operation="read", **below).allowed
        assert not desk.check(f"{folder}/a/b", operation="modify", **below).allowed
        assert not desk.check(f"{folder}x", operation="read", **below).allowed

    def test_a_path_is_asked_for_as_the_place_where_it_leads(self, desk, tmp_path):
        """An approval of a link covers its target, because the guard asks about the resolved path."""
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to("real")
        said = desk.check(f"{tmp_path}/link/x", operation="read", kind="filesystem")
        assert desk.store.request(said.request_id).access.target == f"{tmp_path}/real/x"

    def test_another_subject_and_another_operation_are_other_tuples(self, desk):
        """Operations and subjects do not include each other."""
        desk.decide("approve_permanently", desk.check(URL).request_id)
        assert not desk.check(URL, operation="send", register_request=False).allowed
        other = type(DEMO)(DEMO.kind, "demo2")
        assert not desk.check(URL, subject=other, register_request=False).allowed


class TestRegistering:
    """One pending request per access and origin, counted and limited."""

    def test_asking_again_is_the_same_request(self, desk):
        """The same user in the same session has one request, for all spellings of the target."""
        ids = {desk.check(text).request_id for text in (URL, "https://API.test:443/v1/", f"{URL}?q=2")}
        assert len(ids) == 1

    def test_another_user_or_session_has_a_request_of_its_own(self, desk):
        """The origin is part of a request's identity."""
        others = (Caller(user_id="uma", session_key="s2"), Caller(user_id="zoe", session_key="s1"))
        assert len({desk.check(URL).request_id, *(desk.check(URL, user=user).request_id for user in others)}) == 3

    def test_repeated_questions_are_added_up_and_written_now_and_then(self, make_desk):
        """Between two writes the store is not used; the final count is right."""
        desk = make_desk(limits=limits(counting_seconds=0.0))
        for _ in range(5):
            found = desk.check(URL).request_id
        assert desk.store.request(found).count == 5

        patient = make_desk(limits=limits(counting_seconds=3600.0))
        before = desk.store.request(found).count
        for _ in range(5):
            assert patient.check(URL).request_id == found
        assert desk.store.request(found).count == before + 1

    def test_one_subject_cannot_put_down_any_number(self, make_desk):
        """Beyond its allowance it gets a result, but nothing is filed; other subjects are not affected."""
        desk = make_desk(limits=limits(new_requests=3, refill_per_second=0.0))
        said = [desk.check(f"{URL}/{number}") for number in range(5)]
        assert [answer.code for answer in said] == [DecisionCode.PENDING] * 3 + [DecisionCode.NOT_ENABLED] * 2
        assert all(not answer.allowed for answer in said)
        other = type(DEMO)(DEMO.kind, "other")
        assert desk.check(URL, subject=other).code is DecisionCode.PENDING

    def test_after_a_revocation_a_new_request_is_made(self, desk):
        """The old request was answered; this is a new question."""
        first = desk.check(URL).request_id
        decision = desk.decide("approve_permanently", first).decision
        desk.decide("revoke", decision.id)
        second = desk.check(URL).request_id
        assert second not in (first, None)
        assert desk.store.request(first).state is RequestState.REVOKED

    def test_a_request_keeps_who_asked_for_what(self, desk):
        """Subject, call chain, both spellings of the target, and the origin are stored."""
        user = Caller(user_id="uma", organization_id="org", session_key="s1", task_id="t9")
        found = desk.store.request(desk.check("https://API.test/v1?q=1", user=user).request_id)
        assert (found.access.subject, found.chain) == (DEMO, ("module:demo",))
        assert (found.access.target, found.raw_target) == (URL, "https://API.test/v1?...")
        origin = found.origin
        assert (origin.user_id, origin.organization_id, origin.session_key, origin.task_id) == (
            "uma",
            "org",
            "s1",
            "t9",
        )

    def test_a_node_that_lags_looks_again_instead_of_asking_twice(self, make_desk):
        """Decided on one node, requested on a lagging one: no request is filed, and the result is right."""
        one, other = make_desk(), make_desk()
        one.decide("approve_permanently", one.check(URL).request_id)
        assert other.check(URL).code is DecisionCode.PERMANENT_APPROVAL
        assert other.pending() == ()


class TestBadInput:
    """Each mistake has a specific typed error, and nothing is written."""

    @staticmethod
    @rows(
        ("wanted", "pointer"),
        [
            ({"kind": "url"}, "/resource_type"),
            ({"kind": None}, "/resource_type"),
            ({"operation": "get"}, "/operation"),
            ({"operation": "read"}, "/operation"),
            ({"target": None}, "/target"),
            ({"target": b"https://api.test"}, "/target"),
            ({"target": "x" * 70000}, "/target"),
        ],
    )
    def test_what_is_wrong_is_named(desk, wanted, pointer):
        """The pointer gives the place."""
        with pytest.raises(InvalidInputError) as caught:
            desk.check(**wanted)
        assert [problem.pointer for problem in caught.value.problems] == [pointer]
        assert desk.pending() == ()

    @staticmethod
    @rows(
        "target",
        ["https://user@api.test/", "https://api.test/a b", "http://0x7f.1/", "*.api.test", "10.0.0.0/8", "//x"],
    )
    def test_a_target_that_does_not_normalise_is_refused(desk, target):
        """Nothing is guessed, and a pattern is not a request."""
        with pytest.raises(InvalidInputError):
            desk.check(target)
        assert desk.pending() == ()

    def test_an_empty_network_target_has_its_own_error(self, desk):
        """An empty target cannot be approved."""
        with pytest.raises(NetworkTargetMissingError):
            desk.check("")

    def test_a_path_that_servers_read_differently_cannot_be_approved(self, desk):
        """It gets a result but is not registered, because its approval could also cover another path."""
        said = desk.check("https://api.test/a/../b")
        assert (said.code, said.requires_approval, said.request_id) == (DecisionCode.NOT_ENABLED, False, None)
        assert desk.pending() == ()

    def test_a_resume_context_needs_an_action_and_keys(self, desk):
        """Otherwise it could not be resumed."""
        wanted = {"resource_type": "network", "operation": "receive", "target": URL, "subject": DEMO}
        for more in ({"resume_context": {"a": 1}}, {"resume_action": "x", "resume_context": {"a": 1}}):
            with pytest.raises(InvalidInputError):
                desk.service.require_external_access(**wanted, **more)
        with pytest.raises(InvalidInputError):
            desk.service.require_external_access(**wanted, resume_action="x" * 201)
        assert desk.pending() == ()


class Broken:
    """Store that is unreachable while the test says so."""

    def __init__(self, store):
        self._store = store
        self.away = False

    def __getattr__(self, name):
        if self.away:
            raise StoreUnavailable
        return getattr(self._store, name)


class TestAway:
    """An unavailable database is not a denial."""

    def test_stored_decisions_keep_answering_and_new_requests_fail_clearly(self, desk):
        """Nothing else is allowed, and the failure is not a PermissionError."""
        desk.decide("approve_permanently", desk.check(URL).request_id)
        desk.node.store = broken = Broken(desk.store)
        broken.away = True
        assert desk.check(URL).allowed
        with pytest.raises(ExternalAccessCheckFailed) as caught:
            desk.check("https://other.test")
        assert str(caught.value) == caught.value.code == "sandbox_external_access_check_failed"
        assert not isinstance(caught.value, PermissionError)
        assert not desk.check("https://other.test", register_request=False).allowed

    def test_the_failure_is_in_the_audit_once_the_database_is_back(self, desk):
        """It is kept in memory meanwhile."""
        desk.node.store = broken = Broken(desk.store)
        broken.away = True
        with pytest.raises(ExternalAccessCheckFailed):
            desk.check(URL)
        broken.away = False
        desk.service._deferred.write_failures()
        latest = desk.decide("history").items[0]
        assert (latest.action, latest.after["target"]) == ("check_failed", URL)

    def test_a_node_that_never_loaded_anything_answers_nothing(self, database, desk):
        """Without a snapshot a check gives neither yes nor no."""
        desk.node._snapshot = None
        with pytest.raises(ExternalAccessCheckFailed):
            desk.check(URL)
