"""The one thread that follows changes: a burst of wishes becomes one piece of work, and each learns how it went."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, Protocol

from democrai_sandbox.errors import HelperFailed, KernelLayerError

from .client import TIMED_OUT
from .polling import readable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 30.0


class Wishes(NamedTuple):
    """What one piece of work is for."""

    reasons: tuple[str, ...]
    force: bool
    """Whether somebody wants it done even if nothing has changed."""


class Follower(Protocol):
    """What the thread works for."""

    def work(self, wishes: Wishes) -> None:
        """Do it; an error of the kernel layer is told to those who wait, and it is tried again later."""
        ...

    def watched(self) -> Iterable[int]:
        """Return descriptors to look at."""
        ...

    def heard(self, ready: Iterable[int]) -> None:
        """Take what has come in on some of them."""
        ...

    def pause(self) -> float:
        """Return how many seconds it may wait before it works without being asked."""
        ...


@dataclass(slots=True)
class _Outcome:
    """How far the work has come: every wish up to this number has been seen to."""

    number: int = 0
    error: KernelLayerError | None = None


class Refresher:
    """Runs a follower's work on a thread of its own. Nobody who wishes holds a lock while it works."""

    def __init__(self, follower: Follower) -> None:
        """Keep the follower; the thread begins with ``start``."""
        self._follower = follower
        self._changed = threading.Condition()
        self._number = 0
        self._reasons: list[str] = []
        self._force = False
        self._outcome = _Outcome()
        self._failures = 0
        self._ending = False
        self._thread: threading.Thread | None = None
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    @property
    def is_running(self) -> bool:
        """Whether the thread is there."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def start(self) -> None:
        """Begin to follow; does nothing when it has begun, or is over."""
        with self._changed:
            if self._thread is None and not self._ending:
                self._thread = _Worker("egress-refresh", self._run)
                self._thread.start()

    def wish(self, reason: str, *, force: bool = False) -> int:
        """Have the work done soon; returns at once, with the number to wait for."""
        self.start()
        with self._changed:
            self._number += 1
            self._force = self._force or force
            if reason not in self._reasons:
                self._reasons.append(reason)
            number = self._number
            if not self._ending:
                os.eventfd_write(self._wake, 1)
        return number

    def settles(self, number: int, timeout: float) -> bool:
        """Tell whether work that began after this wish is done within some seconds, in whatever way."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_settled(number), timeout)

    def _is_settled(self, number: int) -> bool:
        return self._ending or self._outcome.number >= number

    def wait(self, number: int, timeout: float) -> None:
        """Return when work that began after this wish is done; raises what it failed with, or that time is up."""
        if threading.current_thread() is self._thread:
            return  # whoever is asked in the course of the work would wait for itself
        with self._changed:
            done = self._changed.wait_for(lambda: self._is_settled(number), timeout)
            ended, error = self._ending and self._outcome.number < number, self._outcome.error
        if not done or ended:
            raise HelperFailed(
                "the allowlist is not followed any more"
                if ended
                else f"the allowlist was not applied in {timeout:g} s",
                fix="look at the status of the egress control for what it waits for",
                reason="stopped" if ended else TIMED_OUT,
            )
        if error is not None:
            # One object for each who waits: a traceback grows with every raise.
            raise type(error)(*error.args, fix=error.fix, **_reason(error)) from error

    def stop(self) -> None:
        """End the thread and wait for it; those who wait are told."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with self._changed:
            wake, self._wake = self._wake, -1
        if wake >= 0:
            os.close(wake)

    def _run(self) -> None:
        due = monotonic() + self._follower.pause()
        while not self._ending:
            ready = readable((self._wake, *self._follower.watched()), due - monotonic())
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake)
            self._follower.heard(ready)
            if not self._failures:
                due = min(due, monotonic() + self._follower.pause())
            if self._is_wanted(due):
                self._once()
                due = monotonic() + (self._backoff() if self._failures else self._follower.pause())

    def _is_wanted(self, due: float) -> bool:
        return not self._ending and (bool(self._reasons) or monotonic() >= due)

    def _once(self) -> None:
        with self._changed:
            number, reasons, force = self._number, tuple(self._reasons), self._force
            self._reasons, self._force = [], False
        error = None
        try:
            self._follower.work(Wishes(reasons or ("time",), force or self._failures > 0))
        except KernelLayerError as failure:
            error = failure
        except Exception as failure:  # noqa: BLE001 - the thread must live: without it nothing is ever revoked
            error = KernelLayerError(f"{type(failure).__name__}: {failure}", fix="report this as a defect")
        self._failures = self._failures + 1 if error else 0
        with self._changed:
            self._outcome = _Outcome(number, error)
            self._changed.notify_all()

    def _backoff(self) -> float:
        return float(min(_FIRST_PAUSE * 2 ** min(self._failures - 1, 16), _LONGEST_PAUSE))


def _reason(error: KernelLayerError) -> dict[str, str]:
    return {"reason": error.reason} if isinstance(error, HelperFailed) else {}


class _Worker(threading.Thread):
    """A daemon thread that forgets its work when it begins it.

    Every thread can be listed, and an ordinary one keeps its function as an attribute: guarded code would come from
    there to the allowlist.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._work: Callable[[], None] | None = work

    def run(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work()
