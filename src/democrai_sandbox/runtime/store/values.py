"""What the runtime's store keeps, as immutable values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from datetime import datetime


class TaskState(StrEnum):
    """How far a task has come."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"
    """The process that had it is gone; what it had said until then is kept."""

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen to the task by itself."""
        return self not in UNFINISHED


UNFINISHED = (TaskState.QUEUED, TaskState.RUNNING)


class TaskOrigin(NamedTuple):
    """On whose behalf a task runs. A scheduled one has no session."""

    user_id: str = ""
    organization_id: str = ""
    session_key: str = ""
    scheduled: bool = False


NOBODY = TaskOrigin()


class Progress(NamedTuple):
    """What a task last said about how far it is."""

    fraction: float | None = None
    """From 0 to 1; None where it cannot tell."""
    message: str = ""


class Failure(NamedTuple):
    """Why a task came to nothing."""

    type: str
    message: str
    traceback: str = ""
    denial: str = ""
    """The code of a denial, such as ``sandbox_filesystem_denied``; empty for every other failure."""


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task that is to run on a node."""

    id: str
    module: str
    name: str
    node: str
    params: Any = None
    """Plain data that JSON can hold."""
    origin: TaskOrigin = NOBODY


@dataclass(frozen=True, slots=True)
class Task:
    """The record of a task."""

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
    """Which tasks are wanted; what is empty excludes none."""

    module: str = ""
    name: str = ""
    node: str = ""
    user_id: str = ""
    session_key: str = ""
    states: tuple[TaskState, ...] = ()
    scheduled: bool | None = None
