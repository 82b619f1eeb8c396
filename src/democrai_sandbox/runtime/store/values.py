"""Tables of the runtimes, the immutable values in them, and their conversion to JSON and back within limits."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import CheckConstraint, Column, ForeignKey, Index, Integer, LargeBinary, MetaData, Table, Text

from democrai_sandbox.access.store.tables import AnyText, Moment, big_integer, columns, one_of, partial_index
from democrai_sandbox.manifests import McpTransport
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
    kind, message, trace, denial = failure
    return json.dumps(
        [kind[:LONGEST_NAME], message[:LONGEST_MESSAGE], trace[-LONGEST_TRACEBACK:], denial[:LONGEST_NAME]]
    )


def checked_name(value: object, pointer: str) -> str:
    """Return a name that can be stored and displayed, or refuse it."""
    if type(value) is not str or not value or len(value) > LONGEST_NAME:
        raise InvalidInputError.of(f"expected a text of 1 to {LONGEST_NAME} characters", pointer=pointer)
    return value


metadata = MetaData()
"""Metadata of the tables. Migrations create them; a test compares both."""


tasks = Table(
    "runtime_tasks",
    metadata,
    Column("id", AnyText, primary_key=True),
    *columns(AnyText, "module", "name", "user_id", "organization_id", "session_key"),
    Column("scheduled", Integer, nullable=False),
    Column("state", Text, nullable=False),
    # JSON in plain ASCII; empty if unset.
    *columns(Text, "params", "progress", "result", "failure"),
    Column("node", AnyText, nullable=False),
    *columns(Integer, "attempt", "cancel_requested"),
    Column("created_at", Moment, nullable=False),
    *columns(Moment, "started_at", "heartbeat_at", "finished_at", nullable=True),
    one_of("state", TaskState),
    CheckConstraint("(state IN ('queued', 'running')) = (finished_at IS NULL)", name="ck_finished"),
    Index("ix_runtime_tasks_module", "module", "id"),
    partial_index("ix_runtime_tasks_alive", "node", "heartbeat_at", where="finished_at IS NULL"),
    Index("ix_runtime_tasks_finished", "finished_at"),
    sqlite_strict=True,
)

schedules = Table(
    "runtime_schedules",
    metadata,
    Column("module", AnyText, primary_key=True),
    Column("name", AnyText, primary_key=True),
    Column("every", big_integer(), nullable=False),
    Column("next_at", Moment, nullable=False),
    sqlite_strict=True,
)

mcp_servers = Table(
    "runtime_mcp_servers",
    metadata,
    Column("name", AnyText, primary_key=True),
    Column("transport", Text, nullable=False),
    Column("endpoint_url", AnyText, nullable=False),
    *columns(Integer, "enabled", "timeout_ms"),
    *columns(Moment, "created_at", "updated_at"),
    one_of("transport", McpTransport),
    sqlite_strict=True,
)

engine_settings = Table(
    "runtime_engine_settings",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("name", AnyText, primary_key=True),
    Column("settings", Text, nullable=False),
    Column("updated_at", Moment, nullable=False),
    one_of("kind", ("engine", "extractor")),
    sqlite_strict=True,
)

models = Table(
    "runtime_models",
    metadata,
    Column("name", AnyText, primary_key=True),
    # JSON in plain ASCII, without the key.
    Column("settings", Text, nullable=False),
    # Encrypted with the key ring, and bound to the name and the endpoint.
    Column("api_key", LargeBinary),
    *columns(Moment, "created_at", "updated_at"),
    sqlite_strict=True,
)

shadow_runs = Table(
    "runtime_shadow_runs",
    metadata,
    Column("id", AnyText, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("name", AnyText, nullable=False),
    # Text of a manifest, as it was given.
    *columns(AnyText, "candidate", "started_by", "ended_by"),
    Column("started_at", Moment, nullable=False),
    Column("ended_at", Moment),
    # Counts beyond the stored findings.
    *columns(big_integer(), "other_denied", "other_allowed"),
    one_of("kind", ("module", "engine", "extractor")),
    partial_index("uq_runtime_shadow_runs_running", "kind", "name", where="ended_at IS NULL", unique=True),
    sqlite_strict=True,
)

shadow_findings = Table(
    "runtime_shadow_findings",
    metadata,
    Column("run_id", AnyText, ForeignKey("runtime_shadow_runs.id"), primary_key=True),
    # Hash of the finding's subject matter: targets are too long for an index.
    Column("digest", Text, primary_key=True),
    Column("effect", Text, nullable=False),
    *columns(AnyText, "resource_type", "operation", "target", "user_id"),
    # JSON in plain ASCII: the subjects, outermost first.
    Column("chain", Text, nullable=False),
    Column("count", big_integer(), nullable=False),
    *columns(Moment, "first_seen", "last_seen"),
    one_of("effect", ("denied", "allowed")),
    sqlite_strict=True,
)

is_unfinished = tasks.c.finished_at.is_(None)
