"""Two nodes over one store, compared with a short model, for any order of events."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from democrai_sandbox.access import checks
from democrai_sandbox.access.administration import Administration
from democrai_sandbox.access.audit import verify_store
from democrai_sandbox.access.caller import Caller, UnguardedHost
from democrai_sandbox.access.checks import AccessService, PendingLimits
from democrai_sandbox.access.events import open_bus
from democrai_sandbox.access.node import AccessNode
from democrai_sandbox.access.store import open_store
from democrai_sandbox.access.values import (
    AuditAction,
    DecisionEffect,
    DecisionFilter,
    DecisionScope,
    PageRequest,
    RequestFilter,
    RequestState,
)
from democrai_sandbox.errors import DecisionConflict
from democrai_sandbox.policy import DecisionCode, InvalidInputError, Subject

SCALE = float(os.environ.get("PROOF_SCALE", "1"))
"""Factor for the number of attempts."""

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)
NEVER_ASKED_TOO_MUCH = PendingLimits(new_requests=10**9, counting_seconds=0)


class Place(NamedTuple):
    """Requested target. Places with the same steps are equivalent; one with a prefix of the steps covers the others."""

    resource: str
    operation: str
    target: str
    steps: tuple[str, ...]

    def covers(self, other):
        return self[:2] == other[:2] and other.steps[: len(self.steps)] == self.steps


_URL = "https://api.example.com"
_HOST = Place("network", "receive", _URL, (_URL,))
_V1 = Place("network", "receive", f"{_URL}/v1", (_URL, "v1"))
_FOLDER = Place("filesystem", "read", "/not/there", ("/", "not", "there"))
WORLDS = (
    (_HOST, _V1, Place("network", "receive", f"{_URL}/v1/x", (_URL, "v1", "x"))),
    (_V1, Place("network", "send", f"{_URL}/v1", (_URL, "v1")), Place("network", "send", _URL, (_URL,))),
    (
        Place("network", "receive", "http://localhost:8080/a", ("here", "a")),
        Place("network", "receive", "http://localhost:8080/a/b", ("here", "a", "b")),
    ),
    (_FOLDER, Place("filesystem", "read", "/not/there/a", ("/", "not", "there", "a"))),
    (_V1, _FOLDER, Place("system_dependency", "execute", "ffmpeg", ("ffmpeg",))),
    (
        Place("filesystem", "execute", "/not/there/x", ("/", "not", "there", "x")),
        Place("system_dependency", "execute", "/not/there/x", ("/not/there/x",)),
    ),
)
"""Each run uses few places, so that events often concern the same one."""
SPELLINGS = {
    _URL: (_URL, "HTTPS://API.example.com.:443/"),
    f"{_URL}/v1": (f"{_URL}/v1", f"{_URL}/v1/", f"{_URL}/v1?q=1"),
    "/not/there": ("/not/there", "/not//there/./a/.."),
}
SUBJECTS = (Subject("module", "demo"), Subject("tool", "demo.read"))
USERS = ("", "ann")
SESSIONS = ("", "stays", "ends", "ends too")

nodes = st.integers(0, 1)
subjects = st.sampled_from(SUBJECTS)
some_place = st.integers(0, 5)
lifetimes = st.none() | st.sampled_from([1, 10, 100]).map(lambda seconds: timedelta(seconds=seconds))
picks = st.integers(0, 1000)
questions = st.tuples(subjects, some_place, st.sampled_from(USERS), st.sampled_from(SESSIONS))


@dataclass(frozen=True)
class Standing:
    """Decision in force."""

    id: str
    subject: Subject
    place: Place
    effect: DecisionEffect
    scope: DecisionScope
    session: str
    expires: datetime | None

    @property
    def name(self):
        return self.subject, self.place


@dataclass(frozen=True)
class Waiting:
    """Pending request."""

    id: str
    subject: Subject
    place: Place
    user: str
    session: str
    count: int
    seen: datetime
    session_ended: bool = False

    @property
    def name(self):
        return self.subject, self.place


def answer(standing, subject, place, session, now):
    """Return the result of these decisions: a denial first, then the session's approval, then a permanent one."""
    found = {
        (one.effect, one.scope)
        for one in standing
        if one.subject == subject
        and one.place.covers(place)
        and one.session in ("", session)
        and (one.expires is None or now < one.expires)
    }
    for kind, code in (
        ((DecisionEffect.DENIAL, DecisionScope.PERMANENT), DecisionCode.DENIED),
        ((DecisionEffect.APPROVAL, DecisionScope.SESSION), DecisionCode.SESSION_APPROVAL),
        ((DecisionEffect.APPROVAL, DecisionScope.PERMANENT), DecisionCode.PERMANENT_APPROVAL),
    ):
        if kind in found:
            return code
    return None


@cache
def empty_database():
    """Create one database with the schema; the others are copies of it."""
    folder = Path(tempfile.mkdtemp(prefix="model-"))
    try:
        open_store(f"sqlite:///{folder}/empty.db").close()
        return (folder / "empty.db").read_bytes()
    finally:
        shutil.rmtree(folder)


class Host(UnguardedHost):
    """Surroundings with the caller that the test sets."""

    def __init__(self):
        self.served = Caller()

    def caller(self):
        return self.served


class OneNode:
    """Node with all parts of a host, without threads, so that the test controls its refreshes."""

    def __init__(self, url, clock):
        self.store = open_store(url)
        self.node = AccessNode(self.store, open_bus("memory"), clock=clock)
        self.host = Host()
        self.service = AccessService(self.node, self.host, limits=NEVER_ASKED_TOO_MUCH)
        self.administration = Administration(self.node, self.host)
        self.node.refresh()

    def ask(self, subject, place, user, session, *, target=None, register=True):
        self.host.served = Caller(user, "", session)
        return self.service.check_external_access(
            resource_type=place.resource,
            operation=place.operation,
            target=target or place.target,
            subject=subject,
            register_request=register,
        )

    def deciding(self):
        self.host.served = Caller("root", role="super")
        return self.administration


class TwoNodes(RuleBasedStateMachine):
    """Expected content of the store, and the state that each node has seen."""

    @initialize(world=st.sampled_from(WORLDS))
    def begin(self, world):
        self.world = world
        self.now = BEGINNING
        self.patched = pytest.MonkeyPatch()
        self.patched.setattr(
            checks, "time_ns", lambda: int((self.now - datetime.fromtimestamp(0, UTC)).total_seconds()) * 10**9
        )
        self.folder = Path(tempfile.mkdtemp(prefix="model-"))
        (self.folder / "model.db").write_bytes(empty_database())
        self.nodes = [self.open(), self.open()]
        self.standing: dict[str, Standing] = {}
        self.seen = [(), ()]
        self.waiting: dict[tuple, Waiting] = {}
        self.answered: dict[str, RequestState] = {}
        self.asked: list[tuple] = []
        self.ended: list[str] = []
        self.over: set[str] = set()
        self.audit: list[AuditAction] = []

    def open(self):
        return OneNode(f"sqlite:///{self.folder}/model.db", lambda: self.now)

    def teardown(self):
        if not hasattr(self, "nodes"):
            return
        try:
            if sys.exc_info()[0] is not None:
                return  # the first error counts
            for index in (0, 1):
                self.look(index)
            self.the_nodes_say_what_they_have_seen()
            self.the_store_holds_the_model()
            assert verify_store(self.nodes[0].store).ok
            assert [record.action for record in self.nodes[1].store.audit_rows()] == self.audit
        finally:
            for node in self.nodes:
                node.store.close()
            self.patched.undo()
            shutil.rmtree(self.folder)

    # ---- events
    # -----------------------------------------------------------------------------------------------------------

    @rule(node=nodes, question=questions, spelling=picks)
    def ask(self, node, question, spelling):
        """A user requests an access: one request per access and origin, also on a lagging node."""
        subject, place, user, session = question
        self.asked.append((subject, self.world[place % len(self.world)], user, session))
        self.ask_again(node, len(self.asked) - 1, spelling)

    @precondition(lambda self: self.asked)
    @rule(node=nodes, pick=picks, spelling=picks)
    def ask_again(self, node, pick, spelling):
        """Request the same in another spelling, or on the other node."""
        name = subject, place, user, session = self.asked[pick % len(self.asked)]
        spellings = SPELLINGS.get(place.target, (place.target,))
        told = self.nodes[node].ask(subject, place, user, session, target=spellings[spelling % len(spellings)])
        if known := answer(self.seen[node], subject, place, session, self.now):
            assert (told.code, told.request_id) == (known, None)
            return
        if waiting := self.waiting.get(name):
            self.waiting[name] = replace(waiting, count=waiting.count + 1, seen=self.now)
            assert (told.code, told.request_id) == (DecisionCode.PENDING, waiting.id)
            return
        same = [one for one in self.standing.values() if one.place == place]
        if answer(same, subject, place, session, self.now):
            # Already decided, but unknown to this node: it refreshes and answers accordingly.
            self.saw(node)
            assert told.code == answer(self.seen[node], subject, place, session, self.now)
            return
        assert told.code is DecisionCode.PENDING and not told.allowed
        self.waiting[name] = Waiting(told.request_id, subject, place, user, session, 1, self.now, session in self.over)
        self.audit.append(AuditAction.REQUESTED)

    @rule(node=nodes, pick=picks, question=questions, broader=st.none() | some_place)
    def approve_for_session(self, node, pick, question, broader):
        """Only possible with the session of the request."""
        waiting = self.one_that_waits(node, question, pick)
        if waiting is None:
            return
        act = lambda target: self.nodes[node].deciding().approve_for_session(waiting.id, target=target)
        if not waiting.session or waiting.session_ended:
            assert act(None).decision is None and act(None).skipped
            return
        self.decide(node, waiting, broader, act, DecisionEffect.APPROVAL, DecisionScope.SESSION)

    @rule(node=nodes, pick=picks, question=questions, broader=st.none() | some_place, lifetime=lifetimes)
    def approve_permanently(self, node, pick, question, broader, lifetime):
        """With or without a lifetime."""
        waiting = self.one_that_waits(node, question, pick)
        if waiting is None:
            return
        act = lambda target: (
            self.nodes[node].deciding().approve_permanently(waiting.id, target=target, lifetime=lifetime)
        )
        self.decide(node, waiting, broader, act, DecisionEffect.APPROVAL, DecisionScope.PERMANENT, lifetime)

    @rule(node=nodes, pick=picks, question=questions, broader=st.none() | some_place)
    def deny(self, node, pick, question, broader):
        """Also for a broader target than requested."""
        waiting = self.one_that_waits(node, question, pick)
        if waiting is None:
            return
        act = lambda target: self.nodes[node].deciding().deny_external_access(waiting.id, target=target)
        self.decide(node, waiting, broader, act, DecisionEffect.DENIAL, DecisionScope.PERMANENT)

    @rule(node=nodes, subject=subjects, place=some_place, effect=st.sampled_from(DecisionEffect), lifetime=lifetimes)
    def decide_unasked(self, node, subject, place, effect, lifetime):
        """A request is not necessary."""
        place = self.world[place % len(self.world)]

        def act(target):
            administration = self.nodes[node].deciding()
            return administration.decide_unasked(
                subject,
                resource_type=place.resource,
                operation=place.operation,
                target=target,
                effect=effect,
                lifetime=lifetime,
            )

        if effect is DecisionEffect.APPROVAL and self.in_the_way(subject, place):
            with pytest.raises(DecisionConflict):
                act(place.target)
            return
        made = act(place.target).decision
        self.decided(node, made, subject, place, effect, DecisionScope.PERMANENT, "", lifetime)

    @precondition(lambda self: self.standing)
    @rule(node=nodes, pick=picks)
    def revoke(self, node, pick):
        """The access is undecided again."""
        standing = self.pick(self.standing, pick)
        self.nodes[node].deciding().revoke(standing.id)
        self.end([standing])
        self.audit.append(AuditAction.REVOKED)
        self.saw(node)

    @rule(node=nodes, pick=picks)
    def do_it_twice(self, node, pick):
        """A request that is not pending cannot be decided, and an ended decision cannot end again."""
        administration = self.nodes[node].deciding()
        acts = [(administration.revoke, one) for one in self.ended]
        for act in (administration.approve_permanently, administration.deny_external_access):
            acts += [(act, one) for one in sorted(self.answered)]
        for act, one in acts and [acts[pick % len(acts)]]:
            with pytest.raises(DecisionConflict):
                act(one)

    @rule(node=nodes, session=st.sampled_from(SESSIONS[2:]))
    def end_session(self, node, session):
        """Its approvals end; its earlier and later requests can only be approved permanently."""
        over = [one for one in self.standing.values() if one.session == session]
        assert self.nodes[node].administration.end_session(session) == len(over)
        self.end(over)
        marked = {
            name: replace(one, session_ended=True)
            for name, one in self.waiting.items()
            if one.session == session and not one.session_ended
        }
        self.waiting |= marked
        if over or marked or session not in self.over:
            self.audit.append(AuditAction.SESSION_ENDED)
        self.over.add(session)
        self.saw(node)

    @rule(seconds=st.sampled_from([1, 9, 100]), node=st.none() | nodes, patience=st.sampled_from([5, 1000]))
    def time_passes(self, seconds, node, patience):
        """Advance the clock; a node may then end expired decisions and drop unanswered requests."""
        self.now += timedelta(seconds=seconds)
        if node is None:
            return
        self.nodes[node].administration.tidy(pending_lifetime=timedelta(seconds=patience))
        over = [one for one in self.standing.values() if one.expires is not None and one.expires <= self.now]
        self.end(over)
        self.audit += [AuditAction.EXPIRED] * len(over)
        for name, one in list(self.waiting.items()):
            if one.seen < self.now - timedelta(seconds=patience):
                self.answered[one.id] = RequestState.AGED_OUT
                del self.waiting[name]
                self.audit.append(AuditAction.AGED_OUT)
        if over:
            self.saw(node)

    @rule(node=nodes, anew=st.booleans())
    def look(self, node, *, anew=False):
        """A lagging node sees everything after a refresh; a new node gets the same state."""
        if anew:
            self.nodes[node].store.close()
            self.nodes[node] = self.open()
        else:
            self.nodes[node].node.refresh()
        self.saw(node)

    # ---- invariants
    # -------------------------------------------------------------------------------------------------------

    @invariant()
    def the_nodes_say_what_they_have_seen(self):
        """Results match the decisions at the last refresh, so a lagging node never allows what was never allowed."""
        for node, seen in zip(self.nodes, self.seen, strict=True):
            for subject in SUBJECTS:
                for place in self.world:
                    for session in SESSIONS:
                        told = node.ask(subject, place, "eve", session, register=False)
                        expected = answer(seen, subject, place, session, self.now) or DecisionCode.NOT_ENABLED
                        assert told.code is expected, (subject, place, session)
                        assert told.allowed is expected.allows

    @invariant()
    def the_store_holds_the_model(self):
        """The same requests are pending with the same counts, and the same decisions are in force."""
        store = self.nodes[0].store
        pending = store.requests(RequestFilter(states=(RequestState.PENDING,)), PageRequest(limit=1000)).items
        origins = Counter((one.access, one.origin.user_id, one.origin.session_key) for one in pending)
        assert set(origins.values()) <= {1}
        stored = {one.id: (one.access.target, one.count, one.last_seen, one.session_ended) for one in pending}
        assert stored == {
            one.id: (one.place.target, one.count, one.seen, one.session_ended) for one in self.waiting.values()
        }
        assert {one.id for one in store.decisions(DecisionFilter(), PageRequest(limit=1000)).items} == set(
            self.standing
        )

    # ---- parts -------------------------------------------------------------------------------------------------------

    def pick(self, some, pick):
        values = sorted(some.values(), key=lambda one: one.id)
        return values[pick % len(values)]

    def one_that_waits(self, node, question, pick):
        """Return a pending request, or file one; None if the access is decided."""
        if self.waiting and pick % 2:
            return self.pick(self.waiting, pick)
        self.ask(node, question, pick)
        return self.waiting.get(self.asked[-1])

    def saw(self, node):
        self.seen[node] = tuple(self.standing.values())

    def end(self, over):
        for one in over:
            del self.standing[one.id]
            self.ended.append(one.id)

    def in_the_way(self, subject, place):
        """Return whether a broader denial would leave an approval without effect."""
        broader = [one for one in self.standing.values() if one.effect is DecisionEffect.DENIAL and one.place != place]
        return answer(broader, subject, place, "", self.now) is not None

    def decide(self, node, waiting, broader, act, effect, scope, lifetime=None):
        """Decide about a request, for its target or another one that should cover it."""
        place = waiting.place
        broader = None if broader is None else self.world[broader % len(self.world)]
        if broader is not None:
            if broader.target != place.target:
                place = Place(place.resource, place.operation, broader.target, broader.steps)
            if not place.covers(waiting.place):
                with pytest.raises(InvalidInputError):
                    act(broader.target)
                return
        if effect is DecisionEffect.APPROVAL and self.in_the_way(waiting.subject, place):
            with pytest.raises(DecisionConflict):
                act(broader and broader.target)
            return
        made = act(broader and broader.target).decision
        session = waiting.session if scope is DecisionScope.SESSION else ""
        self.decided(node, made, waiting.subject, place, effect, scope, session, lifetime, waiting)

    def decided(self, node, made, subject, place, effect, scope, session, lifetime, waiting=None):
        """Add a decision: end the decisions it replaces, answer the requests it covers."""
        same = [one for one in self.standing.values() if one.name == (subject, place)]
        kind = (effect, scope, session)
        self.end(
            one
            for one in same
            if DecisionEffect.DENIAL in (effect, one.effect) or (one.effect, one.scope, one.session) == kind
        )
        expires = None if lifetime is None else self.now + lifetime
        self.standing[made.id] = Standing(made.id, subject, place, *kind, expires)
        for name, one in list(self.waiting.items()):
            if one.subject == subject and place.covers(one.place) and session in ("", one.session):
                del self.waiting[name]
                self.answered[one.id] = (
                    RequestState.DENIED if effect is DecisionEffect.DENIAL else RequestState.APPROVED
                )
        assert waiting is None or waiting.id in self.answered
        actions = {DecisionEffect.DENIAL: AuditAction.DENIED, DecisionEffect.APPROVAL: AuditAction.APPROVED}
        self.audit.append(AuditAction.APPROVED_FOR_SESSION if scope is DecisionScope.SESSION else actions[effect])
        self.saw(node)


TestTwoNodes = TwoNodes.TestCase
EXAMPLES = max(4, int(settings.default.max_examples * SCALE / 4))
"""Each run takes as long as many of other properties."""
TestTwoNodes.settings = settings(max_examples=EXAMPLES, stateful_step_count=30)
