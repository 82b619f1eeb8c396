"""Fifty concurrent requesters: each access has one request, and every question is counted."""

from __future__ import annotations

import random
import shutil
import threading
from collections import Counter
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import pytest

from democrai_sandbox.access import checks
from democrai_sandbox.access.administration import Administration
from democrai_sandbox.access.audit import verify_store
from democrai_sandbox.access.caller import Caller, UnguardedHost
from democrai_sandbox.access.checks import AccessService, PendingLimits
from democrai_sandbox.access.events import open_bus
from democrai_sandbox.access.node import AccessNode
from democrai_sandbox.access.store import database, open_store
from democrai_sandbox.access.values import AuditAction, DecisionEffect, PageRequest, RequestFilter, RequestState
from democrai_sandbox.policy import DecisionCode, Subject
from tests.access.nodes.processes import SCALE, eventually

REQUESTERS = 50
DISTINCT = int(100 * SCALE)
TIMES = 2
LIMITS = PendingLimits(new_requests=10**9, pending=0, counting_seconds=0.5, remembered=10**6)


class Host(UnguardedHost):
    """Surroundings that serve one user."""

    def __init__(self, served=Caller("ann", "", "s1")):
        self._served = served

    def caller(self):
        return self._served


@pytest.fixture
def host_url(tmp_path, prepared_file):
    shutil.copy(prepared_file, tmp_path / "load.db")
    return f"sqlite:///{tmp_path}/load.db"


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, monkeypatch):
    for name in ("TIMEOUT_SECONDS", "_WAIT_SECONDS"):  # fifty threads wait for each other, on a busy machine too
        monkeypatch.setattr(database, name, 60)
    if request.param == "sqlite":
        return request.getfixturevalue("host_url")
    return request.getfixturevalue("postgres").new_database(like=request.getfixturevalue("pattern"))


@contextmanager
def two_services(url, limits):
    """Two nodes over one store."""
    with ExitStack() as stack:
        made = []
        for _ in range(2):
            node = AccessNode(stack.enter_context(closing(open_store(url))), open_bus("memory"), poll_seconds=0.2)
            made.append(AccessService(node, Host(), limits=limits))
            node.start()
            stack.callback(node.stop)
        yield made


@pytest.fixture
def services(url):
    with two_services(url, LIMITS) as made:
        yield made


def everything(listing):
    """Yield all items of a list, page by page."""
    page = PageRequest(limit=1000)
    while True:
        found = listing(page)
        yield from found.items
        if not found.next:
            return
        page = PageRequest(limit=1000, after=found.next)


def test_each_request_is_put_down_once_and_every_question_is_counted(services):
    """Several threads request the same access at the same moment, on both nodes."""
    wanted = [f"https://api.example.com/{number}" for number in range(DISTINCT)] * TIMES
    # Near each other, but not in order: several threads request most of them at the same time.
    chance = random.Random(4)
    order = sorted(range(len(wanted)), key=lambda index: index % DISTINCT + chance.uniform(0, 2 * REQUESTERS))
    queue = iter([wanted[index] for index in order])
    taking = threading.Lock()
    told: list[tuple[str, str]] = []
    wrong: list[object] = []

    def work(number):
        service = services[number % len(services)]
        while True:
            with taking:
                target = next(queue, None)
            if target is None:
                return
            try:
                answer = service.check_external_access(
                    resource_type="network", operation="receive", target=target, subject=Subject("module", "demo")
                )
            except Exception as error:
                wrong.append(error)
                return
            if answer.allowed or answer.code is not DecisionCode.PENDING:
                wrong.append(answer)
            told.append((target, answer.request_id))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(REQUESTERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
    store = services[0].node.store

    def counts():
        pending = RequestFilter(states=(RequestState.PENDING,))
        return {one.id: one.count for one in everything(lambda page: store.requests(pending, page))}

    assert eventually(lambda: sum(counts().values()) >= len(wanted), 60, pause=0.2)
    assert len(counts()) == DISTINCT
    assert Counter(counts().values()) == {TIMES: DISTINCT}
    assert len(set(told)) == DISTINCT
    assert {request_id for _, request_id in told} == set(counts())
    assert Counter(record.action for record in store.audit_rows()) == {AuditAction.REQUESTED: DISTINCT}
    assert verify_store(store).ok


class Traced:
    """Store that records a node's calls while it follows changes."""

    def __init__(self, store):
        self._store = store
        self.calls = []

    def __getattr__(self, name):
        if "access-refresh" in threading.current_thread().name:
            self.calls.append(name)
        return getattr(self._store, name)


def test_a_node_looks_for_decisions_while_many_counts_wait_to_be_written(host_url, monkeypatch):
    """Writing counts of repeated questions does not delay the refresh: a change writes none, and time writes a few."""
    monkeypatch.setattr(checks, "_WRITTEN_AT_ONCE", 10)
    with two_services(host_url, replace(LIMITS, counting_seconds=1000)) as (asking, deciding):
        asking.node.store = traced = Traced(asking.node.store)
        administration = Administration(deciding.node, Host(Caller("root", role="super")))
        subject, kind = Subject("module", "demo"), {"resource_type": "network", "operation": "receive"}
        ask = lambda target, register=True: asking.check_external_access(
            **kind, target=target, subject=subject, register_request=register
        )
        for number in [*range(25)] * 2:
            ask(f"https://api.example.com/{number}")
        # The first change makes the node recheck its known requests.
        for target in ("https://first.example", "https://second.example"):
            administration.decide_unasked(subject, **kind, target=target, effect=DecisionEffect.APPROVAL)
            assert eventually(lambda target=target: ask(target, register=False).allowed)
        assert "count_again" not in traced.calls
        asking._pending._limits = replace(LIMITS, counting_seconds=0)
        assert eventually(lambda: traced.calls.count("count_again") == 25)
    runs = "".join("c" if name == "count_again" else " " for name in traced.calls).split()
    assert [len(run) for run in runs] == [10, 10, 5]
