"""Immutable values of the store of the runtimes, and their conversion to JSON and back within limits."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.policy import InvalidInputError

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


class TaskCaller(NamedTuple):
    """Caller of a task. A scheduled task has no session."""

    user_id: str = ""
    organization_id: str = ""
    session_key: str = ""
    scheduled: bool = False


NOBODY = TaskCaller()


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
    origin: TaskCaller = NOBODY


@dataclass(frozen=True, slots=True)
class Task:
    """Stored record of a task."""

    id: str
    module: str
    name: str
    origin: TaskCaller
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


LONGEST_PARAMS = 262_144
LONGEST_RESULT = 1_048_576
LONGEST_SETTINGS = 262_144
LONGEST_NAME = 200
LONGEST_MESSAGE = 2_000
LONGEST_TRACEBACK = 16_000


def to_json(value: object, *, longest: int, pointer: str) -> str:
    """Return JSON in ASCII; refuse values that are not JSON, and texts that are too long."""
    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInputError.of(f"the value cannot be stored as JSON: {error}", pointer=pointer) from None
    if len(text) > longest:
        message = f"the value has {len(text)} characters of JSON; at most {longest} are allowed"
        raise InvalidInputError.of(message, pointer=pointer)
    return text


def from_json(text: str) -> Any:
    """Return the stored value; None for the empty text."""
    return json.loads(text) if text else None


def progress_to_json(progress: Progress) -> str:
    """Return the JSON of a progress; its message is cut, because it is only displayed."""
    fraction: object = progress.fraction
    message: object = progress.message
    if fraction is not None and not (type(fraction) in (int, float) and 0 <= progress.fraction <= 1):  # type: ignore[operator]
        raise InvalidInputError.of("expected a number from 0 to 1, or None", pointer="/fraction")
    if not isinstance(message, str):
        raise InvalidInputError.of(f"expected a text, got {type(message).__name__}", pointer="/message")
    return json.dumps([fraction, message[:LONGEST_MESSAGE]])


def failure_to_json(failure: Failure) -> str:
    """Return the JSON of a failure; of a long traceback the end is kept, where the error is."""
    return json.dumps(
        [
            failure.type[:LONGEST_NAME],
            failure.message[:LONGEST_MESSAGE],
            failure.traceback[-LONGEST_TRACEBACK:],
            failure.denial[:LONGEST_NAME],
        ]
    )


def checked_name(value: object, pointer: str) -> str:
    """Return a name that can be stored and displayed, or refuse it."""
    if type(value) is not str or not value or len(value) > LONGEST_NAME:
        raise InvalidInputError.of(f"expected a text of 1 to {LONGEST_NAME} characters", pointer=pointer)
    return value
