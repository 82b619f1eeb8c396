"""Going on after an approval: claims the resumptions that are due, runs their handlers, records how that ended.

An attempt is counted when it is claimed, before its handler runs. So one whose process is killed is tried again when
its lease has run out, and one that kills its process every time comes to an end. A success that was recorded is final.
"""

from __future__ import annotations

import inspect
import logging
import threading
from dataclasses import dataclass
from datetime import timedelta
from secrets import SystemRandom
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.errors import ResumeContextUnreadable, SandboxError, StoreUnavailable
from democrai_sandbox.policy import nearest

from .threads import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime

    from .interface import ResumeHandler, Store
    from .sealing import Sealer
    from .values import Resume

LONGEST_ERROR = 2_000
"""The most characters of an error that are recorded."""
_MOST_DOUBLINGS = 30

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResumeSettings:
    """How often and how long to try."""

    attempts: int = 5
    lease: timedelta = timedelta(minutes=5)
    """Longer than any handler takes: after it another node takes the attempt for lost and makes the next one."""
    first_delay: timedelta = timedelta(seconds=1)
    """Between the first attempt and the second; doubled after each, and shortened by up to a half by chance."""
    longest_delay: timedelta = timedelta(minutes=5)
    interval: timedelta = timedelta(seconds=3)
    """How often the thread looks by itself."""


class _Outcome(NamedTuple):
    """How an attempt ended: no error is success; an error that is not final is followed by another attempt."""

    error: str = ""
    final: bool = False


class ResumeRunner:
    """Runs the resumptions of one node, one after the other.

    ``sealer`` decrypts the contexts, ``handlers`` has the function of each action, ``clock`` gives the time in UTC.
    """

    def __init__(
        self,
        store: Store,
        sealer: Sealer,
        handlers: Mapping[str, ResumeHandler],
        *,
        node: str,
        clock: Callable[[], datetime],
        settings: ResumeSettings | None = None,
        chance: Callable[[], float] | None = None,
    ) -> None:
        self._store = store
        self._sealer = sealer
        self._handlers = handlers
        self._served: Mapping[str, ResumeHandler] = {}
        self._held = threading.Event()
        self._node = node
        self._clock = clock
        self._settings = settings or ResumeSettings()
        self._chance = chance or SystemRandom().random
        self._running = threading.RLock()
        self._unrecorded: list[tuple[Resume, _Outcome]] = []
        self._available = True
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: Worker | None = None

    # ---- one round

    def run_due(self) -> int:
        """Run what is due until nothing is left, and return how many attempts that were.

        What a handler raises is recorded, except what is no ``Exception`` (``KeyboardInterrupt``): that passes on, and
        the attempt counts as lost. ``StoreUnavailable`` passes on too; an outcome that could not be recorded is kept
        and recorded first in the next round.
        """
        done = 0
        with self._running:
            self._record_kept()
            while not self._is_idle() and (resume := self._claim()) is not None:
                self._unrecorded.append((resume, self._attempt(resume)))
                self._record_kept()
                done += 1
        return done

    def _is_idle(self) -> bool:
        return self._stopping.is_set() or self._held.is_set()

    def _claim(self) -> Resume | None:
        now = self._clock()
        return self._store.claim_resume(node=self._node, lease_until=now + self._settings.lease, now=now)

    def _attempt(self, resume: Resume) -> _Outcome:
        if resume.attempts > self._settings.attempts:
            return _Outcome(_given_up(resume, self._settings.attempts), final=True)
        handler = self._handlers.get(resume.action) or self._served.get(resume.action)
        if handler is None:
            return _Outcome(_unknown(resume.action, (*self._handlers, *self._served)), final=True)
        try:
            context = self._context(resume)
        except ResumeContextUnreadable as error:
            return _Outcome(f"the resume context cannot be read: {error}", final=True)
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the source of the keys raises becomes a recorded failure
            return _Outcome(_told(error))
        return _call(handler, context, resume)

    def _context(self, resume: Resume) -> Any:
        """Return what to go on with; looked at again if it was sealed anew, and its key removed, in between."""
        blob = self._store.resume_context(resume.request_id)
        while blob is not None:
            try:
                return self._sealer.unseal(blob, resume)
            except ResumeContextUnreadable:
                seen, blob = blob, self._store.resume_context(resume.request_id)
                if blob == seen:
                    raise
        return None

    def _record_kept(self) -> None:
        while self._unrecorded:
            self._record(*self._unrecorded[0])
            del self._unrecorded[0]

    def _record(self, resume: Resume, outcome: _Outcome) -> None:
        now = self._clock()
        again = bool(outcome.error) and not outcome.final and resume.attempts < self._settings.attempts
        retry_at = now + self._delay(resume.attempts) if again else None
        ours = self._store.finish_resume(resume, node=self._node, error=outcome.error, retry_at=retry_at, now=now)
        what = f"{resume.action!r} of request {resume.request_id}, attempt {resume.attempts}"
        if not ours:
            _log.warning("resuming %s: its lease had run out, the outcome was left to another attempt", what)
        elif outcome.error:
            _log.warning(
                "resuming %s failed, %s: %s", what, "to be tried again" if again else "for good", outcome.error
            )

    def _delay(self, attempts: int) -> timedelta:
        """Return the time until the next attempt: doubled each time up to a limit, and spread by chance."""
        doubled = self._settings.first_delay * float(2 ** min(attempts - 1, _MOST_DOUBLINGS))
        return min(doubled, self._settings.longest_delay) * (1 - self._chance() / 2)

    # ---- actions of a runtime

    def hold(self, timeout: float = 0.0) -> bool:
        """Start no attempt until ``serve``: a runtime, whose actions there are, does not run yet, or any more.

        Waits so many seconds for the attempt that runs; False when it did not end in time.
        """
        self._held.set()
        ended = self._running.acquire(timeout=timeout)
        if ended:
            self._running.release()
        return ended

    def serve(self, handlers: Mapping[str, ResumeHandler]) -> None:
        """Run the actions of a runtime too, from now on; those that the host has given itself come first."""
        self._served = handlers
        self._held.clear()
        self.poke()

    # ---- the thread

    def start(self) -> None:
        """Run what is due in a thread of its own, from now on; nothing when it runs already."""
        self._stopping.clear()
        if self._thread is not None and self._thread.is_alive():
            return
        self._wake.clear()
        self._thread = Worker("access-resumes", self._loop)
        self._thread.start()

    def stop(self, timeout: float | None = 10.0) -> bool:
        """Start no further attempt, and wait for the one that runs; False when it did not end in time."""
        self._stopping.set()
        self._wake.set()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return thread is None
        thread.join(timeout)
        return not thread.is_alive()

    def poke(self) -> None:
        """Look now: something was approved."""
        self._wake.set()

    def _loop(self) -> None:
        while not self._stopping.is_set():
            self._round()
            self._wake.wait(self._settings.interval.total_seconds())
            self._wake.clear()

    def _round(self) -> None:
        """Run what is due; nothing that goes wrong ends the thread, for nobody would notice that it is gone."""
        try:
            self.run_due()
        except StoreUnavailable as error:
            if self._available:
                _log.warning("resumptions wait for the database: %s", error.__cause__ or error)
            self._available = False
        except BaseException:  # noqa: BLE001 - see below
            # Interrupts reach the main thread only: here it is a handler that tried to end its thread, or a defect.
            _log.exception("a round of resumptions was broken off")
        else:
            self._available = True


def _call(handler: ResumeHandler, context: Any, resume: Resume) -> _Outcome:
    try:
        result = handler(context, origin=resume.origin, subject=resume.subject, request_id=resume.request_id)
    except SandboxError as error:
        return _Outcome(_told(error))
    except Exception as error:  # noqa: BLE001 - whatever it is, that it happened is recorded and shown
        return _Outcome(_withheld(error))
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        return _Outcome("the handler is asynchronous: nothing was run; register a plain function", final=True)
    return _Outcome()


def _given_up(resume: Resume, attempts: int) -> str:
    """Say that the attempts are used up by one that never reported back."""
    before = f"; the error before that: {resume.last_error}" if resume.last_error else ""
    return _bounded(f"given up after {attempts} attempts, the last of which never reported back{before}")


def _unknown(action: str, handlers: Iterable[str]) -> str:
    near = nearest(action, handlers)
    hint = f" (did you mean {near!r}?)" if near else ""
    return _bounded(f"no handler is registered for the resume action {action!r}{hint}")


def _told(error: Exception) -> str:
    """Return the type and the text of an error; no traceback, whose lines may hold what the context held."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an error whose text cannot be had is still an error
        text = "(its text cannot be had)"
    return _bounded(f"{type(error).__name__}: {text}")


def _withheld(error: Exception) -> str:
    """Return the type of an error of somebody else's: its text often repeats what the handler was working on."""
    return _bounded(f"{type(error).__name__} (its text is not kept: it may hold parts of the context)")


def _bounded(text: str) -> str:
    """Return a text that every database stores and every terminal shows: not too long, and nothing unprintable."""
    shown = (sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text[:LONGEST_ERROR])
    return "".join(shown)[:LONGEST_ERROR]
