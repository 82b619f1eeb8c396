"""Due times of scheduled tasks. The node that advances the next time gets the current run: one node per period."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, delete, insert, select, update

from democrai_sandbox.policy import InvalidInputError

from . import task_rows
from .tables import is_unfinished, schedules, tasks

if TYPE_CHECKING:
    from datetime import datetime

    from .values import NewTask

SHORTEST = timedelta(seconds=0.05)
LONGEST = timedelta(days=3660)
_MICROSECOND = timedelta(microseconds=1)


def ensure(connection: Connection, module: str, name: str, every: timedelta, now: datetime) -> datetime:
    """Create or update a schedule; return its next due time. The first one is one period from now.

    An existing schedule keeps its time, so that restarts neither skip nor repeat a run, unless the period became
    shorter.
    """
    if not SHORTEST <= every <= LONGEST:
        raise InvalidInputError.of(f"expected a period from {SHORTEST} to {LONGEST}, got {every}", pointer="/every")
    row = connection.execute(select(schedules).where(*_same(module, name))).one_or_none()
    micros = every // _MICROSECOND
    if row is None:
        values = {"module": module, "name": name, "every": micros, "next_at": now + every}
        connection.execute(insert(schedules), values)
        return now + every
    due: datetime = min(row.next_at, now + every)
    if row.every != micros or due != row.next_at:
        connection.execute(update(schedules).where(*_same(module, name)).values(every=micros, next_at=due))
    return due


def claim(connection: Connection, task: NewTask, due: datetime, now: datetime) -> tuple[bool, datetime]:
    """Claim the run that was due at a time and store its task; return whether it was claimed, and the next time.

    A period is skipped while the last run is still running on any node. Periods that passed while all nodes were down
    become one run.
    """
    row = connection.execute(select(schedules).where(*_same(task.module, task.name))).one_or_none()
    if row is None or row.next_at != due or due > now:
        return False, now + LONGEST if row is None else row.next_at
    every = timedelta(microseconds=row.every)
    following: datetime = due + every * ((now - due) // every + 1)
    moved = (
        update(schedules).where(*_same(task.module, task.name), schedules.c.next_at == due).values(next_at=following)
    )
    if connection.execute(moved).rowcount != 1:
        return False, following
    running = select(tasks.c.id).where(
        is_unfinished, tasks.c.module == task.module, tasks.c.name == task.name, tasks.c.scheduled == 1
    )
    if connection.execute(running.limit(1)).first() is not None:
        return False, following
    task_rows.add(connection, task, now)
    return True, following


def next_time(connection: Connection, module: str, name: str) -> datetime | None:
    """Return the due time of a schedule; None if it does not exist."""
    found: datetime | None = connection.execute(select(schedules.c.next_at).where(*_same(module, name))).scalar()
    return found


def forget(connection: Connection, module: str, name: str) -> bool:
    """Remove a schedule that no module declares any more."""
    return connection.execute(delete(schedules).where(*_same(module, name))).rowcount == 1


def _same(module: str, name: str) -> tuple[Any, ...]:
    return (schedules.c.module == module, schedules.c.name == name)
