"""Resumptions: encode resume contexts, claim due resumptions, run their handlers, record the results."""

from __future__ import annotations

import inspect
import json
import logging
import threading
from dataclasses import dataclass
from datetime import timedelta
from math import isfinite
from secrets import SystemRandom
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from democrai_sandbox._util.worker_thread import WorkerThread
from democrai_sandbox.errors import ResumeContextUnreadable, SandboxError, StoreUnavailable
from democrai_sandbox.policy import InvalidInputError, nearest, pointer_to
from democrai_sandbox.policy.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime

    from democrai_sandbox.policy import Subject

    from .encryption import Sealer
    from .store import SqlStore
    from .values import Requester, Resumption

LONGEST_CONTEXT = 64 * 1024
"""Maximum size of a context as JSON, in bytes."""
DEEPEST_CONTEXT = 64
"""Maximum nesting depth of lists and objects."""
_POINTER = "/resume_context"
_LARGEST_INTEGER_BITS = 1024
_PLAIN = (str, int, float, bool, type(None))


def encode_context(context: Any) -> bytes:
    """Return a context as JSON; raises ``InvalidInputError`` with the position of an invalid or too large value."""
    copied = _Copy().of(context)
    # A lone surrogate is not valid UTF-8, but Python file names can contain one, and it must survive the round trip.
    encoded = json.dumps(copied, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    if len(encoded) > LONGEST_CONTEXT:
        raise InvalidInputError.of(f"{len(encoded)} bytes as JSON; the limit is {LONGEST_CONTEXT}", pointer=_POINTER)
    return encoded


def decode_context(encoded: bytes) -> Any:
    """Return the original value of an encoded context."""
    return json.loads(encoded.decode("utf-8", "surrogatepass"))


class _Copy:
    """Copy of a context from guarded code, which is read outside the guard.

    Accepts exact types only, because methods of a subclass would run unguarded.
    """

    def __init__(self) -> None:
        self._left = LONGEST_CONTEXT
        self._path: list[str | int] = []

    def of(self, value: Any) -> Any:
        """Return a copy of plain JSON data, or raise with the position of the invalid value."""
        self._spend(1)
        kind = type(value)
        if kind is dict or kind is list:
            return self._inside(value)
        if kind is str:
            self._spend(len(value))
        elif kind is int and value.bit_length() > _LARGEST_INTEGER_BITS:
            raise self._refusal(f"an integer of more than {_LARGEST_INTEGER_BITS} bits")
        elif kind is float and not isfinite(value):
            raise self._refusal(f"{value} is not JSON")
        elif not any(kind is plain for plain in _PLAIN):
            raise self._refusal(f"{shown(value)} is not JSON")
        return value

    def _inside(self, value: dict[Any, Any] | list[Any]) -> Any:
        if len(self._path) >= DEEPEST_CONTEXT:
            message = f"nested deeper than {DEEPEST_CONTEXT} levels, or contains itself"
            raise InvalidInputError.of(message, pointer=_POINTER)
        # Copy atomically first, because another thread may change the value meanwhile.
        if isinstance(value, list):
            return [self._member(index, item) for index, item in enumerate(value.copy())]
        copied = {}
        for key, item in value.copy().items():
            if type(key) is not str:
                raise self._refusal(f"expected a text as key, got {shown(key)}")
            self._spend(len(key))
            copied[key] = self._member(key, item)
        return copied

    def _member(self, token: str | int, item: Any) -> Any:
        self._path.append(token)
        copied = self.of(item)
        self._path.pop()
        return copied

    def _spend(self, size: int) -> None:
        """Stop before a huge context is copied: every value and every character takes at least one byte."""
        self._left -= size
        if self._left < 0:
            raise InvalidInputError.of(f"more than {LONGEST_CONTEXT} bytes as JSON", pointer=_POINTER)

    def _refusal(self, message: str) -> InvalidInputError:
        return InvalidInputError.of(message, pointer=pointer_to(_POINTER, *self._path))


class ResumeHandler(Protocol):
    """Handler that resumes an approved action. It runs unguarded and must enter the original requester's identity."""

    def __call__(self, context: Any, *, origin: Requester, subject: Subject, request_id: str) -> object:
        """Run the action. ``request_id`` is the same in every attempt; use it to prevent duplicate effects."""
        ...


LONGEST_ERROR = 2_000
"""Maximum length of a recorded error."""
_MOST_DOUBLINGS = 30

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResumeSettings:
    """Retry settings."""

    attempts: int = 5
    lease: timedelta = timedelta(minutes=5)
    """Must exceed the run time of any handler: after it, another node considers the attempt lost and retries."""
    first_delay: timedelta = timedelta(seconds=1)
    """Delay between the first and second attempt; doubled after each attempt and randomly shortened by up to half."""
    longest_delay: timedelta = timedelta(minutes=5)
    interval: timedelta = timedelta(seconds=3)
    """Polling interval of the thread."""


class _AttemptResult(NamedTuple):
    """Result of an attempt: no error means success; an error that is not final is followed by another attempt."""

    error: str = ""
    final: bool = False


class ResumeRunner:
    """Runner of the resumptions of one node, one after the other.

    An attempt is counted when it is claimed, before its handler runs. So an attempt whose process was killed is retried
    when its lease expires, and an action that kills its process every time ends. A recorded success is final.

    ``sealer`` decrypts the contexts, ``handlers`` maps actions to functions, ``clock`` returns the time in UTC.
    """

    def __init__(
        self,
        store: SqlStore,
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
        self._unrecorded: list[tuple[Resumption, _AttemptResult]] = []
        self._available = True
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: WorkerThread | None = None

    # ---- one round

    def run_due(self) -> int:
        """Run due resumptions until none is left, and return the number of attempts.

        Exceptions of a handler are recorded. Other ``BaseException`` types (``KeyboardInterrupt``) propagate, and the
        attempt counts as lost. ``StoreUnavailable`` propagates too; a result that could not be recorded is kept and
        recorded first in the next round.
        """
        done = 0
        with self._running:
            self._record_kept()
            while not (self._stopping.is_set() or self._held.is_set()) and (resume := self._claim()) is not None:
                self._unrecorded.append((resume, self._attempt(resume)))
                self._record_kept()
                done += 1
        return done

    def _claim(self) -> Resumption | None:
        now = self._clock()
        return self._store.claim_resume(node=self._node, lease_until=now + self._settings.lease, now=now)

    def _attempt(self, resume: Resumption) -> _AttemptResult:
        if resume.attempts > self._settings.attempts:
            return _AttemptResult(_given_up(resume, self._settings.attempts), final=True)
        handler = self._handlers.get(resume.action) or self._served.get(resume.action)
        if handler is None:
            return _AttemptResult(_unknown(resume.action, (*self._handlers, *self._served)), final=True)
        try:
            context = self._context(resume)
        except ResumeContextUnreadable as error:
            return _AttemptResult(f"the resume context cannot be read: {error}", final=True)
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - every error of the key source becomes a recorded failure
            return _AttemptResult(_error_text(error))
        return _call(handler, context, resume)

    def _context(self, resume: Resumption) -> Any:
        """Return the context; read it again if it was resealed, and its old key removed, in between."""
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

    def _record(self, resume: Resumption, outcome: _AttemptResult) -> None:
        now = self._clock()
        again = bool(outcome.error) and not outcome.final and resume.attempts < self._settings.attempts
        retry_at = now + self._delay(resume.attempts) if again else None
        ours = self._store.finish_resume(resume, node=self._node, error=outcome.error, retry_at=retry_at, now=now)
        what = f"{resume.action!r} of request {resume.request_id}, attempt {resume.attempts}"
        if not ours:
            _log.warning("resuming %s: its lease expired, so its result is ignored; another attempt decides", what)
        elif outcome.error:
            _log.warning("resuming %s failed, %s: %s", what, "retrying later" if again else "giving up", outcome.error)

    def _delay(self, attempts: int) -> timedelta:
        """Return the delay before the next attempt: exponential up to a limit, with random jitter."""
        doubled = self._settings.first_delay * float(2 ** min(attempts - 1, _MOST_DOUBLINGS))
        return min(doubled, self._settings.longest_delay) * (1 - self._chance() / 2)

    # ---- actions of a runtime

    def hold(self, timeout: float = 0.0) -> bool:
        """Start no attempt until ``serve``, because the runtime with the actions is not running.

        Waits up to ``timeout`` seconds for the running attempt; returns False if it did not end in time.
        """
        self._held.set()
        ended = self._running.acquire(timeout=timeout)
        if ended:
            self._running.release()
        return ended

    def serve(self, handlers: Mapping[str, ResumeHandler]) -> None:
        """Also run the actions of a runtime from now on; handlers of the host take precedence."""
        self._served = handlers
        self._held.clear()
        self.poke()

    # ---- the thread

    def start(self) -> None:
        """Start the thread that runs due resumptions; does nothing if it is running."""
        self._stopping.clear()
        if self._thread is not None and self._thread.is_alive():
            return
        self._wake.clear()
        self._thread = WorkerThread("access-resumes", self._loop)
        self._thread.start()

    def stop(self, timeout: float | None = 10.0) -> bool:
        """Start no further attempt and wait for the running one; return False if it did not end in time."""
        self._stopping.set()
        self._wake.set()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return thread is None
        thread.join(timeout)
        return not thread.is_alive()

    def poke(self) -> None:
        """Check for due resumptions now, because a request was approved."""
        self._wake.set()

    def _loop(self) -> None:
        while not self._stopping.is_set():
            self._round()
            self._wake.wait(self._settings.interval.total_seconds())
            self._wake.clear()

    def _round(self) -> None:
        """Run due resumptions. No error ends the thread, because its end would go unnoticed."""
        try:
            self.run_due()
        except StoreUnavailable as error:
            if self._available:
                _log.warning("resumptions are waiting for the database: %s", error.__cause__ or error)
            self._available = False
        except BaseException:  # noqa: BLE001 - see below
            # Interrupts reach only the main thread, so this is a handler that tried to end its thread, or a bug.
            _log.exception("a round of resumptions was aborted")
        else:
            self._available = True


def _call(handler: ResumeHandler, context: Any, resume: Resumption) -> _AttemptResult:
    try:
        result = handler(context, origin=resume.origin, subject=resume.subject, request_id=resume.request_id)
    except SandboxError as error:
        return _AttemptResult(_error_text(error))
    except Exception as error:  # noqa: BLE001 - every error is recorded and shown
        # Without its text, which often contains data of the handler.
        what = f"{type(error).__name__} (its text is not recorded, because it may contain parts of the context)"
        return _AttemptResult(_bounded(what))
    if inspect.isawaitable(result):
        if inspect.iscoroutine(result):
            result.close()
        return _AttemptResult(
            "the handler is asynchronous and was not run; register a synchronous function", final=True
        )
    return _AttemptResult()


def _given_up(resume: Resumption, attempts: int) -> str:
    """Return the error for an action whose last attempt never reported a result."""
    before = f"; previous error: {resume.last_error}" if resume.last_error else ""
    return _bounded(f"given up after {attempts} attempts; the last one never reported a result{before}")


def _unknown(action: str, handlers: Iterable[str]) -> str:
    near = nearest(action, handlers)
    hint = f" (did you mean {near!r}?)" if near else ""
    return _bounded(f"no handler is registered for the resume action {action!r}{hint}")


def _error_text(error: Exception) -> str:
    """Return the type and text of an error, without a traceback, which could contain parts of the context."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an error whose text cannot be had is still an error
        text = "(its text cannot be read)"
    return _bounded(f"{type(error).__name__}: {text}")


def _bounded(text: str) -> str:
    """Return a text that databases store and terminals show: limited in length, without unprintable characters."""
    shown = (sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text[:LONGEST_ERROR])
    return "".join(shown)[:LONGEST_ERROR]
