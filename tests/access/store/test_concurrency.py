"""Concurrent acts: one winner, one conflict, exact counts, one chain."""

from __future__ import annotations

import os
import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import insert

from democrai_sandbox.access.audit import verify_store
from democrai_sandbox.access.store import decisions, requests, tables
from democrai_sandbox.access.values import Decision, DecisionFilter, RequestFilter, RequestState
from democrai_sandbox.errors import DecisionConflict, StoreUnavailable
from tests.access.forked_programs import Started
from tests.access.store import concurrent_writes
from tests.access.store.samples import ALL, NOW, actions, approval, at, denial, live, request, sql

# With enough time, as many distinct requests as the whole load test.
DISTINCT = int(os.environ.get("ACCESS_LOAD", "40"))
REQUESTERS = 50


def at_once(*works):
    """Start all functions together; return their results or exceptions."""
    barrier = threading.Barrier(len(works))

    def run(work):
        barrier.wait(30)
        try:
            return work()
        except Exception as error:
            return error

    with ThreadPoolExecutor(len(works)) as pool:
        return list(pool.map(run, works))


def test_two_administrators_decide_at_once(store, other):
    """Each time one wins, and the conflict names the other administrator and the decision."""
    for number in range(5):
        asked = store.register(request(f"/{number}"), now=NOW).request_id
        results = at_once(
            lambda: store.decide(approval(f"/{number}", request_id=asked, by="ann"), now=at(1)),
            lambda: other.decide(denial(f"/{number}", request_id=asked, by="bob"), now=at(1)),
        )
        (made,) = [result for result in results if isinstance(result, Decision)]
        (conflict,) = [result for result in results if isinstance(result, DecisionConflict)]
        assert re.search(rf"\b{made.created_by}\b", str(conflict))
        expected = RequestState.APPROVED if made.created_by == "ann" else RequestState.DENIED
        assert store.request(asked).state is expected
        assert [row[1] for row in live(store) if row[0] == f"/{number}"] == [made.effect.value]
    assert (store.generation(), verify_store(store).ok) == (5, True)


def test_deciding_without_a_request_at_once_leaves_no_contradiction(store, other):
    """Approvals and denials of one access are serialized: exactly one is in force at the end."""
    works = [
        lambda node=node, make=make: node.decide(make("/x"), now=NOW)
        for node in (store, other)
        for make in (approval, denial)
        for _ in range(5)
    ]
    results = at_once(*works)
    assert all(isinstance(result, Decision) for result in results), results
    assert len(live(store)) == 1
    assert sorted(result.generation for result in results) == list(range(1, 21))
    assert len(store.decisions(DecisionFilter(live=False), ALL).items) == 19
    assert verify_store(store).count == 20


def test_revoking_at_once_ends_it_once(store, other):
    """One revokes, and the conflicts of the others name it."""
    made = store.decide(approval(), now=NOW)
    revoke = [lambda node=node: node.revoke(made.id, actor="ann", reason="", now=at(1)) for node in (store, other) * 3]
    results = at_once(*revoke)
    assert Counter(type(result) for result in results) == {Decision: 1, DecisionConflict: 5}
    assert actions(store) == ["approved", "revoked"]


def test_asking_at_once_makes_one_request(store, other):
    """One call creates the request; all are counted."""
    works = [lambda node=node: node.register(request(), now=NOW) for node in (store, other) for _ in range(10)]
    results = at_once(*works)
    assert len({result.request_id for result in results}) == 1
    assert sum(result.created for result in results) == 1
    assert store.request(results[0].request_id).count == 20
    assert actions(store) == ["requested"]


def test_asking_deciding_and_giving_up_at_once(store, other):
    """Every request ends in one state, and the audit records match the rows."""
    ids = [store.register(request(f"/{number}"), now=NOW).request_id for number in range(6)]
    works = []
    for number, asked in enumerate(ids):
        works.append(lambda n=number, i=asked: store.decide(approval(f"/{n}", request_id=i), now=at(2)))
        works.append(lambda n=number: other.register(request(f"/{n}"), now=NOW))
    works += [lambda: other.age_out(before=at(1), now=at(2)), lambda: store.end_session("s-1", actor="x", now=at(2))]
    results = at_once(*works)
    unexpected = [r for r in results if isinstance(r, Exception) and not isinstance(r, DecisionConflict)]
    assert unexpected == []
    told = Counter(action for action in actions(store) if action in {"approved", "aged_out", "requested"})
    states = Counter(row.state.value for row in store.requests(RequestFilter(), ALL).items)
    assert states["approved"] == told["approved"] == len(live(store))
    assert states["aged_out"] == told["aged_out"]
    assert sum(states.values()) == told["requested"]
    assert verify_store(store).ok


def test_one_node_gets_each_resumption(store, other):
    """Each resumption goes to one node, however many claim it at the same time."""
    for number in range(6):
        asked = store.register(request(f"/{number}", action="go"), now=NOW).request_id
        store.decide(approval(f"/{number}", request_id=asked), now=NOW)
    claims = [
        lambda node=node, name=name: node.claim_resume(node=name, lease_until=at(60), now=NOW)
        for node, name in ((store, "n-1"), (other, "n-2"))
        for _ in range(5)
    ]
    found = [resume for resume in at_once(*claims) if resume is not None]
    assert len({resume.id for resume in found}) == len(found) == 6
    assert {resume.attempts for resume in found} == {1}


def test_asking_and_ending_the_session_at_once(store, other):
    """Whichever comes first, no request stays approvable for a session that has ended."""
    for number in range(5):
        session = f"s-{number}"
        works = [
            lambda node=node, path=path, key=session: node.register(request(path, session=key), now=NOW)
            for node in (store, other)
            for path in ("/a", "/b", "/c")
        ]
        works.append(lambda key=session: other.end_session(key, actor="x", now=at(1)))
        assert [result for result in at_once(*works) if isinstance(result, Exception)] == []
    waiting = store.requests(RequestFilter(), ALL).items
    assert [found.session_ended for found in waiting] == [True] * 15


def test_revoking_and_going_on_at_once(store, other):
    """A claimed resumption was approved at that time: the record of the end of the approval never comes before."""
    for number in range(6):
        asked = store.register(request(f"/{number}", action="go"), now=NOW).request_id
        made = store.decide(approval(f"/{number}", request_id=asked), now=NOW)
        taken, _ = at_once(
            lambda: other.claim_resume(node="n-1", lease_until=at(60), now=NOW),
            lambda made=made: store.revoke(made.id, actor="ann", reason="", now=NOW),
        )
        (found,) = [one for one in store.resumes(unfinished=False, page=ALL).items if one.request_id == asked]
        if taken is None:
            other.claim_resume(node="n-1", lease_until=at(60), now=NOW)
            (found,) = [one for one in store.resumes(unfinished=False, page=ALL).items if one.request_id == asked]
            assert (found.state.value, found.attempts) == ("failed", 0)
        else:
            assert (found.state.value, found.attempts) == ("running", 1)


def test_using_and_deciding_at_once(store, other):
    """Recording uses does not block other transactions, in any order of rows."""
    ids = [store.decide(approval(f"/{number}", session="s-1"), now=NOW).id for number in range(20)]
    works = [lambda node=node: node.note_use(dict.fromkeys(ids, at(5))) for node in (store, other) * 3]
    works += [lambda n=number: store.decide(denial(f"/{n}"), now=at(1)) for number in range(20)]
    works.append(lambda: other.end_session("s-1", actor="x", now=at(1)))
    assert [result for result in at_once(*works) if isinstance(result, Exception)] == []


def test_load(store, url):
    """Fifty concurrent requesters, five for each access: no request is lost or duplicated."""
    numbers = iter([number % DISTINCT for number in range(5 * DISTINCT)])
    lock, created, failed = threading.Lock(), Counter(), []

    def ask():
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            try:
                done = store.register(request(f"/{number}"), now=NOW + timedelta(microseconds=number))
            except Exception as error:
                failed.append(error)
            else:
                with lock:
                    created[number] += done.created

    threads = [threading.Thread(target=ask) for _ in range(REQUESTERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(250)
    assert failed == []
    assert len(created) == sum(created.values()) == DISTINCT
    assert sql(url, "SELECT count(*), min(count), max(count) FROM access_requests") == [(DISTINCT, 5, 5)]
    assert verify_store(store).count == DISTINCT


def test_processes_share_a_database(store, url):
    """Several processes write concurrently; generations and the chain have no gap."""
    processes = [Started(concurrent_writes.__file__, url, name, 15) for name in range(2)]
    concurrent_writes.write(url, "here", 15)
    assert [process.finish(60) for process in processes] == [0, 0]
    assert store.generation() == 45
    assert sorted(row.generation for row in store.decisions(DecisionFilter(), ALL).items) == list(range(1, 46))
    assert [row.count for row in store.requests(RequestFilter(), ALL).items] == [3] * 15
    assert verify_store(store).count == 60


@pytest.mark.parametrize("since", [0, 1])
def test_what_a_node_reads_is_of_one_moment(store, other, since):
    """A node never sees an old and a new decision together, even if decisions change in between."""
    store.decide(approval("/x"), now=NOW)
    stop = threading.Event()

    def toggle():
        while not stop.is_set():
            store.decide(denial("/x"), now=NOW)
            store.decide(approval("/x"), now=NOW)

    thread = threading.Thread(target=toggle)
    thread.start()
    try:
        for _ in range(30):
            changes = other.changes(since)
            assert len([row for row in changes.rows if not row.ended]) <= 1
            if since == 0:
                assert len(changes.rows) == 1
    finally:
        stop.set()
        thread.join(30)


def test_all_statements_of_one_reading_see_the_same(store, other):
    """Commits of others during a read are not visible in it."""

    def read(connection):
        before = decisions.generation(connection)
        other.decide(approval(), now=NOW)
        return before, decisions.changes(connection, 0)

    before, changes = store.database.read(read)
    assert (before, changes.generation, changes.rows) == (0, 0, ())
    assert store.changes(0).generation == 1


def test_work_that_lost_a_race_is_done_again(store):
    """The work is repeated from the start, without effects of the first try, a limited number of times."""
    tries = []

    def loses(connection, times):
        tries.append("tried")
        connection.execute(insert(tables.requests), row("kept"))
        if len(tries) <= times:
            connection.execute(insert(tables.requests), row("kept", target="/again"))

    store.database.act(lambda connection: loses(connection, 2))
    assert len(tries) == 3
    assert [found.id for found in store.requests(RequestFilter(), ALL).items] == ["kept"]
    tries.clear()
    with pytest.raises(StoreUnavailable):
        store.database.act(lambda connection: loses(connection, 99))
    assert len(tries) == 4


def row(key, target=None):
    return requests._columns(request(target or f"/{key}"), key, NOW)
