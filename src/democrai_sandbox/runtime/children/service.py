"""Service behind ``sdk.tasks.run_subprocess``: starts children for callers, and reports how they ended.

A caller gets a handle that only it can use. Results are plain data, or a future on the host's loop.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import threading
import weakref
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from democrai_sandbox._util.worker_thread import WorkerThread
from democrai_sandbox.errors import InvalidInputError, RuntimeServiceFailed
from democrai_sandbox.runtime.child_process import child_handle

from .supervision import ChildLimits, ChildOutput, FinishedChild, Supervision

if TYPE_CHECKING:
    from collections.abc import Callable

    from democrai_sandbox.guard.interface import RawView

    from .launch_request import ChildLauncher, LaunchRequest, LaunchRequests

UNCONFINED = ("files, network and system calls: the kernel does not confine this program to the rules of its subject",)
"""Reported with the result of each program that starts without the spawn server."""


def unconfined_because(reason: str) -> tuple[str, ...]:
    """Return the restrictions that are missing without the spawn server, with the reason and the fix."""
    return tuple(f"{text}: {reason}" if reason else text for text in UNCONFINED)


class PopenChild:
    """A child of this process. Descriptors are closed, the umask is the host's."""

    timed_out = False
    failure = ""

    def __init__(self, order: LaunchRequest, unenforced: tuple[str, ...] = UNCONFINED) -> None:
        """Start it in a new session, so that its group can be signaled separately; may raise ``OSError``."""
        self.unenforced = unenforced
        self._process = subprocess.Popen(  # noqa: S603 - program and environment were checked, without a shell
            order.argv,
            executable=order.program,
            env=dict(order.environment),
            cwd=order.folder,
            stdin=subprocess.PIPE if order.with_input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            close_fds=True,
            start_new_session=True,
        )
        self.pid = self._process.pid
        try:
            self.ended = child_handle(self.pid)
            self.stdin, self.stdout, self.stderr = self._take_pipes()
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    def _take_pipes(self) -> tuple[int | None, int, int]:
        """Return duplicated descriptors, which the reader closes independently of the Popen object."""
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        stdin, stdout, stderr = (None if pipe is None else os.dup(pipe.fileno()) for pipe in pipes)
        for pipe in pipes:
            if pipe is not None:
                pipe.close()
        if stdout is None or stderr is None:  # pragma: no cover - asked for above
            raise OSError("the child has no output")
        return stdin, stdout, stderr

    def signal_group(self, number: int) -> None:
        """Send a signal; an ended child that was not reaped keeps its pid, so the pid cannot be reused."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            # A process of the group runs as another user, so the kernel refused the whole call.
            os.kill(self.pid, number)

    def is_revoked(self) -> bool:
        """Return False, because the kernel does not hold it to approvals."""
        return False

    def collect(self) -> int:
        """Return the exit status."""
        os.close(self.ended)
        return self._process.wait()


_BUFFERED = 1 << 18
"""Bytes buffered for a reader before the child has to wait."""


class Stream(ChildOutput):
    """Output of a child, until its reader takes it."""

    def __init__(self, arrived: Callable[[], None]) -> None:
        super().__init__(0)
        self._arrived = arrived
        self._lock = threading.Lock()
        self._chunks: deque[bytes] = deque()
        self._size = 0

    def add(self, chunk: bytes) -> None:
        """Add a chunk of output."""
        with self._lock:
            self._chunks.append(chunk)
            self._size += len(chunk)
        self._arrived()

    def is_full(self) -> bool:
        """Return whether the reader is behind."""
        return self._size >= _BUFFERED

    def take(self) -> bytes:
        """Return and remove all buffered output."""
        with self._lock:
            data = b"".join(self._chunks)
            self._chunks.clear()
            self._size = 0
        return data


class RunningChild:
    """An ordered child. ``run`` is its thread; all other methods are thread-safe."""

    def __init__(
        self,
        owner: tuple[str, ...],
        order: LaunchRequest,
        limits: ChildLimits,
        launcher: ChildLauncher,
        *,
        given: bytes,
        wanted: Callable[[], bool],
    ) -> None:
        self.owner = owner
        self.forgotten = False
        """Whether no caller will ask for it any more."""
        self._stream = Stream(self._tell) if limits.stream else None
        self._news = threading.Condition()
        self._waiting: list[Callable[[], object]] = []
        self._finished: FinishedChild | None = None
        self._wanted = wanted
        self._supervision = Supervision(order, limits, launcher, given=given, stream=self._stream, wanted=wanted)

    def run(self) -> None:
        """Run the child on this thread."""
        try:
            finished = self._supervision.run()
        except Exception as error:  # noqa: BLE001 - waiting callers need an answer in any case
            finished = FinishedChild(failure=f"supervision of the program failed: {type(error).__name__}: {error}")
        self._finished = finished
        self.forgotten = self.forgotten or not self._wanted()
        self._tell()

    def is_abandoned(self) -> bool:
        """Return whether it has ended, and its caller is gone."""
        return self._finished is not None and not self._wanted()

    def stop(self) -> None:
        """Stop it, with everything it started."""
        self._supervision.stop()

    def wait_for_end(self, patience: float) -> bool:
        """Wait until nothing of it is left; return whether that is so."""
        with self._news:
            return self._news.wait_for(lambda: self._finished is not None, patience)

    def ended(self) -> tuple[Any, ...] | None:
        """Return its end as plain data; None while it runs."""
        return None if self._finished is None else tuple(self._finished)

    def next_piece(self) -> bytes | None:
        """Return its output since the last call, empty at the end; None while no output is available."""
        if self._stream is None:
            return b""
        at_end = self._finished is not None  # checked first: nothing is added after the end
        piece = self._stream.take()
        if piece:
            self._supervision.nudge()
        return piece if piece or at_end else None

    def when(self, ready: Callable[[], Any], loop: asyncio.AbstractEventLoop | None) -> Any:
        """Return the first result of ``ready`` that is not None: on a loop as a future, elsewhere after waiting."""
        if loop is None:
            with self._news:
                while (answer := ready()) is None:
                    self._news.wait()
            return answer
        future = loop.create_future()

        def look() -> None:
            if future.done():
                return
            with self._news:
                answer = ready()
                if answer is None:
                    self._waiting.append(lambda: loop.call_soon_threadsafe(look))
            if answer is not None:
                future.set_result(answer)

        look()
        return future

    def _tell(self) -> None:
        with self._news:
            waiting, self._waiting = self._waiting, []
            self._news.notify_all()
        for each in waiting:
            with suppress(RuntimeError):  # the loop is closed
                each()


class ChildService:
    """Starts children for callers of the SDK."""

    def __init__(self, orders: LaunchRequests, launcher: ChildLauncher = PopenChild) -> None:
        self._orders = orders
        self._launcher = launcher
        self._running: dict[str, RunningChild] = {}
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def open(self) -> None:
        """Serve callers on the running loop, which is the host's."""
        self._loop = asyncio.get_running_loop()

    def services(self) -> dict[str, Callable[..., Any]]:
        """Return the services to install."""
        return {
            "children.start": self.start,
            "children.wait": self.wait,
            "children.read": self.read,
            "children.stop": self.stop,
        }

    # ---- services

    def start(self, view: RawView | None, argv: object, options: object) -> str:
        """Start a program for a caller; return the handle. It is stopped at the latest with the calling task."""
        loop = self._own_loop()
        task = None if loop is None else asyncio.current_task(loop)
        # Polled, because guarded code can see and call the callbacks of a task.
        owner = weakref.ref(task) if type(task) is asyncio.Task else None

        def is_wanted() -> bool:
            waiting = None if owner is None else owner()
            return owner is None or (waiting is not None and not waiting.done())

        return self._start(view, argv, options, is_wanted)

    def start_apart(self, view: RawView | None, argv: object, options: object) -> str:
        """Start a program for a caller in a worker process, without a task of this process."""
        return self._start(view, argv, options, lambda: True)

    def _start(self, view: RawView | None, argv: object, options: object, wanted: Callable[[], bool]) -> str:
        order, limits, given = self._orders.make(view, argv, options)
        running = RunningChild(_owner(view), order, limits, self._launcher, given=given, wanted=wanted)
        handle = secrets.token_hex(16)
        with self._lock:
            self._check_room(running.owner)
            self._running[handle] = running

        def run() -> None:
            running.run()
            if running.forgotten:
                self._running.pop(handle, None)

        WorkerThread("child", run).start()
        return handle

    def wait(self, view: RawView | None, handle: object) -> Any:
        """Return how a child ended, or a future of that; the handle is invalid afterwards."""
        running = self._find(view, handle)

        def ended() -> tuple[Any, ...] | None:
            answer = running.ended()
            if answer is not None:
                self._stop(str(handle))
            return answer

        return running.when(ended, self._own_loop())

    def read(self, view: RawView | None, handle: object) -> Any:
        """Return the next output of a streamed child, or a future of it; empty at its end."""
        running = self._find(view, handle)
        return running.when(running.next_piece, self._own_loop())

    def stop(self, view: RawView | None, handle: object) -> None:
        """Stop a child, and forget it."""
        self._find(view, handle)
        self._stop(str(handle))

    # ---- host

    def stop_of(self, label: str) -> None:
        """Stop the children of a subject, such as ``module:demo``, after its unloading or the end of its worker."""
        for handle, running in list(self._running.items()):
            if label in running.owner:
                self._stop(handle)

    def close(self, patience: float = 10.0) -> None:
        """Stop all children and wait for them; refuse new ones."""
        with self._lock:
            self._closed = True
            running = dict(self._running)
        for handle in running:
            self._stop(handle)
        for child in running.values():
            child.wait_for_end(patience)

    def _stop(self, handle: str) -> None:
        """Forget a child; if it runs, stop it first and count it until it ends."""
        running = self._running.get(handle)
        if running is None:
            return
        running.forgotten = True
        if running.ended() is None:
            running.stop()
        if running.ended() is not None:
            self._running.pop(handle, None)

    def _find(self, view: RawView | None, handle: object) -> RunningChild:
        running = self._running.get(handle) if type(handle) is str else None
        if running is None or running.forgotten or running.owner != _owner(view):
            raise InvalidInputError.of("unknown child", pointer="/handle")
        return running

    def _check_room(self, owner: tuple[str, ...]) -> None:
        if self._closed:
            raise RuntimeServiceFailed("the runtime is shutting down: no new programs can start")
        for handle, running in list(self._running.items()):
            if running.is_abandoned():
                del self._running[handle]
        same = sum(_payer(running.owner) == _payer(owner) for running in self._running.values())
        if len(self._running) >= self._orders.settings.most or same >= self._orders.settings.most_of_subject:
            raise RuntimeServiceFailed("too many programs are running; try again later")

    def _own_loop(self) -> asyncio.AbstractEventLoop | None:
        """Return the host's loop if it is running here. Any other loop is untrusted: guarded code can make its own."""
        return self._loop if asyncio._get_running_loop() is self._loop else None  # noqa: SLF001 - get_running_loop raises


def _owner(view: RawView | None) -> tuple[str, ...]:
    return () if view is None else (*view.labels, str(view.session_key))


def _payer(owner: tuple[str, ...]) -> str:
    """Return the subject whose limit a child counts against: its module, independent of session, task or tool.

    With one limit per call chain and session, a module with many users could use all capacity.
    """
    return next((label for label in owner if label.startswith("module:")), owner[0] if owner else "")
