"""One fetch over all its redirects, and its run: a slot, steps in threads of a pool, and exactly one end."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import deque
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from democrai_sandbox.errors import ExternalAccessCheckFailed
from democrai_sandbox.errors.services import MediaBusy, MediaClosed, MediaRedirectRefused, MediaTimeout, MediaTooLarge
from democrai_sandbox.guard.contexts import make_guard
from democrai_sandbox.kernel import flow_log
from democrai_sandbox.policy import AccessDecision, DecisionCode, NetworkIndex, Operation, ResourceType, SandboxError
from democrai_sandbox.runtime.access_environment import network_denial, network_question

from .http_request import Bounds, Hop, MediaExchange, describing, follow
from .values import Asker, MediaHead, MediaLimits, MediaResult, rules_of

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Mapping

    from democrai_sandbox.access.checks import AccessService
    from democrai_sandbox.guard import AccessQuestion, Guard
    from democrai_sandbox.runtime.extensions.shadow_runs import ShadowRuns

    from .cache import CachedFetch

SWITCH = "DEMOCRAI_DEBUG_MEDIA_FLOW"
_QUERY = re.compile(r"[?#].*", re.DOTALL)


class MediaFlowLog(flow_log.FlowLog):
    """Prints the flow if enabled. Session keys and query strings, which may contain tokens, are masked."""

    switch = SWITCH
    label = "[MEDIA_FLOW]"

    def shown(self, name: str, value: object) -> object:
        """Return a detail in printable form."""
        shown = super().shown(name, value)
        return _QUERY.sub("?***", value) if shown is value and isinstance(value, str) else shown


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class MediaAuthority:
    """Authorizes each hop separately."""

    _judge: AccessService
    """Answers about URLs that the rules of a subject do not cover."""
    _log: MediaFlowLog
    _shadows: ShadowRuns | None
    """Records where the candidate of a subject would decide differently."""

    def authorise(self, asker: Asker, hop: Hop) -> DecisionCode:
        """Return the reason that allows this URL, or raise the same denial as for a request of the subject itself."""
        if self._is_declared(asker, hop):
            code = DecisionCode.SANDBOX_ALLOWLIST
        else:
            target = hop.target
            # Ambiguous paths differ only in their spelling.
            place = (Operation.RECEIVE, hop.url if target.ambiguous else target.normalized)
            who = (asker.user_id, asker.organization_id, asker.session_key)
            question = network_question(asker.subject, asker.chain, place, who, register=True)
            decision = self._decide(question)
            if not decision.allowed:
                self._log("locked", subject=str(asker.subject), url=hop.url, code=str(decision.code))
                raise network_denial(question, decision, target.normalized)
            code = decision.code
        self._log("allowed", subject=str(asker.subject), session=asker.session_key, url=hop.url, code=str(code))
        return code

    def _is_declared(self, asker: Asker, hop: Hop) -> bool:
        if self._shadows is None or asker.view is None:
            return NetworkIndex(asker.rules).allows(Operation.RECEIVE, hop.target)
        wish = (ResourceType.NETWORK.value, Operation.RECEIVE.value, hop.target.normalized)
        return self._shadows.compare(
            asker.view, wish, lambda view: NetworkIndex(rules_of(view)).allows(Operation.RECEIVE, hop.target)
        )

    def _decide(self, question: AccessQuestion) -> AccessDecision:
        try:
            return self._judge.decide(question)
        except SandboxError:
            raise
        except Exception as error:
            # As in the guard: an error in a check is a failure, not a denial, and allows nothing.
            raise ExternalAccessCheckFailed(str(error)) from error


def scoped_guard(asker: Asker, hop: Hop) -> Guard:
    """Return the guard for one hop: this subject and this URL, without other network access."""
    rule = {"resource_type": "network", "operation": "receive", "target": hop.scope}
    return make_guard(
        subject=asker.subject.name,
        subject_kind=asker.subject.kind.value,
        access=[rule],
        user_id=asker.user_id,
        organization_id=asker.organization_id,
        session_key=asker.session_key,
        network_only=True,
    )


_NOT_MODIFIED = 304
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class FetchParts(NamedTuple):
    """Objects that all flows share."""

    authority: MediaAuthority
    limits: MediaLimits
    tls: ssl.SSLContext
    log: MediaFlowLog


class FetchOptions(NamedTuple):
    """Description of a fetch."""

    hop: Hop
    method: str
    headers: Mapping[str, str]
    most_bytes: int
    seconds: float


class Fetch:
    """Fetches in blocking steps: ``open``, then ``read`` until it returns nothing. ``abort`` is thread-safe.

    Each hop is authorized separately, and made in a guard for its own URL only.
    """

    def __init__(self, parts: FetchParts, asker: Asker, wish: FetchOptions) -> None:
        """Describe the fetch; its time runs from ``open`` on."""
        self._parts, self._asker, self._wish = parts, asker, wish
        self._exchange: MediaExchange | None = None
        self._guard: Guard | None = None
        self._aborted = False
        self._received = 0
        self.hops: list[str] = []
        """Requested URLs in order."""

    def open(self, extra: Mapping[str, str]) -> MediaHead:
        """Send the HTTP request, follow redirects, and return the head of the response.

        The runtime adds ``extra`` headers.
        """
        limits = self._parts.limits
        deadline = monotonic() + self._wish.seconds
        bounds = Bounds(deadline, limits.idle_seconds, limits.connect_seconds, limits.header_bytes)
        headers = {**self._wish.headers, **extra}
        hop, session_only = self._wish.hop, False
        while True:
            code = self._parts.authority.authorise(self._asker, hop)
            session_only = session_only or code is DecisionCode.SESSION_APPROVAL
            status, answered = self._ask(hop, headers, bounds)
            location = next((value for name, value in answered if name.lower() == "location"), None)
            if status not in _REDIRECTS or location is None:
                return self._begun(MediaHead(status, describing(answered), hop.url, session_only))
            self._close_exchange()
            hop = self._next(follow(hop, location))

    def read(self) -> bytes:
        """Return the next part of the body; empty at its end."""
        if self._exchange is None or self._guard is None or self._aborted:
            raise MediaClosed("the fetch was canceled")
        data = self._guard.run(self._exchange.read, self._parts.limits.chunk_bytes)
        self._received += len(data)
        if self._received > self._wish.most_bytes:
            self._too_large()
        return data

    def abort(self) -> None:
        """Stop immediately, even while waiting."""
        self._aborted = True
        if self._exchange is not None:
            self._exchange.abort()

    def close(self) -> None:
        """Release everything."""
        self._aborted = True
        self._close_exchange()

    def _close_exchange(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.close()

    def _ask(self, hop: Hop, headers: Mapping[str, str], bounds: Bounds) -> tuple[int, list[tuple[str, str]]]:
        self.hops.append(hop.url)
        exchange = MediaExchange(hop, self._wish.method, headers, bounds, self._parts.tls)
        self._exchange, self._guard = exchange, scoped_guard(self._asker, hop)
        if self._aborted:  # checked after the exchange is visible to abort()
            raise MediaClosed("the fetch was canceled")
        status, answered = self._guard.run(exchange.begin)
        self._parts.log("answer", subject=str(self._asker.subject), url=hop.url, status=status)
        return status, answered

    def _begun(self, head: MediaHead) -> MediaHead:
        """Set the header to the enforced length of the body. A different header would mislead recipients."""
        length = self._exchange.length if self._exchange else None
        if length is not None and length > self._wish.most_bytes:
            self._too_large()
        if self._wish.method != "HEAD":
            head.headers.pop("content-length", None)
            if length is not None and head.status != _NOT_MODIFIED:
                head.headers["content-length"] = str(length)
        return head

    def _next(self, hop: Hop) -> Hop:
        if hop.url in self.hops:
            raise MediaRedirectRefused("the redirects form a loop")
        if len(self.hops) > self._parts.limits.redirects:
            raise MediaRedirectRefused(f"more than {self._parts.limits.redirects} redirects")
        self._parts.log("redirect", subject=str(self._asker.subject), url=hop.url)
        return hop

    def _too_large(self) -> None:
        self.close()
        raise MediaTooLarge(f"the body is larger than {self._wish.most_bytes} bytes")


class FetchSlots:
    """Slots for fetches, limited per subject and in total. Waiting callers are served in order."""

    def __init__(self, limits: MediaLimits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._taken: dict[str, int] = {}
        self._waiting: dict[str, deque[Future[None]]] = {}

    def _take(self, subject: str) -> Future[None]:
        """Return a future of a slot."""
        place: Future[None] = Future()
        with self._lock:
            queue = self._waiting.get(subject, ())
            if len(queue) >= self._limits.waiting_per_subject:
                raise MediaBusy(f"{subject} has too many running fetches")
            if not queue and self._is_free(subject):
                self._occupy(subject)
                place.set_result(None)
            else:
                self._waiting.setdefault(subject, deque()).append(place)
        return place

    async def wait(self, subject: str) -> None:
        """Wait for a slot without blocking the loop."""
        with self._queued(subject) as place:
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(place)), self._limits.waiting_seconds)

    def wait_blocking(self, subject: str) -> None:
        """Wait for a slot."""
        with self._queued(subject) as place:
            place.result(self._limits.waiting_seconds)

    @contextmanager
    def _queued(self, subject: str) -> Iterator[Future[None]]:
        place = self._take(subject)
        try:
            yield place
        except BaseException as error:
            if not place.cancel():  # a slot that was just assigned goes to the next caller
                self.release(subject)
            with self._lock, suppress(KeyError, ValueError):
                self._waiting[subject].remove(place)
            if isinstance(error, TimeoutError):
                raise MediaBusy(f"{subject} has too many running fetches") from None
            raise

    def release(self, subject: str) -> None:
        """Release a slot."""
        with self._lock:
            self._taken[subject] -= 1
            if not self._taken[subject]:
                del self._taken[subject]
            ready = self._next()
        for place in ready:
            place.set_result(None)

    @property
    def under_way(self) -> int:
        """Number of occupied slots."""
        with self._lock:
            return sum(self._taken.values())

    def _is_free(self, subject: str) -> bool:
        own = self._taken.get(subject, 0) < self._limits.flows_per_subject
        return own and sum(self._taken.values()) < self._limits.flows

    def _occupy(self, subject: str) -> None:
        self._taken[subject] = self._taken.get(subject, 0) + 1

    def _next(self) -> list[Future[None]]:
        """Return the slots that can be assigned now, to the subject with the fewest first."""
        ready: list[Future[None]] = []
        for subject in sorted(self._waiting, key=lambda name: self._taken.get(name, 0)):
            queue = self._waiting[subject]
            while queue and self._is_free(subject):
                place = queue.popleft()
                if place.set_running_or_notify_cancel():
                    self._occupy(subject)
                    ready.append(place)
            if not queue:
                del self._waiting[subject]
        return ready


_T = TypeVar("_T")
_GRACE = 1.0
"""Steps enforce their own timeouts, except for a DNS lookup, which cannot be interrupted."""


class FetchJob:
    """Occupies a slot until the last step has ended, because an uninterruptible thread still counts."""

    def __init__(self, flow: CachedFetch, pool: Executor, seconds: float, ended: Callable[[FetchJob], None]) -> None:
        """Take over an occupied slot; ``ended`` releases it."""
        self.flow = flow
        self._pool, self._ended = pool, ended
        self._deadline = monotonic() + seconds
        self._lock = threading.Lock()
        self._last: Future[Any] | None = None
        self.over = False
        """Whether it has finished."""
        self._used = monotonic()

    @property
    def left(self) -> float:
        """Seconds left before its deadline."""
        return max(self._deadline - monotonic(), 0.0)

    def is_abandoned(self, unread: float) -> bool:
        """Return whether its deadline has passed, or it has not been read for ``unread`` seconds."""
        with self._lock:
            at_work = self._last is not None and not self._last.done()
        return not self.left or (not at_work and monotonic() - self._used > unread)

    def submit(self, step: Callable[[], _T]) -> Future[_T]:
        """Run a step on a thread; one at a time."""
        with self._lock:
            if self.over and not self.left:
                raise MediaTimeout("the fetch exceeded its timeout")
            if self.over or (self._last is not None and not self._last.done()):
                raise MediaClosed("the stream is closed, or is being read already")
            try:
                future = self._pool.submit(step)
            except RuntimeError:
                raise MediaClosed("the media service is closed") from None
            self._last = future
            future.add_done_callback(self._note_use)
            return future

    async def step(self, function: Callable[[], _T]) -> _T:
        """Run a step without blocking the loop; end the flow if the step or the wait fails."""
        future = asyncio.wrap_future(self.submit(function))
        with self.ending_on_error():
            return await asyncio.wait_for(future, self.left + _GRACE)

    def step_blocking(self, function: Callable[[], _T]) -> _T:
        """Run a step and wait for it."""
        future = self.submit(function)
        with self.ending_on_error():
            return future.result(self.left + _GRACE)

    @contextmanager
    def ending_on_error(self) -> Iterator[None]:
        """End the flow if the block fails; its timeout becomes one of media."""
        try:
            yield
        except MediaTimeout as error:
            self.finish()
            raise error from None
        except TimeoutError:
            self.finish()
            raise MediaTimeout("the fetch exceeded its timeout") from None
        except BaseException:
            self.finish()
            raise

    def finish(self) -> None:
        """End the flow, and release its slot when no thread uses it any more. May be called repeatedly."""
        with self._lock:
            if self.over:
                return
            self.over = True
            last = self._last
        self.flow.abort()
        if last is None:
            self._let_go(None)
        else:
            last.add_done_callback(self._let_go)

    def fetch_whole(self) -> MediaResult:
        """Open and read everything in one step."""
        head = self.flow.open()
        parts = list(iter(self.flow.read, b""))
        return MediaResult(head.status, head.headers, b"".join(parts), head.url, self.flow.from_cache)

    def _note_use(self, _: object) -> None:
        self._used = monotonic()

    def _let_go(self, _: object) -> None:
        try:
            self.flow.close()
        finally:
            self._last = None  # the future references the caller's context through its callbacks
            self._ended(self)


class FetchStream:
    """A response whose body arrives in parts: ``async for``, closed by ``async with`` or ``aclose()``.

    A stream that is neither read nor closed ends at its deadline.
    """

    def __init__(self, running: FetchJob, head: MediaHead, loop: asyncio.AbstractEventLoop | None) -> None:
        """Take over an open flow. On a loop it ends at its deadline, elsewhere when slots are needed.

        The loop is passed in, because the running loop of a guarded caller may be the subject's own.
        """
        self._running = running
        self.head = head
        self.status, self.headers = head.status, head.headers
        self._timer = loop.call_later(running.left + _GRACE, running.finish) if loop else None

    @property
    def from_cache(self) -> bool:
        """Whether the response came from the cache."""
        return self._running.flow.from_cache

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._running.over

    async def read(self) -> bytes:
        """Return the next part of the body; empty at its end."""
        data = await self._running.step(self._running.flow.read)
        if not data:
            self.end()
        return data

    def read_blocking(self) -> bytes:
        """Return the next part of the body, and block until it arrives."""
        data = self._running.step_blocking(self._running.flow.read)
        if not data:
            self._running.finish()
        return data

    def end(self) -> None:
        """End the stream and close its connection."""
        if self._timer is not None:
            self._timer.cancel()
        self._running.finish()

    async def aclose(self) -> None:
        """End the stream."""
        self.end()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._running.over:
            raise StopAsyncIteration
        data = await self.read()
        if not data:
            raise StopAsyncIteration
        return data

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
