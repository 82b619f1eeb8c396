"""Immutable values of the runtime's store."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from datetime import datetime


class TaskState(StrEnum):
    """State of a task."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"
    """The process that ran it has ended; its progress is kept."""

    @property
    def is_final(self) -> bool:
        """Whether the task has ended."""
        return self not in UNFINISHED


UNFINISHED = (TaskState.QUEUED, TaskState.RUNNING)


class TaskOrigin(NamedTuple):
    """Caller of a task. A scheduled task has no session."""

    user_id: str = ""
    organization_id: str = ""
    session_key: str = ""
    scheduled: bool = False


NOBODY = TaskOrigin()


class Progress(NamedTuple):
    """Latest progress report of a task."""

    fraction: float | None = None
    """From 0 to 1; None if unknown."""
    message: str = ""


class Failure(NamedTuple):
    """Reason why a task failed."""

    type: str
    message: str
    traceback: str = ""
    denial: str = ""
    """Code of a denial, such as ``sandbox_filesystem_denied``; empty for every other failure."""


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to run on a node."""

    id: str
    module: str
    name: str
    node: str
    params: Any = None
    """Plain JSON data."""
    origin: TaskOrigin = NOBODY


@dataclass(frozen=True, slots=True)
class Task:
    """Stored record of a task."""

    id: str
    module: str
    name: str
    origin: TaskOrigin
    state: TaskState
    params: Any
    progress: Progress
    result: Any
    failure: Failure | None
    node: str
    attempt: int
    cancel_requested: bool
    created_at: datetime
    started_at: datetime | None
    heartbeat_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Filter for tasks; empty fields match all."""

    module: str = ""
    name: str = ""
    node: str = ""
    user_id: str = ""
    session_key: str = ""
    states: tuple[TaskState, ...] = ()
    scheduled: bool | None = None
