"""Recorded end of a task."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.errors import ExtensionFailed, SandboxDenied
from democrai_sandbox.policy import SandboxError
from democrai_sandbox.runtime.store import Failure, TaskState

if TYPE_CHECKING:
    import asyncio

    from .jobs import Job

_log = logging.getLogger(__name__)


class Ending(NamedTuple):
    """Final state, with the result or the failure."""

    state: TaskState
    result: Any = None
    failure: Failure | None = None


def ending_of(job: Job, work: asyncio.Task[Any]) -> Ending:
    """Return the end of a task's call. Denials, failures of the task and failures of the runtime are distinguished."""
    if not work.done():
        return cancelled(f"{job.reason}; it did not stop and was abandoned")
    if work.cancelled():
        return cancelled(job.reason or "it canceled itself")
    error = work.exception()
    if error is None:
        return Ending(TaskState.DONE, work.result())
    return failed(error)


def failed(error: BaseException) -> Ending:
    """Return the end of a task that raised an error."""
    return Ending(TaskState.FAILED, failure=_failure(error))


def cancelled(reason: str) -> Ending:
    """Return the end of a canceled task."""
    return Ending(TaskState.CANCELLED, failure=Failure("Cancelled", reason))


def unstorable(error: SandboxError) -> Ending:
    """Return the end of a task whose result cannot be stored."""
    return Ending(TaskState.FAILED, failure=Failure(type(error).__name__, f"the result cannot be stored: {error}"))


def _failure(error: BaseException) -> Failure:
    name = type(error).__name__
    if isinstance(error, SandboxDenied):
        return Failure(name, str(error), error.diagnostics(), error.code)
    if isinstance(error, ExtensionFailed):
        return Failure(error.kind or name, error.message, error.traceback)
    if isinstance(error, SandboxError):
        return Failure(name, str(error), error.diagnostics())
    _log.error("a task failed in the runtime", exc_info=error)
    return Failure("RuntimeServiceFailed", "the task failed in the runtime; the log has the details")
