"""Worker as the host uses it: started on demand, kept warm, restarted after it ended or after its rights changed.

Everything belongs to the event loop that first uses it; only ``access_changed`` and ``hold_against`` are thread-safe.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from democrai_sandbox.errors import SpawnFailed
from democrai_sandbox.errors.extensions import WorkerBroken, WorkerFailed
from democrai_sandbox.policy import SandboxError

from .host_requests import KnownCaller, SharedCall
from .process import NOBODY, PlainStarter, SurfaceInfo, WorkerHostServices, WorkerSpec, WorkerStarter
from .session import WorkerSession

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from democrai_sandbox.policy.subjects import CallIdentity


class WorkerEvent(StrEnum):
    """Change of a worker's process that its host counts."""

    STARTED = "started"
    FAILED = "failed"
    """A start that failed, also because the import of its code failed."""
    RESTARTED = "restarted"
    """A start after a crash; counted as ``started`` too."""
    CRASHED = "crashed"
    """An end that was not planned: by itself, by a signal, or because the host had to kill it."""
    STOPPED_IDLE = "stopped_idle"


class CallOptions(TypedDict, total=False):
    """Options of a call."""

    ancestors: tuple[str, ...]
    """Call chain that the subject continues."""
    shared: SharedCall | None
    """Set for a shared asset that another subject calls."""
    timeout: float | None
    progress: Callable[..., Any] | None
    """Receives progress reports."""


class CallerOptions(CallOptions, total=False):
    """Options of a call, and its caller."""

    caller: CallIdentity


_MOST_FAILURES = 3
_FIRST_DELAY = 0.1
_LONGEST_DELAY = 5.0


@dataclass(eq=False, repr=False)
class WorkerHandle:
    """One subject in a separate process, which the first call or ``start`` starts."""

    spec: WorkerSpec
    _host: WorkerHostServices
    _: KW_ONLY
    starter: WorkerStarter | None = None
    on_end: Callable[[str], None] | None = None
    """Receives the label whenever a process has ended, so that the host can stop work for it."""
    rights: Callable[[], object] | None = None
    """Returns the permanent confinement of a process as a comparable value: a change starts a new process."""
    events: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Changes of the process, by label and event."""
    starts: int = field(default=0, init=False)
    """Number of processes started so far."""
    _crashed = False
    _held: object = field(default=None, init=False)
    _stale = False
    _unsure = False
    """Whether a decision changed since the rights were compared. The next call may come before the notification."""
    _retiring: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    """Replaced processes that finish their calls."""
    _old: set[WorkerSession] = field(default_factory=set, init=False)
    _used_at = 0.0
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False)
    _link: WorkerSession | None = field(default=None, init=False)
    _starting: asyncio.Task[WorkerSession] | None = field(default=None, init=False)
    _stopped = False
    _failures = 0
    _last: BaseException | None = field(default=None, init=False)
    _not_before = 0.0
    _context: contextvars.Context = field(default_factory=contextvars.copy_context, init=False)
    """Without the context of the first caller: the worker serves many others after that one."""

    # ---- lifecycle ---------------------------------------------------------------------------------------------------

    async def start(self) -> Mapping[tuple[str, str], SurfaceInfo]:
        """Start the process unless it runs, and return the surfaces that its code declares."""
        return (await self._ready()).surfaces

    async def stop(self) -> None:
        """Stop the process. Its calls fail; new ones are refused."""
        self._stopped = True
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait([self._starting])
        link, self._link = self._link, None
        stops = [*self._retiring] if link is None else [*self._retiring, asyncio.ensure_future(link.channel.stop())]
        for old in self._old:
            old.channel.end("the worker was stopped")
        if stops:
            await asyncio.wait(stops)

    def access_changed(self) -> None:
        """Make the guard in the worker ask again after a decision changed. Thread-safe."""
        self._unsure = self.rights is not None
        self._schedule(self._tell_change)

    def hold_against(self, access: str, imports: tuple[str, ...]) -> None:
        """Compare the subject with a candidate's rules, as JSON, now and after a restart. Thread-safe.

        The empty text ends it. The rights of the subject do not change.
        """
        self.spec = self.spec._replace(candidate_access=access, candidate_imports=imports)
        self._schedule(self._tell_candidate)

    def _schedule(self, work: Callable[[], None]) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(work)

    @property
    def pid(self) -> int | None:
        """Process id; None while no process runs."""
        return self._link.channel.pid if self._link is not None and not self._link.ended.done() else None

    @property
    def in_flight(self) -> int:
        """Number of pending calls."""
        return sum(len(link.flights) for link in (self._link, *self._old) if link is not None)

    @property
    def idle_since(self) -> float | None:
        """Time of the loop at which its process ended the last call; None without a process or with pending calls."""
        link = self._link
        return None if link is None or link.flights or link.ended.done() else self._used_at

    def rest(self) -> None:
        """Stop an idle process. The next call starts another one."""
        if self.idle_since is not None:
            self._count(WorkerEvent.STOPPED_IDLE)
            self._retire()

    # ---- calls -------------------------------------------------------------------------------------------------------

    async def call(
        self, kind: str, name: str, params: Mapping[str, Any] | None = None, **options: Unpack[CallerOptions]
    ) -> Any:
        """Call a surface and return its value; errors and denials are raised as in process."""
        link = self._link
        if link is None or link.is_unsettled or self._stale or self._unsure:
            link = await self._ready()
        try:
            return await link.call((kind, name), params or {}, *self._told(**options))
        finally:
            self._used_at = link.time()

    async def stream(
        self, kind: str, name: str, params: Mapping[str, Any] | None = None, **options: Unpack[CallerOptions]
    ) -> AsyncGenerator[Any, None]:
        """Yield the items of a surface. ``timeout`` applies to the wait for each item."""
        link = await self._ready()
        try:
            async with aclosing(link.stream((kind, name), params or {}, *self._told(**options))) as items:
                async for item in items:
                    yield item
        finally:
            self._used_at = link.time()

    def _told(
        self,
        *,
        caller: CallIdentity = NOBODY,
        ancestors: tuple[str, ...] = (),
        shared: SharedCall | None = None,
        timeout: float | None = None,
        progress: Callable[..., Any] | None = None,
    ) -> tuple[KnownCaller, float, Callable[..., Any] | None]:
        """Return the caller of a call, its timeout, and the receiver of its progress."""
        seconds = self.spec.call_timeout if timeout is None else timeout
        longest = self.spec.longest_call
        return KnownCaller(caller, ancestors, shared), seconds if longest is None else min(seconds, longest), progress

    # ---- starting ----------------------------------------------------------------------------------------------------

    async def _ready(self) -> WorkerSession:
        """Return a process that accepts calls."""
        while True:
            if self._stopped:
                raise WorkerFailed(self.spec.label, "the worker was stopped")
            self._compare()
            link = self._link
            if link is None or link.ended.done():
                link = await self._started()
            await link.settled.wait()
            self._compare()  # a decision may have changed during the start
            if not link.ended.done() and link is self._link:
                return link

    async def _started(self) -> WorkerSession:
        """Start the process once for all waiting callers; canceling one caller does not cancel the start."""
        if self._starting is None:
            loop = self._loop = asyncio.get_running_loop()
            if self._failures >= _MOST_FAILURES and loop.time() < self._not_before:
                why = f"the worker failed to start {self._failures} times; last error: {self._last}"
                wait = f"next attempt in {self._not_before - loop.time():.0f} s"
                raise WorkerBroken(self.spec.label, f"{why}; {wait}", output=getattr(self._last, "output", ""))
            self._starting = loop.create_task(self._start(), context=self._context.copy())
            self._starting.add_done_callback(_look_at)
        try:
            return await asyncio.shield(self._starting)
        except asyncio.CancelledError:
            if self._stopped:
                raise WorkerFailed(self.spec.label, "the worker was stopped") from None
            raise

    async def _start(self) -> WorkerSession:
        loop = asyncio.get_running_loop()
        try:
            await asyncio.sleep(max(0.0, self._not_before - loop.time()) if self._failures < _MOST_FAILURES else 0)
            # Before the start, so that decisions during the start count as changes.
            self._held, self._stale = self.rights() if self.rights is not None else None, False
            link = WorkerSession(self.spec, self._host)
            link.ended.add_done_callback(lambda _: self._gone(link))
            self.starts += 1
            await link.start(self.starter or PlainStarter())
        except SpawnFailed:  # no fault of the worker: it starts as soon as the spawn server is back
            self._count(WorkerEvent.FAILED)
            self._not_before = loop.time() + _FIRST_DELAY
            raise
        except SandboxError as error:
            self._count(WorkerEvent.FAILED)
            self._failures += 1
            self._last = error
            delay = min(_FIRST_DELAY * 2 ** (self._failures - 1), _LONGEST_DELAY)
            self._not_before = loop.time() + (self.spec.pause if self._failures >= _MOST_FAILURES else delay)
            raise
        finally:
            self._starting = None
        self._failures = 0
        self._count(WorkerEvent.STARTED)
        if self._crashed:
            self._count(WorkerEvent.RESTARTED)
            self._crashed = False
        self._link = link
        self._used_at = loop.time()
        self._tell_candidate()  # it may have changed during the start
        return link

    def _gone(self, link: WorkerSession) -> None:
        """Forget a process that has ended. If it never served a call, delay the next start a little."""
        if self._link is link:
            self._link = None
            self._crashed = True
            self._count(WorkerEvent.CRASHED)
            if not link.has_served:
                self._not_before = asyncio.get_running_loop().time() + _FIRST_DELAY
        self._old.discard(link)
        if self.on_end is not None and self._link is None:  # a successor may have started other work
            self.on_end(self.spec.label)

    def _count(self, event: WorkerEvent) -> None:
        self.events[self.spec.label, event.value] += 1

    def _tell_change(self) -> None:
        for link in (self._link, *self._old):
            if link is not None:
                link.changed()
        self._compare()

    def _tell_candidate(self) -> None:
        if self._link is not None:
            self._link.hold_against(self.spec.candidate_access, self.spec.candidate_imports)

    def _compare(self) -> None:
        """Check whether the process still has the current rights. The kernel cannot change them after confinement."""
        if self._unsure and self.rights is not None:
            self._unsure = False
            self._stale = self._stale or ((self._link or self._starting) is not None and self.rights() != self._held)
        if self._stale:
            self._retire()

    def _retire(self) -> None:
        """Replace the process: new calls go to its successor, and it ends after its running calls."""
        link = self._link
        if link is None:  # a starting process is replaced when it has started
            return
        self._link, self._stale = None, False
        if link.ended.done():
            return
        self._old.add(link)
        task = asyncio.get_running_loop().create_task(self._finish(link), context=self._context.copy())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)
        task.add_done_callback(_look_at)

    async def _finish(self, link: WorkerSession) -> None:
        await link.idle()
        await link.channel.stop()


def _look_at(task: asyncio.Task[Any]) -> None:
    """Retrieve a task's exception, in case all callers stopped waiting for it."""
    if not task.cancelled():
        task.exception()
