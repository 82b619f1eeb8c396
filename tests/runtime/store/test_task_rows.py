"""Record of tasks: every state is reached only from the right one, and no record is lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from democrai_sandbox.access.store import open_store
from democrai_sandbox.errors import InvalidInputError, TaskUnknown
from democrai_sandbox.runtime.store import Failure, NewTask, Progress, TaskCaller, TaskFilter, TaskState
from tests.access.store.samples import NOW, at, sql
from tests.services.rows import rows

UMA = TaskCaller("uma", "acme", "s-1")


def new(task_id="t-1", *, node="n-1", module="demo", name="index", params=None, origin=UMA):
    return NewTask(task_id, module, name, node, params, origin)


def places(refused):
    """Return the locations that a refusal names."""
    return [problem.pointer for problem in refused.value.problems]


def test_a_task_goes_from_queued_to_done(store, other):
    """Another node sees each step."""
    store.add_task(new(params={"pages": [1, "\0\udcff\U0001f600"]}), now=NOW)
    seen = other.task("t-1")
    assert (seen.state, seen.origin, seen.params) == ("queued", UMA, {"pages": [1, "\0\udcff\U0001f600"]})
    assert (seen.node, seen.attempt, seen.created_at, seen.started_at) == ("n-1", 1, NOW, None)
    assert store.start_task("t-1", node="n-1", now=at(1))
    assert store.say_progress("t-1", Progress(0.5, "half"), node="n-1", now=at(2))
    seen = other.task("t-1")
    assert (seen.state, seen.started_at, seen.heartbeat_at, seen.progress) == ("running", at(1), at(2), (0.5, "half"))
    assert store.finish_task("t-1", TaskState.DONE, node="n-1", now=at(3), result={"found": 7})
    seen = other.task("t-1")
    assert (seen.state, seen.result, seen.failure, seen.finished_at) == ("done", {"found": 7}, None, at(3))
    assert seen.state.is_final


def test_what_has_ended_stays_as_it_ended(store):
    """No start, no progress, no other end, no cancel."""
    store.add_task(new(), now=NOW)
    failure = Failure("ValueError", "no", "Traceback ...", "sandbox_filesystem_denied")
    assert store.finish_task("t-1", TaskState.FAILED, node="n-1", now=at(1), failure=failure)
    assert not store.start_task("t-1", node="n-1", now=at(2))
    assert not store.say_progress("t-1", Progress(1.0), node="n-1", now=at(2))
    assert not store.finish_task("t-1", TaskState.DONE, node="n-1", now=at(2), result=1)
    assert not store.request_cancel("t-1")
    assert store.task("t-1").failure == failure


def test_only_the_node_of_a_task_says_how_it_is(store):
    """Another node neither starts nor ends it."""
    store.add_task(new(), now=NOW)
    assert not store.start_task("t-1", node="n-2", now=NOW)
    assert not store.finish_task("t-1", TaskState.DONE, node="n-2", now=NOW)
    with pytest.raises(InvalidInputError) as refused:
        store.finish_task("t-1", TaskState.RUNNING, node="n-1", now=NOW)
    assert places(refused) == ["/state"]


def test_a_cancelled_task_is_not_started(store, other):
    """From any node: the owner of the task learns of it with its next heartbeat."""
    store.add_task(new(), now=NOW)
    store.add_task(new("t-2"), now=NOW)
    assert other.request_cancel("t-1")
    assert not store.start_task("t-1", node="n-1", now=at(1))
    assert store.beat(node="n-1", now=at(2)) == ("t-1",)
    assert store.beat(node="n-2", now=at(2)) == ()
    assert store.task("t-2").heartbeat_at == at(2)


def test_tasks_of_a_silent_node_are_lost_but_not_forgotten(store, other):
    """Their progress until then is kept; tasks of living nodes continue."""
    for task_id, node in (("t-1", "dead"), ("t-2", "dead"), ("t-3", "alive"), ("t-4", "again")):
        store.add_task(new(task_id, node=node), now=NOW)
    store.start_task("t-1", node="dead", now=at(1))
    store.say_progress("t-1", Progress(0.25, "a quarter"), node="dead", now=at(2))
    store.beat(node="alive", now=at(100))
    store.beat(node="again", now=at(100))
    assert other.mark_lost(silent_since=at(60), now=at(101), node="again") == ("t-1", "t-2", "t-4")
    lost = other.task("t-1")
    assert (lost.state, lost.progress, lost.finished_at) == ("lost", (0.25, "a quarter"), at(101))
    assert lost.failure.type == "ProcessGone"
    assert other.task("t-3").state == "queued"
    assert other.mark_lost(silent_since=at(60), now=at(102)) == ()


def test_a_task_that_was_taken_for_lost_and_ends_after_all_has_ended(store):
    """A machine that slept for an hour did not fail."""
    store.add_task(new(), now=NOW)
    store.start_task("t-1", node="n-1", now=NOW)
    store.mark_lost(silent_since=at(60), now=at(61))
    assert store.finish_task("t-1", TaskState.DONE, node="n-1", now=at(3600), result=1)
    assert (store.task("t-1").state, store.task("t-1").failure) == ("done", None)


def test_what_failed_can_be_tried_again(store):
    """The attempts are counted; finished or running tasks are not repeated."""
    store.add_task(new(), now=NOW)
    assert not store.retry_task("t-1", node="n-2", now=NOW)
    store.finish_task("t-1", TaskState.FAILED, node="n-1", now=NOW, failure=Failure("E", "m"))
    assert store.retry_task("t-1", node="n-2", now=at(5))
    again = store.task("t-1")
    assert (again.state, again.attempt, again.node, again.failure) == ("queued", 2, "n-2", None)
    assert store.start_task("t-1", node="n-2", now=at(6))
    store.finish_task("t-1", TaskState.DONE, node="n-2", now=at(7))
    assert not store.retry_task("t-1", node="n-2", now=at(8))


@rows(
    ("changes", "place", "value"),
    [
        ({"params": object()}, "/params", "JSON"),
        ({"params": b"bytes"}, "/params", "JSON"),
        ({"params": float("nan")}, "/params", "JSON"),
        ({"params": "x" * 300_000}, "/params", "262144"),
        ({"module": ""}, "/module", "200"),
        ({"name": "x" * 201}, "/name", "200"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_anything_is_written(store, changes, place, value):
    """Refusal with its location."""
    with pytest.raises(InvalidInputError, match=value) as refused:
        store.add_task(new(**changes), now=NOW)
    assert places(refused) == [place]
    assert store.tasks() == ()


def test_results_and_progress_have_limits(store):
    """A result that is too long is refused, a message is cut, and the end of a traceback is kept."""
    store.add_task(new(), now=NOW)
    store.start_task("t-1", node="n-1", now=NOW)
    for wrong in (1.5, -1, float("nan"), "half", True):
        with pytest.raises(InvalidInputError) as refused:
            store.say_progress("t-1", Progress(wrong), node="n-1", now=NOW)
        assert places(refused) == ["/fraction"]
    store.say_progress("t-1", Progress(None, "m" * 9000), node="n-1", now=NOW)
    assert len(store.task("t-1").progress.message) == 2000
    with pytest.raises(InvalidInputError, match="1048576") as refused:
        store.finish_task("t-1", TaskState.DONE, node="n-1", now=NOW, result="x" * 1_100_000)
    assert places(refused) == ["/result"]
    failure = Failure("E" * 900, "m" * 9000, "first" + "t" * 20000 + "last")
    store.finish_task("t-1", TaskState.FAILED, node="n-1", now=NOW, failure=failure)
    kept = store.task("t-1").failure
    assert (len(kept.type), len(kept.message), len(kept.traceback)) == (200, 2000, 16000)
    assert kept.traceback.endswith("last")


def test_tasks_are_listed_in_pages_the_newest_first(store):
    """By module, state, user and schedule."""
    for number in range(7):
        origin = TaskCaller("ada", scheduled=True) if number % 2 else UMA
        store.add_task(new(f"t-{number}", module="demo" if number < 5 else "other", origin=origin), now=at(number))
    store.finish_task("t-1", TaskState.DONE, node="n-1", now=at(9))
    ids = lambda wanted, **more: [task.id for task in store.tasks(wanted, **more)]
    assert ids(TaskFilter(), limit=3) == ["t-6", "t-5", "t-4"]
    assert ids(TaskFilter(), limit=3, before="t-4") == ["t-3", "t-2", "t-1"]
    assert ids(TaskFilter(module="other")) == ["t-6", "t-5"]
    assert ids(TaskFilter(states=(TaskState.DONE,))) == ["t-1"]
    assert ids(TaskFilter(user_id="ada", scheduled=True, module="demo")) == ["t-3", "t-1"]
    assert ids(TaskFilter(session_key="s-1", name="index", node="n-1"), limit=1) == ["t-6"]
    with pytest.raises(InvalidInputError, match="1000") as refused:
        store.tasks(limit=0)
    assert places(refused) == ["/limit"]
    with pytest.raises(TaskUnknown):
        store.task("nothing")


def test_old_records_are_removed_and_unfinished_ones_stay(store):
    """By the time of their end."""
    for task_id in ("t-1", "t-2", "t-3"):
        store.add_task(new(task_id), now=NOW)
    store.finish_task("t-1", TaskState.DONE, node="n-1", now=at(10))
    store.finish_task("t-2", TaskState.DONE, node="n-1", now=at(20))
    assert store.prune_tasks(before=at(15)) == 1
    assert [task.id for task in store.tasks()] == ["t-3", "t-2"]


def test_a_schedule_is_due_one_period_from_its_beginning_and_survives_restarts(store, other):
    """A shorter period applies immediately, a longer one from the next run on."""
    hour = timedelta(hours=1)
    assert store.ensure_schedule("demo", "nightly", hour, now=NOW) == NOW + hour
    assert other.ensure_schedule("demo", "nightly", hour, now=at(600)) == NOW + hour
    assert other.ensure_schedule("demo", "nightly", timedelta(minutes=5), now=at(600)) == at(900)
    assert store.next_time("demo", "nightly") == at(900)
    assert other.ensure_schedule("demo", "nightly", hour, now=at(601)) == at(900)
    for wrong in (timedelta(0), timedelta(seconds=-1), timedelta(days=9999)):
        with pytest.raises(InvalidInputError) as refused:
            store.ensure_schedule("demo", "nightly", wrong, now=NOW)
        assert places(refused) == ["/every"]
    assert store.forget_schedule("demo", "nightly")
    assert store.next_time("demo", "nightly") is None


def test_one_of_many_nodes_gets_a_run(store, url):
    """The one that advances the time; the task is stored in the same transaction."""
    due = store.ensure_schedule("demo", "nightly", timedelta(minutes=1), now=NOW)
    scheduled = TaskCaller(scheduled=True)

    def claim(number):
        task = NewTask(f"t-{number}", "demo", "nightly", f"n-{number}", None, scheduled)
        return store.claim_run(task, due, now=at(61))

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(claim, range(16)))
    assert [got for got, _ in answers].count(True) == 1
    assert {following for _, following in answers} == {at(120)}
    assert len(store.tasks()) == 1
    assert sql(url, "SELECT count(*) FROM runtime_tasks WHERE scheduled = 1") == [(1,)]


def test_a_run_that_goes_on_leaves_the_next_one_out_and_missed_ones_are_one(store):
    """On any node."""
    due = store.ensure_schedule("demo", "nightly", timedelta(minutes=1), now=NOW)
    task = lambda name: NewTask(name, "demo", "nightly", "n-1", None, TaskCaller(scheduled=True))
    assert store.claim_run(task("t-0"), due, now=at(59)) == (False, at(60))
    assert store.claim_run(task("t-1"), due, now=at(1000)) == (True, at(1020))
    assert store.claim_run(task("t-2"), at(1020), now=at(1020)) == (False, at(1080))
    store.finish_task("t-1", TaskState.DONE, node="n-1", now=at(1050))
    assert store.claim_run(task("t-3"), at(1080), now=at(1081)) == (True, at(1140))
    assert [task.id for task in store.tasks()] == ["t-3", "t-1"]


def test_the_store_of_decisions_lives_in_the_same_database(store, url):
    """Side by side."""
    open_store(url).close()
    store.add_task(new(), now=NOW)
    assert store.task("t-1").id == "t-1"
