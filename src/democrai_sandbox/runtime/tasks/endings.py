"""How a task ended, as it is recorded."""

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
    """A final state, with the result or what went wrong."""

    state: TaskState
    result: Any = None
    failure: Failure | None = None


def ending_of(job: Job, work: asyncio.Task[Any]) -> Ending:
    """Return how the call of a task's function ended. A denial, a failure of its own and of ours are told apart."""
    if not work.done():
        return cancelled(f"{job.reason}; it did not give in and was abandoned")
    if work.cancelled():
        return cancelled(job.reason or "it cancelled itself")
    error = work.exception()
    if error is None:
        return Ending(TaskState.DONE, work.result())
    return failed(error)


def failed(error: BaseException) -> Ending:
    """Return the end of a task that came to an error."""
    return Ending(TaskState.FAILED, failure=_failure(error))


def cancelled(reason: str) -> Ending:
    """Return the end of a task that somebody ended."""
    return Ending(TaskState.CANCELLED, failure=Failure("Cancelled", reason))


def unstorable(error: SandboxError) -> Ending:
    """Return the end of a task whose result cannot be kept."""
    return Ending(TaskState.FAILED, failure=Failure(type(error).__name__, f"the result cannot be kept: {error}"))


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
