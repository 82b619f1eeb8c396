"""Service behind ``sdk.tasks.run_subprocess``: starts children for callers, and reports how they ended.

A caller gets a handle that only it can use. Results are plain data, or a future on the host's loop; on any other thread
the call blocks.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
import weakref
from typing import TYPE_CHECKING, Any

from democrai_sandbox.access.threads import Worker
from democrai_sandbox.errors import InvalidInputError, RuntimeServiceFailed

from .launching import PopenLauncher
from .orders import ChildrenSettings, Orders
from .running import Running

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from democrai_sandbox.guard.views import RawView
    from democrai_sandbox.policy import AccessRule, Subject

    from .interface import Launcher
    from .rights import Rights


__all__ = ["Children", "ChildrenSettings"]


class Children:
    """Starts children for callers of the SDK."""

    def __init__(
        self,
        rights: Rights,
        *,
        settings: ChildrenSettings | None = None,
        launcher: Launcher | None = None,
        home_of: Callable[[Subject], str] | None = None,
        host_environment: Mapping[str, str] | None = None,
        longest: Callable[[RawView | None], float | None] = lambda _view: None,
        approved: Callable[[RawView], tuple[AccessRule, ...]] = lambda _view: (),
    ) -> None:
        """Take ``home_of``, which returns the data folder of a subject; read the environment now, before any guard.

        ``longest`` returns the maximum run time of a caller's children, if limited; ``approved`` the approvals of a
        caller.
        """
        self._settings = settings or ChildrenSettings()
        host = dict(os.environ) if host_environment is None else host_environment
        self._orders = Orders(
            rights, self._settings, home_of or (lambda _subject: ""), host, longest=longest, approved=approved
        )
        self._launcher = launcher or PopenLauncher()
        self._running: dict[str, Running] = {}
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
        return self._start(view, argv, options, lambda: owner is None or _goes_on(owner()))

    def start_apart(self, view: RawView | None, argv: object, options: object) -> str:
        """Start a program for a caller in a worker process, without a task of this process."""
        return self._start(view, argv, options, lambda: True)

    def _start(self, view: RawView | None, argv: object, options: object, wanted: Callable[[], bool]) -> str:
        order, limits, given = self._orders.make(view, argv, options)
        running = Running(_owner(view), order, limits, self._launcher, given=given, wanted=wanted)
        handle = secrets.token_hex(16)
        with self._lock:
            self._check_room(running.owner)
            self._running[handle] = running
        Worker("child", lambda: self._run(handle, running)).start()
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

    def _run(self, handle: str, running: Running) -> None:
        running.run()
        if running.forgotten:
            self._running.pop(handle, None)

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

    def _find(self, view: RawView | None, handle: object) -> Running:
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
        if len(self._running) >= self._settings.most or same >= self._settings.most_of_subject:
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


def _goes_on(task: asyncio.Task[Any] | None) -> bool:
    return task is not None and not task.done()
