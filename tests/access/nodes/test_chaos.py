"""Nodes, Redis and PostgreSQL are killed under load: no acknowledged act is lost, and nothing else is allowed."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from contextlib import closing
from itertools import cycle

import pytest

from democrai_sandbox.access.audit import verify_store
from democrai_sandbox.access.store import open_store
from democrai_sandbox.access.values import (
    AuditAction,
    DecisionEffect,
    DecisionFilter,
    PageRequest,
    RequestFilter,
    RequestState,
)
from tests.access.nodes.processes import PATIENCE, SCALE, eventually
from tests.access.nodes.test_load import everything

SECONDS = 3 * SCALE
LEAST = int(30 * SCALE)
"""Number of acknowledged acts, on however busy a machine."""


class Chaos:
    """Two nodes under load, one of which survives everything, and their servers."""

    def __init__(self, nodes, postgres, redis, folder, chance):
        self._nodes = nodes
        self._folder = folder
        self._chance = chance
        self.postgres = postgres
        self.redis = redis
        self.lives, self.dies = nodes.start()
        self.killed = Counter()
        for node in (self.lives, self.dies):
            self._load(node)

    def _load(self, node):
        folder = self._folder / f"node-{len(self._nodes.all)}-{self._chance.random()}"
        folder.mkdir()
        node.do("load", folder=str(folder), seed=self._chance.random())

    def go_on(self, seconds):
        """Kill one or two of the three at a time, in turn, and restart them."""
        kinds = ["node", "redis", "postgres"]
        self._chance.shuffle(kinds)
        turns = cycle(kinds)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline or len(self.killed) < len(kinds) or not self._has_gone_on():
            assert time.monotonic() < deadline + 4 * PATIENCE, "nothing goes on"
            time.sleep(self._chance.uniform(0.3, 1))
            victims = {next(turns) for _ in range(self._chance.choice([1, 1, 2]))}
            for victim in sorted(victims):
                self._kill(victim)
                time.sleep(self._chance.uniform(0, 0.3))
            time.sleep(self._chance.uniform(0, 0.5))
            self._bring_back(victims)

    def _has_gone_on(self):
        return len(self.told("acknowledged")) > LEAST and self.told("allowed")

    def _kill(self, victim):
        self.killed[victim] += 1
        {"node": self.dies, "redis": self.redis, "postgres": self.postgres}[victim].kill()

    def _bring_back(self, victims):
        if "redis" in victims:
            self.redis.start()
        if "postgres" in victims:
            self.postgres.start()
        if "node" in victims:
            (self.dies,) = self._nodes.start(1)
            self._load(self.dies)

    def told(self, what):
        """Return all reports of a kind from any node, including killed ones."""
        return [one for node in self._nodes.all for one in list(node.told) if what in one]


@pytest.fixture
def chaos(nodes_over, postgres, redis, settings, tmp_path):
    seed = int(os.environ.get("PROOF_SEED", random.randrange(2**32)))
    print(f"PROOF_SEED={seed}")
    made = Chaos(nodes_over(settings), postgres, redis, tmp_path, random.Random(seed))
    with closing(open_store(settings["store"])) as made.store:
        yield made


@pytest.mark.slow
def test_whatever_is_killed_what_was_acknowledged_holds_and_nothing_else_does(chaos):
    """At the end all nodes give the same results, according to the store, and the audit log is intact."""
    chaos.go_on(SECONDS)
    for node in (chaos.lives, chaos.dies):
        node.do("rest")
    store = chaos.store
    assert eventually(lambda: all(_is_current(node, store) for node in (chaos.lives, chaos.dies)))

    acknowledged = chaos.told("acknowledged")
    allowed = {one["allowed"] for one in chaos.told("allowed")}
    print(
        f"killed {dict(chaos.killed)}; {Counter(one['acknowledged'] for one in acknowledged)}; {len(allowed)} allowed"
    )
    print(f"failed meanwhile: {Counter(one['failed'] for one in chaos.told('failed'))}")

    requests = {one.id: one for one in everything(lambda page: store.requests(RequestFilter(), page))}
    decisions = {one.id: one for one in everything(lambda page: store.decisions(DecisionFilter(live=None), page))}
    _nothing_is_lost(acknowledged, requests, decisions)
    _nothing_is_there_twice(requests, decisions)

    approved = {one.access.target for one in decisions.values() if one.effect is DecisionEffect.APPROVAL}
    assert allowed <= approved

    in_force = {one.access.target: one for one in decisions.values() if one.ended_at is None}
    places = sorted({one.access.target for one in requests.values()})
    expected = [_expected(in_force.get(place)) for place in places]
    for node in (chaos.lives, chaos.dies):
        assert node.do("answers", places=places) == expected

    _the_audit_is_whole(store, requests, decisions)


def _is_current(node, store):
    status = node.do("status")
    return status["store_reachable"] and status["bus_connected"] and status["generation"] == store.generation()


def _nothing_is_lost(acknowledged, requests, decisions):
    effects = {
        "approve": DecisionEffect.APPROVAL,
        "approve_for_session": DecisionEffect.APPROVAL,
        "deny": DecisionEffect.DENIAL,
    }
    for one in acknowledged:
        assert requests[one["request"]].access.target == one["place"]
        if one["acknowledged"] == "request":
            continue
        decision = decisions[one["decision"]]
        assert (decision.access.target, decision.request_id) == (one["place"], one["request"])
        if one["acknowledged"] == "revoke":
            assert decision.ended_at is not None
        else:
            assert decision.effect is effects[one["acknowledged"]]
            assert requests[one["request"]].state is not RequestState.PENDING


def _nothing_is_there_twice(requests, decisions):
    pending = Counter(
        (one.access, one.origin.user_id, one.origin.session_key)
        for one in requests.values()
        if one.state is RequestState.PENDING
    )
    in_force = Counter(one.access for one in decisions.values() if one.ended_at is None)
    assert set(pending.values()) | set(in_force.values()) == {1}


def _expected(decision):
    if decision is None:
        return ["not_enabled", "denied"]
    if decision.effect is DecisionEffect.DENIAL:
        return ["denied", "denied"]
    return [f"{decision.scope}_approval", "ok"]


def _the_audit_is_whole(store, requests, decisions):
    assert verify_store(store).ok
    actions = Counter(record.action for record in store.audit_rows())
    assert actions[AuditAction.REQUESTED] == len(requests)
    decided = (AuditAction.APPROVED, AuditAction.APPROVED_FOR_SESSION, AuditAction.DENIED)
    assert sum(actions[action] for action in decided) == len(decisions)
    assert actions[AuditAction.REVOKED] == sum(one.ended_at is not None for one in decisions.values())
