"""Background work of a module: tasks that continue after the request, blocking work, and child processes.

``start`` and the other functions are for coroutines. Code in a thread, such as a function that ``run_blocking`` runs,
uses the same names in ``sdk.tasks.blocking``.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from democrai_sandbox.errors import InvalidInputError, RuntimeServiceFailed
from democrai_sandbox.runtime.calls.invocation import run_job
from democrai_sandbox.runtime.sdk_services import call, later, now

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from types import TracebackType

T = TypeVar("T")

_LONGEST_LINE = 1 << 20


# ---- tasks of the module ---------------------------------------------------------------------------------------------


class TaskStatus(NamedTuple):
    """Record of a task."""

    id: str
    name: str
    state: str
    """``queued``, ``running``, ``done``, ``failed``, ``cancelled``, or ``lost`` if its process ended during the task.
    """
    fraction: float | None
    message: str
    result: Any
    failure: dict[str, str] | None
    """``type``, ``message``, ``traceback`` and, for a denial, its code as ``denial``."""
    scheduled: bool
    attempt: int
    created_at: str
    started_at: str | None
    finished_at: str | None


async def start(name: str, params: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> str:  # noqa: ASYNC109 - the task's, not this call's
    """Start a task that this module declares with ``@sdk.task``; return its id.

    It continues after the request, for the same user, organization and session.
    """
    started: str = await later(call("tasks.start", name, dict(params or {}), timeout))
    return started


async def status(task_id: str) -> TaskStatus:
    """Return the record of a task of this module."""
    return TaskStatus(**await later(call("tasks.status", task_id)))


async def listed(*, name: str = "", states: Sequence[str] = (), limit: int = 100) -> tuple[TaskStatus, ...]:
    """Return the tasks of this module, the newest first."""
    rows = await later(call("tasks.list", name, list(states), limit))
    return tuple(TaskStatus(**row) for row in rows)


async def cancel(task_id: str) -> bool:
    """Cancel a task of this module; False if it has already ended."""
    return bool(await later(call("tasks.cancel", task_id)))


def progress(fraction: float | None = None, message: str = "") -> None:
    """Report the progress of the calling task: from 0 to 1, or None if unknown."""
    call("tasks.progress", fraction, message)


class _Blocking:
    """The same calls for code in a thread, which waits for the answer."""

    @staticmethod
    def start(name: str, params: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> str:
        """Start a task that this module declares; return its id."""
        return str(_settled(call("tasks.start", name, dict(params or {}), timeout)))

    @staticmethod
    def status(task_id: str) -> TaskStatus:
        """Return the record of a task of this module."""
        return TaskStatus(**_settled(call("tasks.status", task_id)))

    @staticmethod
    def listed(*, name: str = "", states: Sequence[str] = (), limit: int = 100) -> tuple[TaskStatus, ...]:
        """Return the tasks of this module, the newest first."""
        return tuple(TaskStatus(**row) for row in _settled(call("tasks.list", name, list(states), limit)))

    @staticmethod
    def cancel(task_id: str) -> bool:
        """Cancel a task of this module; False if it has already ended."""
        return bool(_settled(call("tasks.cancel", task_id)))


blocking = _Blocking()


def _settled(given: Any) -> Any:
    return now(given, "await the same call of sdk.tasks instead")


# ---- blocking work ---------------------------------------------------------------------------------------------------


async def run_blocking(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """Run a blocking function in a thread, under the same guard and for the same request; return its result.

    When the waiting task is canceled, the function continues, still guarded, and its result is dropped: a thread cannot
    be stopped from outside.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    work = partial(contextvars.copy_context().run, function, *args, **kwargs)
    # A separate thread, not one of the loop's pool, so that a blocked function delays no other.
    threading.Thread(target=run_job, args=(loop, future, work, (), int), name="run-blocking", daemon=True).start()
    return await future


# ---- children --------------------------------------------------------------------------------------------------------


class ChildResult(NamedTuple):
    """Result of a child."""

    returncode: int
    """Negative for the signal that ended it."""
    stdout: bytes
    stderr: bytes
    truncated: bool
    """Whether it wrote more than was stored."""
    timed_out: bool
    unenforced: tuple[str, ...] = ()
    """Rules of the subject that the kernel does not enforce for this program; empty if it enforces all of them."""

    @property
    def text(self) -> str:
        """Standard output as text."""
        return self.stdout.decode("utf-8", "replace")


async def run_subprocess(
    argv: Sequence[str],
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,  # noqa: ASYNC109 - the child's, which the runtime enforces
    input: str | bytes | None = None,  # noqa: A002 - as subprocess has it
    stdout_limit: int | None = None,
    stderr_limit: int | None = None,
) -> ChildResult:
    """Start a program and return its result. The supported way for extensions to start a child.

    Programs of the system and of the interpreter are permitted; all others need an ``execute`` rule or an approval.
    Processes that the child started end with it, and the child ends with the waiting task.
    """
    options = {"cwd": cwd, "timeout": timeout, "input": input, "env": None if env is None else dict(env)}
    limits = {"stdout_limit": stdout_limit, "stderr_limit": stderr_limit}
    return await _ended(call("children.start", _words(argv), {**options, **limits}))


class Subprocess:
    """A child whose output is read while it runs: ``async for line in stream_subprocess([...])``."""

    def __init__(self, argv: Sequence[str], options: dict[str, Any]) -> None:
        """Store the command; it starts with the first read, or with ``async with``."""
        self._order = (_words(argv), {**options, "stream": True})
        self._handle = ""
        self._rest = b""
        self._at_end = False
        self._result: ChildResult | None = None

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        """Return the next line of standard output, with its line end."""
        self._start()
        while (cut := self._rest.find(b"\n")) < 0 and len(self._rest) < _LONGEST_LINE and not self._at_end:
            self._rest += await self._read()
        if not self._rest:
            await self.wait()
            raise StopAsyncIteration
        end = min(cut + 1 if cut >= 0 else len(self._rest), _LONGEST_LINE)
        line, self._rest = self._rest[:end], self._rest[end:]
        return line

    async def wait(self) -> ChildResult:
        """Return its result; drop the unread output."""
        self._start()
        while not self._at_end:
            await self._read()
        self._rest = b""
        if self._result is None:
            self._result = await _ended(self._handle)
        return self._result

    def stop(self) -> None:
        """Stop it, with everything it started."""
        if self._handle and self._result is None:
            _stop(self._handle)

    def __del__(self) -> None:
        """Stop a child that can no longer be read, because the function that started it has returned."""
        with suppress(Exception):
            self.stop()

    async def _read(self) -> bytes:
        try:
            piece: bytes = await later(call("children.read", self._handle))
        except BaseException:  # canceled, or failed in the runtime
            self.stop()
            raise
        self._at_end = not piece
        return piece

    def _start(self) -> None:
        if not self._handle:
            self._handle = call("children.start", *self._order)


def stream_subprocess(
    argv: Sequence[str],
    *,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    input: str | bytes | None = None,  # noqa: A002 - as subprocess has it
    stderr_limit: int | None = None,
) -> Subprocess:
    """Return a child like ``run_subprocess`` whose output is read line by line; it waits for its reader."""
    options = {"cwd": cwd, "timeout": timeout, "input": input, "stderr_limit": stderr_limit}
    return Subprocess(argv, {**options, "env": None if env is None else dict(env)})


def _words(argv: Sequence[str]) -> list[str]:
    if isinstance(argv, str):
        raise InvalidInputError.of("expected a list of words, not a command line: no shell is used", pointer="/argv")
    return list(argv)


async def _ended(handle: str) -> ChildResult:
    try:
        *facts, failure = await later(call("children.wait", handle))
    except BaseException:  # canceled, or failed in the runtime
        _stop(handle)
        raise
    if failure:
        raise RuntimeServiceFailed(f"the program could not be run: {failure}")
    result = ChildResult(*facts)
    return result._replace(unenforced=tuple(result.unenforced))  # a list if it came from another process


def _stop(handle: str) -> None:
    with suppress(InvalidInputError):  # it has already ended
        call("children.stop", handle)
