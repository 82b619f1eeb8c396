"""Resumptions: each runs as its requester until it succeeds or fails permanently, with its result on record."""

from __future__ import annotations

import logging
import shutil
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from democrai_sandbox.access.encryption import Sealer, reseal_all
from democrai_sandbox.access.keyring import EncryptionKey, KeyFile, KeyRing
from democrai_sandbox.access.resumptions import LONGEST_ERROR, ResumeRunner, ResumeSettings
from democrai_sandbox.access.store import open_store
from democrai_sandbox.access.values import (
    AccessTuple,
    AuditAction,
    AuditFilter,
    DecisionEffect,
    DecisionScope,
    NewDecision,
    NewRequest,
    PageRequest,
    Requester,
    ResultPage,
    Resumption,
    ResumptionState,
)
from democrai_sandbox.errors import SandboxError, StoreUnavailable
from democrai_sandbox.policy import Operation, ResourceType, Subject
from tests.access.forked_programs import Started
from tests.services.golden import sentence

START = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
RING = KeyRing((EncryptionKey("first", b"1" * 32),))
UNFINISHED = {ResumptionState.WAITING, ResumptionState.RUNNING}


class Told(SandboxError):
    """Error whose text a handler wants to be recorded."""


class MemoryStore:
    """In-memory store with only the methods that resumptions need."""

    def __init__(self):
        self.lock = threading.Lock()
        self.rows, self.contexts, self.leases = {}, {}, {}

    def add(self, request, now):
        self.contexts[request.id] = request.resume_context
        row = Resumption(
            f"resume-{request.id}", request.id, request.resume_action, request.origin, request.access.subject,
            ResumptionState.WAITING, 0, now, now,
        )  # fmt: skip
        self.rows[row.id] = row

    def resume_context(self, request_id):
        return self.contexts[request_id]

    def claim_resume(self, *, node, lease_until, now):
        with self.lock:
            for row in self.rows.values():
                waiting = row.state is ResumptionState.WAITING and row.next_attempt <= now
                if waiting or (row.state is ResumptionState.RUNNING and self.leases[row.id] <= now):
                    self.leases[row.id] = lease_until
                    self.rows[row.id] = replace(
                        row, state=ResumptionState.RUNNING, attempts=row.attempts + 1, leased_by=node
                    )
                    return self.rows[row.id]
            return None

    def finish_resume(self, resume, *, node, error, retry_at, now):
        with self.lock:
            row = self.rows[resume.id]
            if (row.state, row.leased_by, row.attempts) != (ResumptionState.RUNNING, node, resume.attempts):
                return False
            if error and retry_at:
                row = replace(row, state=ResumptionState.WAITING, next_attempt=retry_at, last_error=error, leased_by="")
            else:
                state = ResumptionState.FAILED if error else ResumptionState.SUCCEEDED
                row = replace(row, state=state, last_error=error, finished_at=now, leased_by="")
            self.rows[row.id] = row
            return True

    def resumes(self, *, unfinished, page):
        rows = (row for row in self.rows.values() if not unfinished or row.state in UNFINISHED)
        return ResultPage(tuple(rows), "")

    def close(self):
        pass


class Faulty:
    """Store whose named methods fail for a while, in front of another store."""

    def __init__(self, store):
        self.store, self.broken, self.calls = store, set(), Counter()

    def __getattr__(self, name):
        self.calls[name] += 1
        if name in self.broken:
            raise StoreUnavailable from OSError("connection refused")
        return getattr(self.store, name)


class World:
    """Store with approved requests, a stopped clock, and handlers that record their calls."""

    def __init__(self, store):
        self.store, self.now, self.ring = store, START, RING
        self.sealer = Sealer(lambda: self.ring)
        self.handlers, self.runs = {}, []
        self.count = 0

    def approved(self, action="go_on", context=None):
        """Return the id of an approved request whose action is due."""
        self.count += 1
        subject = Subject.parse("tool:demo.read")
        access = AccessTuple(subject, ResourceType.NETWORK, Operation.RECEIVE, f"https://example.com/{self.count}")
        origin = Requester("ann", "acme", "session-1", "task-1")
        bare = NewRequest(access, access.target, (str(subject),), origin, action, f"{self.count:026}")
        request = replace(bare, resume_context=None if context is None else self.sealer.seal(context, bare))
        if isinstance(self.store, MemoryStore):
            self.store.add(request, self.now)
        else:
            assert self.store.register(request, now=self.now).created
            self.store.decide(
                NewDecision(access, DecisionEffect.APPROVAL, DecisionScope.PERMANENT, "root", request_id=request.id),
                now=self.now,
            )
        return request.id

    def handler(self, name="go_on", does=lambda context: None):
        """Register a handler that records its call and then uses its context."""

        def handle(context, *, origin, subject, request_id):
            self.runs.append((name, context, origin, subject, request_id))
            return does(context)

        self.handlers[name] = handle

    def runner(self, node="node-1", store=None, **settings):
        return ResumeRunner(
            store or self.store, self.sealer, self.handlers, node=node, clock=lambda: self.now,
            settings=ResumeSettings(**settings), chance=lambda: 0.0,
        )  # fmt: skip

    def row(self, request_id):
        rows = self.store.resumes(unfinished=False, page=PageRequest(1000)).items
        return next(row for row in rows if row.request_id == request_id)

    def unfinished(self):
        return len(self.store.resumes(unfinished=True, page=PageRequest(1000)).items)

    def later(self, **time):
        self.now += timedelta(**time)


@pytest.fixture(params=["memory", "sqlite"])
def world(request):
    """World over each kind of store."""
    store = MemoryStore() if request.param == "memory" else open_store(request.getfixturevalue("database"))
    yield World(store)
    store.close()


@pytest.fixture
def kept_world(database):
    """World over a database."""
    store = open_store(database)
    yield World(store)
    store.close()


def raising(error):
    def act(context):
        raise error

    return act


def eventually(condition, seconds=20):
    """Wait until a thread has made a condition true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.01)


# ---- one attempt


def test_a_handler_goes_on_as_the_requester(world):
    """The handler gets the decrypted context, and the requester's identity, subject and request."""
    request_id = world.approved(context={"page": [1, None]})
    world.handler()
    assert world.runner().run_due() == 1
    origin, subject = Requester("ann", "acme", "session-1", "task-1"), Subject.parse("tool:demo.read")
    assert world.runs == [("go_on", {"page": [1, None]}, origin, subject, request_id)]
    row = world.row(request_id)
    assert (row.state, row.attempts, row.last_error) == (ResumptionState.SUCCEEDED, 1, "")
    assert row.finished_at == world.now


def test_a_request_without_a_context_goes_on_without_one(world):
    """An action without a context gets None."""
    world.approved()
    world.handler()
    world.runner().run_due()
    assert [context for _, context, *_ in world.runs] == [None]


def test_a_success_is_final(world):
    """A succeeded action never runs again, at any time and on any node."""
    world.approved()
    world.handler()
    assert [world.runner().run_due(), world.runner().run_due()] == [1, 0]
    world.later(days=1000)
    assert [world.runner(node).run_due() for node in ("node-1", "node-2")] == [0, 0]
    assert len(world.runs) == 1


def test_everything_that_is_due_is_run(world):
    """One round runs all, each with its handler; a failure does not stop the others."""
    world.handler("good")
    world.handler("bad", raising(ValueError("no")))
    ids = [world.approved(action) for action in ("good", "bad", "good", "bad", "good")]
    assert world.runner().run_due() == 5
    assert Counter(name for name, *_ in world.runs) == {"good": 3, "bad": 2}
    assert [world.row(request_id).state.value for request_id in ids] == [
        "succeeded", "waiting", "succeeded", "waiting", "succeeded",
    ]  # fmt: skip


# ---- attempts


def test_a_failure_is_recorded_and_tried_again_later(world):
    """A failed attempt is recorded with its error, and the next one follows at its time."""
    request_id = world.approved(context=1)
    world.handler(does=raising(Told("not yet")))
    assert world.runner().run_due() == 1
    row = world.row(request_id)
    assert (row.state, row.attempts, row.last_error) == (ResumptionState.WAITING, 1, "Told: not yet")
    assert row.next_attempt == world.now + timedelta(seconds=1)
    assert world.runner().run_due() == 0
    world.later(seconds=1)
    world.handler()
    assert world.runner("node-2").run_due() == 1
    row = world.row(request_id)
    assert (row.state, row.attempts, row.last_error) == (ResumptionState.SUCCEEDED, 2, "")
    assert [context for _, context, *_ in world.runs] == [1, 1]


def test_attempts_come_to_an_end(world):
    """After the last attempt the resumption has failed permanently, with its last error."""
    request_id = world.approved()
    world.handler(does=lambda context: 1 // 0)
    waits = []
    while world.unfinished():
        assert world.runner(longest_delay=timedelta(seconds=5)).run_due() == 1
        row = world.row(request_id)
        if row.state is ResumptionState.WAITING:
            waits.append((row.next_attempt - world.now).total_seconds())
            world.now = row.next_attempt
    assert waits == [1, 2, 4, 5]
    assert len(world.runs) == 5
    assert (row.state, row.attempts) == (ResumptionState.FAILED, 5)
    sentence("the last attempt failed", row.last_error)
    world.later(days=1000)
    assert world.runner().run_due() == 0


def test_waits_are_spread_by_chance():
    """The delay is between half of its full length and the full length, for any number of attempts."""
    for chance, factor in ((0.0, 1), (0.5, 0.75), (1.0, 0.5)):
        runner = ResumeRunner(None, None, {}, node="n", clock=None, chance=lambda chance=chance: chance)
        waits = [runner._delay(attempts).total_seconds() for attempts in (1, 2, 5, 9, 10, 10_000)]
        assert waits == [wait * factor for wait in (1, 2, 16, 256, 300, 300)]
    waits = {ResumeRunner(None, None, {}, node="n", clock=None)._delay(3) for _ in range(20)}
    assert len(waits) > 10
    assert all(timedelta(seconds=2) <= wait <= timedelta(seconds=4) for wait in waits)


def test_an_unknown_action_fails_at_once(world, caplog):
    """Without a handler no attempt follows: the record names the action and the nearest known one."""
    request_id = world.approved("downlaod")
    world.handler("download")
    with caplog.at_level(logging.WARNING):
        assert world.runner().run_due() == 1
    row = world.row(request_id)
    assert (row.state, row.attempts) == (ResumptionState.FAILED, 1)
    assert "'downlaod'" in row.last_error and "'download'" in row.last_error
    sentence("an unknown action", row.last_error)
    assert world.runs == []
    (record,) = caplog.records
    assert request_id in record.getMessage() and row.last_error in record.getMessage()
    sentence("an unknown action, in the log", record.getMessage())


def test_an_unreadable_context_fails_at_once(world):
    """A context whose key is missing is recorded as such, and the handler is not called."""
    request_id = world.approved(context={"token": "swordfish"})
    world.handler()
    world.ring = KeyRing((EncryptionKey("other", b"2" * 32),))
    assert world.runner().run_due() == 1
    row = world.row(request_id)
    assert row.state is ResumptionState.FAILED
    assert "'first'" in row.last_error
    sentence("an unreadable context", row.last_error)
    assert world.runs == []


def test_keys_that_cannot_be_had_now_are_waited_for(world):
    """A failure to read the keys says nothing about the context, so it is retried."""
    request_id = world.approved(context=1)
    world.handler()

    def fail():
        raise OSError(5, "Input/output error")

    world.sealer._ring, ring = fail, world.sealer._ring
    world.runner().run_due()
    assert world.row(request_id).state is ResumptionState.WAITING
    assert world.row(request_id).last_error == "OSError: [Errno 5] Input/output error"
    world.sealer._ring = ring
    world.later(seconds=1)
    world.runner().run_due()
    assert world.row(request_id).state is ResumptionState.SUCCEEDED


class Mute(SandboxError):
    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "recorded"),
    [
        (Told(), "Told: "),
        (Told("x" * 5000), "Told: " + "x" * (LONGEST_ERROR - 6)),
        (Told("\ud800" * 5000), ("Told: " + "\\ud800" * 5000)[:LONGEST_ERROR]),
        (Told("a\0b\udcff\U0001f600"), "Told: a\\x00b\\udcff\U0001f600"),
        (Told("a\nb\x1b[31m\u202e"), "Told: a\\nb\\x1b[31m\\u202e"),
        (type("N" * 5000, (ValueError,), {})(), "N" * LONGEST_ERROR),
        (StoreUnavailable(), "StoreUnavailable: sandbox_external_access_check_failed"),
    ],
)
def test_the_text_of_an_error_is_made_fit_for_every_database(world, error, recorded):
    """Type and text are recorded: bounded, storable, on one line; a handler's error is never mistaken for ours."""
    request_id = world.approved()
    world.handler(does=raising(error))
    world.runner().run_due()
    assert world.row(request_id).last_error == recorded


def test_an_error_without_a_text_is_recorded_by_its_type(world):
    """An error whose text raises an error is recorded like others."""
    request_id = world.approved()
    world.handler(does=raising(Mute()))
    world.runner().run_due()
    assert world.row(request_id).last_error.startswith("Mute: ")
    sentence("no text", world.row(request_id).last_error)


def test_no_traceback_and_no_context_are_recorded(world, caplog):
    """The record contains the error's type, and no data of the handler."""
    request_id = world.approved(context={"token": "swordfish"})

    def act(context):
        token = context["token"]
        try:
            raise KeyError(token)
        except KeyError:
            raise ValueError(f"no entry {token}")

    world.handler(does=act)
    with caplog.at_level(logging.DEBUG):
        world.runner().run_due()
    assert world.row(request_id).last_error.split()[0] == "ValueError"
    sentence("a withheld text", world.row(request_id).last_error)
    assert "swordfish" not in caplog.text


def test_an_asynchronous_handler_is_refused(world):
    """A coroutine that is never awaited is not a success: it is recorded as failed immediately."""
    request_id = world.approved()

    async def act():
        raise AssertionError

    world.handler(does=lambda context: act())
    world.runner().run_due()
    assert world.row(request_id).state is ResumptionState.FAILED
    sentence("an asynchronous handler", world.row(request_id).last_error)


# ---- attempts that are lost


def test_an_interrupt_passes_on_and_the_attempt_is_lost(world):
    """KeyboardInterrupt is not recorded; the next attempt follows only after the lease expires."""
    request_id = world.approved()
    world.handler(does=raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        world.runner().run_due()
    assert world.row(request_id).state is ResumptionState.RUNNING
    world.handler()
    world.later(minutes=5, microseconds=-1)
    assert world.runner("node-2").run_due() == 0
    world.later(microseconds=1)
    assert world.runner("node-2").run_due() == 1
    assert (world.row(request_id).state, world.row(request_id).attempts) == (ResumptionState.SUCCEEDED, 2)


def test_an_action_that_ends_its_process_every_time_is_given_up(world):
    """Lost attempts count: after the last one nothing runs anymore, and the record says why."""
    request_id = world.approved()
    world.handler(does=raising(Told("first")))
    world.runner().run_due()
    world.handler(does=raising(SystemExit()))
    for _ in range(4):
        world.later(minutes=5)
        with pytest.raises(SystemExit):
            world.runner().run_due()
    world.later(minutes=5)
    assert world.runner().run_due() == 1
    assert len(world.runs) == 5
    row = world.row(request_id)
    assert row.state is ResumptionState.FAILED
    assert row.last_error.endswith("Told: first")
    sentence("given up", row.last_error)


def test_an_attempt_that_outlives_its_lease_changes_nothing(world, caplog):
    """If another attempt was made meanwhile, the result of the late one is ignored, failure or success."""
    request_id = world.approved()

    def overtaken(context):
        world.later(minutes=5)
        world.handler()
        assert world.runner("node-2").run_due() == 1
        raise ValueError("late")

    world.handler(does=overtaken)
    with caplog.at_level(logging.WARNING):
        assert world.runner("node-1").run_due() == 1
    row = world.row(request_id)
    assert (row.state, row.attempts, row.last_error) == (ResumptionState.SUCCEEDED, 2, "")
    (record,) = caplog.records
    assert request_id in record.getMessage()
    sentence("a lease that had run out", record.getMessage())


def test_a_lease_of_the_same_node_is_told_apart_by_its_attempt(world):
    """Two runners of one node do not confuse their attempts."""
    request_id = world.approved()

    def overtaken(context):
        world.later(minutes=5)
        world.handler(does=raising(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            world.runner("node-1").run_due()

    world.handler(does=overtaken)
    world.runner("node-1").run_due()
    assert (world.row(request_id).state, world.row(request_id).attempts) == (ResumptionState.RUNNING, 2)


# ---- the database is away


def test_a_database_that_is_away_is_told_and_nothing_is_lost(world):
    """Without the database nothing is claimed or run; afterwards everything continues."""
    store = Faulty(world.store)
    request_id = world.approved(context=1)
    world.handler()
    runner = world.runner(store=store)
    store.broken = {"claim_resume"}
    with pytest.raises(StoreUnavailable):
        runner.run_due()
    assert (world.runs, world.row(request_id).attempts) == ([], 0)
    store.broken = {"resume_context"}
    with pytest.raises(StoreUnavailable):
        runner.run_due()
    assert world.runs == []
    store.broken = set()
    world.later(minutes=5)
    assert runner.run_due() == 1
    assert world.row(request_id).state is ResumptionState.SUCCEEDED


@pytest.mark.parametrize("away", [timedelta(0), timedelta(hours=1)])
def test_an_outcome_that_could_not_be_recorded_is_kept(world, away):
    """A success that could not be stored is recorded later, and its handler does not run again."""
    store = Faulty(world.store)
    request_id = world.approved()
    world.handler()
    runner = world.runner(store=store)
    store.broken = {"finish_resume"}
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            runner.run_due()
    assert world.row(request_id).state is ResumptionState.RUNNING
    store.broken = set()
    world.now += away
    assert runner.run_due() == 0
    assert (world.row(request_id).state, world.row(request_id).attempts) == (ResumptionState.SUCCEEDED, 1)
    assert len(world.runs) == 1


# ---- new keys


def test_after_resealing_old_keys_can_be_retired(kept_world):
    """Waiting resumptions survive a change of keys; contexts that no key decrypts are reported and kept."""
    world = kept_world
    kept = world.approved(context="kept")
    world.ring = KeyRing((EncryptionKey("lost", b"3" * 32),))
    lost = world.approved(context="lost")
    world.ring = KeyRing((EncryptionKey("new", b"2" * 32), *RING.keys))
    fresh = world.approved(context="fresh")
    assert reseal_all(world.store, world.sealer) == (1, (lost,))
    assert reseal_all(world.store, world.sealer) == (0, (lost,))
    world.ring = KeyRing(world.ring.keys[:1])
    world.handler()
    assert world.runner().run_due() == 3
    assert {context for _, context, *_ in world.runs} == {"kept", "fresh"}
    assert [world.row(request_id).state.value for request_id in (kept, lost, fresh)] == [
        "succeeded", "failed", "succeeded",
    ]  # fmt: skip


def test_what_was_sealed_anew_while_it_was_looked_at_is_looked_at_again(world):
    """Its key was replaced and removed between fetching and decrypting: the current value is decrypted."""
    request_id = world.approved(context="kept")
    world.handler()
    old, new = world.ring, KeyRing((EncryptionKey("new", b"2" * 32),))
    fetch = world.store.resume_context

    def fetch_and_lag(request_id):
        blob = fetch(request_id)
        if world.ring is old:
            world.ring = KeyRing((*new.keys, *old.keys))
            again = world.sealer.reseal(world.row(request_id), blob)
            world.ring, world.store.resume_context = new, lambda _: again
        return blob

    world.store.resume_context = fetch_and_lag
    assert world.runner().run_due() == 1
    assert world.runs[0][1] == "kept"
    assert world.row(request_id).state is ResumptionState.SUCCEEDED


# ---- concurrency


def test_several_nodes_run_each_resumption_once(world):
    """Concurrent nodes share the work; nothing runs twice, and nothing is left."""
    ids = [world.approved() for _ in range(12)]
    world.handler(does=lambda context: time.sleep(0.002))
    barrier, counts = threading.Barrier(4), []

    def work(node):
        barrier.wait(30)
        counts.append(world.runner(node).run_due())

    threads = [threading.Thread(target=work, args=(f"node-{number}",)) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join(60) for thread in threads]
    assert sum(counts) == 12
    assert Counter(request_id for *_, request_id in world.runs) == dict.fromkeys(ids, 1)
    assert world.unfinished() == 0


class Crash(BaseException):
    """End of a process, from the runner's point of view."""


def outcome_of(word):
    return {"fail": raising(ValueError("no")), "crash": raising(Crash())}.get(word, lambda context: None)


words = st.sampled_from(["succeed", "fail", "crash", "unrecorded", "unrecorded crash"])


@pytest.fixture(scope="module")
def lasting(tmp_path_factory, prepared_file):
    """World that all examples of a property share."""
    file = shutil.copy(prepared_file, tmp_path_factory.mktemp("lasting"))
    store = open_store(f"sqlite:///{file}")
    yield World(store)
    store.close()


@given(plan=st.lists(words, min_size=12, max_size=12))
def test_every_resumption_comes_to_its_end(lasting, plan):
    """In any order of results: it ends, no attempt follows a recorded success, and none exceeds the limit."""
    world, store = lasting, Faulty(lasting.store)
    world.runs.clear()
    request_id, plan, recorded, runner = world.approved(context=1), iter(plan), [], world.runner(store=store)
    while world.row(request_id).state in UNFINISHED:
        word = next(plan, "succeed")
        store.broken = {"finish_resume"} if "unrecorded" in word else set()
        world.handler(does=outcome_of(word))
        with suppress(Crash, StoreUnavailable):
            runner.run_due()
        if "crash" in word:
            runner = world.runner(store=store)  # a new process, which knows nothing of the old one
        recorded.append(world.row(request_id).state)
        world.later(minutes=5)
    row = world.row(request_id)
    assert row.state is recorded[-1]
    assert not set(recorded[:-1]) - UNFINISHED
    assert len(world.runs) <= 5
    assert row.state is ResumptionState.SUCCEEDED or len(world.runs) == 5
    store.broken = set()
    world.later(days=1)
    assert [runner.run_due(), world.runner("node-2").run_due()] == [0, 0]
    assert world.row(request_id) == row


# ---- the thread


@pytest.fixture
def running():
    """Runners that are always stopped at the end."""
    runners = []
    yield lambda runner: (runners.append(runner), runner.start(), runner)[2]
    for runner in runners:
        assert runner.stop()


def test_the_thread_runs_what_is_due_when_it_is_poked(world, running):
    """Resumptions that were due at the start run, and later ones run as soon as the runner is poked."""
    world.handler()
    world.approved()
    store = Faulty(world.store)
    runner = running(world.runner(store=store, interval=timedelta(hours=1)))
    eventually(lambda: world.unfinished() == 0)
    world.approved()
    runner.poke()
    eventually(lambda: world.unfinished() == 0)
    assert len(world.runs) == 2
    time.sleep(0.1)
    assert store.calls["claim_resume"] <= 5  # two that found something, two or three that found nothing


def test_the_thread_looks_by_itself_now_and_then(world, running):
    """Resumptions without an event, of another node for example, are found at a moderate polling rate."""
    world.handler()
    store = Faulty(world.store)
    running(world.runner(store=store, interval=timedelta(milliseconds=50)))
    eventually(lambda: store.calls["claim_resume"] >= 2)
    world.approved()
    eventually(lambda: world.unfinished() == 0)
    before, begun = store.calls["claim_resume"], time.monotonic()
    time.sleep(0.3)
    looks = store.calls["claim_resume"] - before
    assert looks <= (time.monotonic() - begun) / 0.05 + 1


def test_the_thread_outlives_a_database_that_is_away(world, running, caplog):
    """The thread waits for the database, logs this once, and continues when it is back."""
    world.handler()
    world.approved()
    store = Faulty(world.store)
    store.broken = {"claim_resume"}
    with caplog.at_level(logging.WARNING):
        running(world.runner(store=store, interval=timedelta(milliseconds=20)))
        eventually(lambda: store.calls["claim_resume"] >= 5)
        assert world.runs == []
        store.broken = set()
        eventually(lambda: world.unfinished() == 0)
    assert ["connection refused" in record.getMessage() for record in caplog.records] == [True]


def test_the_thread_outlives_a_handler_that_exits(world, running, caplog):
    """A handler that calls sys.exit loses only its attempt."""
    lost = world.approved("exit")
    world.handler("exit", raising(SystemExit(1)))
    world.handler()
    runner = running(world.runner(interval=timedelta(milliseconds=20)))
    eventually(lambda: world.runs)
    kept = world.approved()
    runner.poke()
    eventually(lambda: world.row(kept).state is ResumptionState.SUCCEEDED)
    assert world.row(lost).state is ResumptionState.RUNNING
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [SystemExit]


def test_stopping_waits_for_the_attempt_and_starts_no_other(world):
    """The running attempt is finished and recorded, other due ones stay; a new start continues with them."""
    entered, leave = threading.Event(), threading.Event()
    world.handler(does=lambda context: (entered.set(), leave.wait(30)))
    [world.approved() for _ in range(2)]
    runner = world.runner()
    runner.start()
    runner.start()
    assert entered.wait(30)
    assert not runner.stop(timeout=0.05)
    leave.set()
    assert runner.stop()
    assert runner.stop()
    assert (len(world.runs), world.unfinished()) == (1, 1)
    assert not any(thread.name == "democrai-access-resumes" for thread in threading.enumerate())
    runner.start()
    eventually(lambda: world.unfinished() == 0)
    assert runner.stop()


def test_a_runner_that_never_started_can_be_stopped(world):
    """Stopping needs no start."""
    assert world.runner().stop()


# ---- across processes

CHILD = """
import sys, time
from datetime import UTC, datetime, timedelta
from democrai_sandbox.access.keyring import KeyFile
from democrai_sandbox.access.resumptions import ResumeRunner
from democrai_sandbox.access.encryption import Sealer
from democrai_sandbox.access.store import open_store

def handle(context, *, origin, subject, request_id):
    print("started", context["amount"], flush=True)
    time.sleep(600)

now = datetime.fromisoformat(sys.argv[3])
store, sealer = open_store(sys.argv[1]), Sealer(KeyFile(sys.argv[2]).ring)
ResumeRunner(store, sealer, {"go_on": handle}, node="child", clock=lambda: now).run_due()
"""


def test_an_attempt_whose_process_was_killed_is_made_again(tmp_path, database, kept_world):
    """After a kill with -9 inside the handler, another process takes over when the lease expires, once."""
    world, keys, program = kept_world, tmp_path / "keys", tmp_path / "child.py"
    program.write_text(CHILD)
    world.sealer = Sealer(KeyFile(keys).ring)
    request_id = world.approved(context={"amount": 7})
    child = Started(program, database, keys, world.now.isoformat())
    try:
        assert child.stdout.readline() == "started 7\n"
    finally:
        child.kill()
        assert child.finish(30) == -signal.SIGKILL
    world.handler()
    assert (world.row(request_id).state, world.row(request_id).attempts) == (ResumptionState.RUNNING, 1)
    assert world.runner().run_due() == 0
    world.later(minutes=5)
    assert world.runner().run_due() == 1
    assert [context for _, context, *_ in world.runs] == [{"amount": 7}]
    world.later(days=1)
    assert world.runner().run_due() == 0
    assert (world.row(request_id).state, world.row(request_id).attempts) == (ResumptionState.SUCCEEDED, 2)
    wanted = AuditFilter(actions=(AuditAction.RESUME_SUCCEEDED, AuditAction.RESUME_FAILED))
    records = world.store.audit(wanted, PageRequest()).items
    assert [(record.action, record.request_id) for record in records] == [(AuditAction.RESUME_SUCCEEDED, request_id)]
