"""Tasks and their schedules in the database. Every change of a task names the state it starts from.

The node that advances the due time of a schedule gets the current run, so one node runs it in each period.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, delete, func, insert, select, update

from democrai_sandbox.access.store.tables import from_row
from democrai_sandbox.errors import TaskUnknown
from democrai_sandbox.policy import InvalidInputError

from . import values
from .values import Failure, NewTask, Progress, Task, TaskCaller, TaskFilter, TaskState, is_unfinished, schedules, tasks

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Row

LARGEST_PAGE = 1000
SHORTEST_PERIOD = timedelta(seconds=0.05)
LONGEST_PERIOD = timedelta(days=3660)
_MICROSECOND = timedelta(microseconds=1)
_ALL = TaskFilter()
_GONE = Failure("ProcessGone", "the process that ran the task has ended")


def add(connection: Connection, task: NewTask, *, now: datetime) -> None:
    """Store a task before it runs, or refuse values that cannot be stored."""
    row = {
        "id": values.checked_name(task.id, "/id"),
        "module": values.checked_name(task.module, "/module"),
        "name": values.checked_name(task.name, "/name"),
        "node": values.checked_name(task.node, "/node"),
        **task.origin._asdict(),
        "scheduled": int(task.origin.scheduled),
        "state": TaskState.QUEUED.value,
        "params": values.to_json(task.params, longest=values.LONGEST_PARAMS, pointer="/params"),
        "progress": values.progress_to_json(Progress()),
        "result": "",
        "failure": "",
        "attempt": 1,
        "cancel_requested": 0,
        "created_at": now,
        "heartbeat_at": now,
    }
    connection.execute(insert(tasks), row)


def start(connection: Connection, task_id: str, *, node: str, now: datetime) -> bool:
    """Mark a queued task of this node as running; False if it was canceled or marked as lost meanwhile."""
    queued = (tasks.c.node == node, tasks.c.state == TaskState.QUEUED.value, tasks.c.cancel_requested == 0)
    return _change(connection, task_id, *queued, state=TaskState.RUNNING.value, started_at=now, heartbeat_at=now)


def say_progress(connection: Connection, task_id: str, progress: Progress, *, node: str, now: datetime) -> bool:
    """Store the progress of a running task."""
    running = (tasks.c.node == node, tasks.c.state == TaskState.RUNNING.value)
    return _change(connection, task_id, *running, progress=values.progress_to_json(progress), heartbeat_at=now)


def finish(
    connection: Connection,
    task_id: str,
    state: TaskState,
    *,
    node: str,
    now: datetime,
    result: Any = None,
    failure: Failure | None = None,
) -> bool:
    """Store the end of a task of this node; False if it has already ended.

    A task that was marked as lost because its node was silent for too long can still end.
    """
    if not state.is_final:
        raise InvalidInputError.of(f"{state.value} is not a final state of a task", pointer="/state")
    columns: dict[str, Any] = {"state": state.value, "finished_at": now}
    columns["failure"] = "" if failure is None else values.failure_to_json(failure)
    if state is TaskState.DONE:
        columns["result"] = values.to_json(result, longest=values.LONGEST_RESULT, pointer="/result")
    open_still = is_unfinished | (tasks.c.state == TaskState.LOST.value)
    return _change(connection, task_id, tasks.c.node == node, open_still, **columns)


def request_cancel(connection: Connection, task_id: str) -> bool:
    """Request the cancellation of a task on its node; False if it has ended."""
    return _change(connection, task_id, is_unfinished, cancel_requested=1)


def beat(connection: Connection, *, node: str, now: datetime) -> tuple[str, ...]:
    """Store the heartbeat of this node and its tasks; return the ids of tasks with a cancellation request."""
    mine = (tasks.c.node == node) & is_unfinished
    connection.execute(update(tasks).where(mine).values(heartbeat_at=now))
    wanted = select(tasks.c.id).where(mine, tasks.c.cancel_requested == 1)
    return tuple(connection.execute(wanted).scalars())


def is_any_gone(connection: Connection, *, silent_since: datetime, node: str) -> bool:
    """Return whether a task has to be marked as lost. A cheap check, because usually none has."""
    return connection.execute(select(tasks.c.id).where(_gone(silent_since, node)).limit(1)).first() is not None


def mark_lost(connection: Connection, *, silent_since: datetime, now: datetime, node: str) -> tuple[str, ...]:
    """Mark the tasks of nodes that were silent for too long, and all of ``node``, which has just restarted, as lost."""
    lost = (
        update(tasks)
        .where(_gone(silent_since, node))
        .values(state=TaskState.LOST.value, finished_at=now, failure=values.failure_to_json(_GONE))
    )
    return tuple(sorted(connection.execute(lost.returning(tasks.c.id)).scalars()))


def retry(connection: Connection, task_id: str, *, node: str, now: datetime) -> bool:
    """Queue a failed, canceled or lost task again, and increase its attempt counter."""
    again = (TaskState.FAILED.value, TaskState.CANCELLED.value, TaskState.LOST.value)
    fresh: dict[str, Any] = {"progress": values.progress_to_json(Progress()), "failure": "", "cancel_requested": 0}
    fresh |= {"started_at": None, "finished_at": None, "heartbeat_at": now}
    fresh |= {"state": TaskState.QUEUED.value, "node": node, "attempt": tasks.c.attempt + 1}
    return _change(connection, task_id, tasks.c.state.in_(again), **fresh)


def _change(connection: Connection, task_id: str, *still: ColumnElement[bool], **columns: Any) -> bool:
    """Change a task; False if one of the conditions is not true of it any more."""
    return connection.execute(update(tasks).where(tasks.c.id == task_id, *still).values(columns)).rowcount == 1


def find(connection: Connection, task_id: str) -> Task:
    """Return one task; raises ``TaskUnknown``."""
    row = connection.execute(select(tasks).where(tasks.c.id == task_id)).one_or_none()
    if row is None:
        raise TaskUnknown(f"unknown task {task_id}")
    return _task(row)


def listed(
    connection: Connection, wanted: TaskFilter = _ALL, *, limit: int = 100, before: str = ""
) -> tuple[Task, ...]:
    """List tasks, the newest first; ``before`` is the id of the last one seen."""
    if type(limit) is not int or not 1 <= limit <= LARGEST_PAGE:
        raise InvalidInputError.of(f"expected a page size from 1 to {LARGEST_PAGE}, got {limit!r}", pointer="/limit")
    query = select(tasks).order_by(tasks.c.id.desc()).limit(limit)
    for name in ("module", "name", "node", "user_id", "session_key"):
        if value := getattr(wanted, name):
            query = query.where(tasks.c[name] == value)
    if wanted.states:
        query = query.where(tasks.c.state.in_([str(state) for state in wanted.states]))
    if wanted.scheduled is not None:
        query = query.where(tasks.c.scheduled == int(wanted.scheduled))
    if before:
        query = query.where(tasks.c.id < before)
    return tuple(map(_task, connection.execute(query)))


def counts(connection: Connection) -> dict[TaskState, int]:
    """Count the stored tasks by state; all states are included."""
    found = connection.execute(select(tasks.c.state, func.count()).group_by(tasks.c.state))
    return {**dict.fromkeys(TaskState, 0), **{TaskState(state): number for state, number in found}}


def prune(connection: Connection, *, before: datetime) -> int:
    """Delete tasks that ended before a time; return their number."""
    return connection.execute(delete(tasks).where(tasks.c.finished_at < before)).rowcount


def _gone(silent_since: datetime, node: str) -> ColumnElement[bool]:
    gone = tasks.c.heartbeat_at < silent_since
    return is_unfinished & (gone | (tasks.c.node == node) if node else gone)


def _task(row: Row[Any]) -> Task:
    failure = values.from_json(row.failure)
    return from_row(
        Task,
        row,
        origin=TaskCaller(row.user_id, row.organization_id, row.session_key, bool(row.scheduled)),
        state=TaskState(row.state),
        params=values.from_json(row.params),
        progress=Progress(*values.from_json(row.progress)),
        result=values.from_json(row.result),
        failure=None if failure is None else Failure(*failure),
        cancel_requested=bool(row.cancel_requested),
    )


# ---- schedules


def ensure_schedule(connection: Connection, module: str, name: str, every: timedelta, *, now: datetime) -> datetime:
    """Create or update a schedule; return its next due time. The first one is one period from now.

    An existing schedule keeps its time, so that restarts neither skip nor repeat a run, unless the period became
    shorter.
    """
    if not SHORTEST_PERIOD <= every <= LONGEST_PERIOD:
        raise InvalidInputError.of(
            f"expected a period from {SHORTEST_PERIOD} to {LONGEST_PERIOD}, got {every}", pointer="/every"
        )
    row = connection.execute(select(schedules).where(*_schedule(module, name))).one_or_none()
    micros = every // _MICROSECOND
    if row is None:
        columns = {"module": module, "name": name, "every": micros, "next_at": now + every}
        connection.execute(insert(schedules), columns)
        return now + every
    due: datetime = min(row.next_at, now + every)
    if row.every != micros or due != row.next_at:
        connection.execute(update(schedules).where(*_schedule(module, name)).values(every=micros, next_at=due))
    return due


def claim_run(connection: Connection, task: NewTask, due: datetime, *, now: datetime) -> tuple[bool, datetime]:
    """Claim the run that was due at a time and store its task; return whether it was claimed, and the next time.

    A period is skipped while the last run is still running on any node. Periods that passed while all nodes were down
    become one run.
    """
    row = connection.execute(select(schedules).where(*_schedule(task.module, task.name))).one_or_none()
    if row is None or row.next_at != due or due > now:
        return False, now + LONGEST_PERIOD if row is None else row.next_at
    every = timedelta(microseconds=row.every)
    following: datetime = due + every * ((now - due) // every + 1)
    moved = (
        update(schedules)
        .where(*_schedule(task.module, task.name), schedules.c.next_at == due)
        .values(next_at=following)
    )
    if connection.execute(moved).rowcount != 1:
        return False, following
    running = select(tasks.c.id).where(
        is_unfinished, tasks.c.module == task.module, tasks.c.name == task.name, tasks.c.scheduled == 1
    )
    if connection.execute(running.limit(1)).first() is not None:
        return False, following
    add(connection, task, now=now)
    return True, following


def next_time(connection: Connection, module: str, name: str) -> datetime | None:
    """Return the due time of a schedule; None if it does not exist."""
    found: datetime | None = connection.execute(select(schedules.c.next_at).where(*_schedule(module, name))).scalar()
    return found


def forget_schedule(connection: Connection, module: str, name: str) -> bool:
    """Remove a schedule that no module declares any more."""
    return connection.execute(delete(schedules).where(*_schedule(module, name))).rowcount == 1


def _schedule(module: str, name: str) -> tuple[Any, ...]:
    return (schedules.c.module == module, schedules.c.name == name)
