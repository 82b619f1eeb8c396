"""Services of the runtime that extension code calls through the SDK, their futures, and hidden callbacks."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
from contextvars import Context
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import GuardUsageError, NoRuntime, RuntimeServiceFailed, SandboxDenied, TamperDenied
from democrai_sandbox.guard import DenialRecorder, Door, door
from democrai_sandbox.guard.interface import RawView
from democrai_sandbox.policy import SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    AnyFuture = asyncio.Future[Any] | concurrent.futures.Future[Any]


def hidden(function: Callable[..., Any], owner: str = "runtime") -> Door:
    """Wrap a function so that guarded code can neither inspect nor call it."""

    def serve(view: object, *args: Any) -> Any:
        if view is not None:
            raise TamperDenied(owner)
        return function(*args)

    return door(serve)


_LOOK_SECONDS = 0.1
_log = logging.getLogger(__name__)


class SdkFutures:
    """Runs work on the host's loop. Callers on that loop get a future; callers on other threads wait.

    Loop, tasks and ``threading`` list their callbacks, whose objects and closures lead to the runtime; a ``Door``
    exposes nothing. Guarded code gets bare futures, which are polled for cancellation, and the work starts in a new
    Context on the host's loop.
    """

    def __init__(self, what: str, *, patience: float = 30.0) -> None:
        """Set the name of the service for errors, and the timeout in seconds for waiting threads."""
        self._what = what
        self._patience = patience
        self._loop: asyncio.AbstractEventLoop | None = None
        self._working: set[asyncio.Task[None]] = set()
        # The loop exposes its callbacks, and a task exposes its done callbacks.
        self._begin_there = hidden(self._begin)
        self._forget = hidden(self._working.discard)

    def open(self) -> None:
        """Use the running loop, which is the host's."""
        self._loop = asyncio.get_running_loop()

    def promise(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Return a future of the result; on another thread than the loop's, return the result itself."""
        loop = self._loop
        if loop is None or loop.is_closed():
            work.close()
            raise RuntimeServiceFailed(f"{self._what} is not available: the runtime is not running")
        if asyncio._get_running_loop() is loop:  # noqa: SLF001 - get_running_loop raises without a loop
            future: asyncio.Future[Any] = loop.create_future()
            self._begin(loop, future, work)
            return future
        waiting: concurrent.futures.Future[Any] = concurrent.futures.Future()
        loop.call_soon_threadsafe(self._begin_there, loop, waiting, work, context=Context())
        try:
            return waiting.result(self._patience)
        except TimeoutError:
            waiting.cancel()
            raise RuntimeServiceFailed(f"{self._what} did not answer within {self._patience:g} s") from None

    def _begin(self, loop: asyncio.AbstractEventLoop, future: AnyFuture, work: Coroutine[Any, Any, Any]) -> None:
        task = loop.create_task(self._settle(future, work), context=Context())
        self._working.add(task)
        task.add_done_callback(self._forget)

    async def _settle(self, future: AnyFuture, work: Coroutine[Any, Any, Any]) -> None:
        """Work until the task is done or the future is canceled; then set its result or error."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done() and not future.cancelled():
                await asyncio.wait({task}, timeout=_LOOK_SECONDS)
        finally:
            task.cancel()
        if future.done() or task.cancelled():
            future.cancel()
            return
        error = task.exception()
        if error is None:
            future.set_result(task.result())
        else:
            future.set_exception(self._bare(error))

    def _bare(self, error: BaseException) -> SandboxError:
        """Return an error without its frames; log an error that is not ours and replace it."""
        if not isinstance(error, SandboxError):
            _log.error("%s failed", self._what, exc_info=error)
            return RuntimeServiceFailed(f"{self._what} failed in the runtime")
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)


USED_PROGRAM = "used.program"
"""Reports a declared program to a test; served only in tests."""
_FOR_NARROWED = frozenset({"cancelled", "declare", "output.write", "places", "request", "tasks.progress", USED_PROGRAM})
"""Services that a narrowed guard may call, because they grant no access.

The other services use the declarations of the subject, and those are wider than the rights of code that narrowed
itself.
"""

_installed: Mapping[str, Door] = MappingProxyType({})


def call(name: str, *args: Any) -> Any:
    """Call a service of the runtime; plain data in, plain data or a future of it out."""
    try:
        found = _installed[name]
    except KeyError:
        raise NoRuntime(f"no runtime serves {name} in this process") from None
    return found(*args)


async def later(answer: Any) -> Any:
    """Return the answer of a service, direct or as a future, in a coroutine."""
    return await answer if asyncio.isfuture(answer) else answer


def now(answer: Any, instead: str) -> Any:
    """Return the answer of a service outside a coroutine. A worker process gives a completed future."""
    if not asyncio.isfuture(answer):
        return answer
    if answer.done():
        return answer.result()
    answer.cancel()
    raise GuardUsageError(f"this would block the event loop: {instead}")


def is_served(name: str) -> bool:
    """Return whether this process has a service."""
    return name in _installed


def install(services: Mapping[str, Callable[..., Any]], recorder: DenialRecorder | None = None) -> None:
    """Add services as ``function(view, *args)`` with the caller's ``RawView`` or None. Refused inside a guard.

    Denials by a service go to the recorder, like denials by the guard.
    """
    global _installed  # noqa: PLW0603 - one table for the process, replaced as a whole
    made = {name: door(_served(name, function, recorder)) for name, function in services.items()}
    _installed = MappingProxyType({**_installed, **made})


def _served(name: str, function: Callable[..., Any], recorder: DenialRecorder | None) -> Callable[..., Any]:
    """Wrap a service so that its failures do not expose objects of the host to the caller."""

    @functools.wraps(function)
    def serve(view: tuple[Any, ...] | None, *args: Any) -> Any:
        try:
            caller = None if view is None else RawView(*view)
            if caller is not None and caller.narrowed and name not in _FOR_NARROWED:
                kind, subject = caller.actor
                # Denied like what the service itself denies.
                raise TamperDenied(name, subject=subject, subject_kind=kind, chain=caller.labels)  # noqa: TRY301
            return function(caller, *args)
        except SandboxDenied as denial:
            record(recorder, denial)
            raise
        except SandboxError:
            raise
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:
                raise RuntimeServiceFailed(f"{name} was called with wrong arguments") from None
            _log.exception("service %s failed", name)
        except Exception:  # noqa: BLE001 - errors of the host stay in its log
            _log.exception("service %s failed", name)
        raise RuntimeServiceFailed(f"{name} failed in the runtime")

    return serve


def record(recorder: DenialRecorder | None, denial: SandboxDenied) -> None:
    """Record a denial, if a recorder exists."""
    if recorder is not None:
        try:
            recorder.record(denial)
        except Exception:  # noqa: BLE001 - a failing recorder must not change the denial
            _log.exception("the denial recorder failed")
