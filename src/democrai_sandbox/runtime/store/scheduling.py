"""When scheduled tasks are due. Whoever moves the time of the next one on has the present one: one node per period."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, delete, insert, select, update

from democrai_sandbox.policy import InvalidInputError

from . import tasking
from .tables import is_unfinished, schedules, tasks

if TYPE_CHECKING:
    from datetime import datetime

    from .values import NewTask

SHORTEST = timedelta(seconds=0.05)
LONGEST = timedelta(days=3660)
_MICROSECOND = timedelta(microseconds=1)


def ensure(connection: Connection, module: str, name: str, every: timedelta, now: datetime) -> datetime:
    """Have a schedule; return when it is due next. The first time is one period from now.

    One that is there keeps its time, so that restarts neither skip nor repeat a run, unless the period became shorter.
    """
    if not SHORTEST <= every <= LONGEST:
        raise InvalidInputError.of(f"a period is from {SHORTEST} to {LONGEST} long, got {every}", pointer="/every")
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
    """Take the run that was due at a time and put its task down; return whether it was got, and the next time.

    Nothing is started while the last run goes on, on whichever node: its period is left out. Periods that passed while
    no node was there are one run, not many.
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
    tasking.add(connection, task, now)
    return True, following


def next_time(connection: Connection, module: str, name: str) -> datetime | None:
    """Return when a schedule is due; None where there is none."""
    found: datetime | None = connection.execute(select(schedules.c.next_at).where(*_same(module, name))).scalar()
    return found


def forget(connection: Connection, module: str, name: str) -> bool:
    """Remove a schedule that no module declares any more."""
    return connection.execute(delete(schedules).where(*_same(module, name))).rowcount == 1


def _same(module: str, name: str) -> tuple[Any, ...]:
    return (schedules.c.module == module, schedules.c.name == name)
