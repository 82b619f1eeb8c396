"""Answers to a worker: access questions of its guard, and service requests of its code."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from democrai_sandbox.access.identity import Caller
from democrai_sandbox.errors import InvalidInputError, NoRuntime, RuntimeServiceFailed
from democrai_sandbox.errors.workers import FrameError
from democrai_sandbox.guard import serve
from democrai_sandbox.policy import AccessDecision, DecisionCode, SandboxError
from democrai_sandbox.runtime.outcomes import describe

from .views import Witness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from democrai_sandbox.guard import AccessQuestion
    from democrai_sandbox.guard.views import RawView

    from .flights import Flight
    from .interface import Host, WorkerSpec
    from .views import Standing

_log = logging.getLogger(__name__)
_MOST_AT_ONCE = 256
_MOST_TIMES = 1_000_000_000
_PROGRESS = "tasks.progress"
_OVER = AccessDecision(
    allowed=False,
    code=DecisionCode.NOT_ENABLED,
    requires_approval=False,
    message="The call that asked for this has ended.",
)


class Clerk:
    """Answers over the control socket, on the loop; blocking questions run on a thread."""

    def __init__(
        self,
        spec: WorkerSpec,
        host: Host,
        tell: Callable[[list[Any]], None],
        standing: Callable[[], Iterable[Standing]],
    ) -> None:
        """Answer this worker's questions for the host, on behalf of its pending calls."""
        self._label = spec.label
        self._services = frozenset(host.services)
        self._witness = Witness(spec)
        self._host = host
        self._tell = tell
        self._standing = standing
        self._open = 0

    def decide(self, number: int, fields: Any, flight: Flight | None) -> None:
        """Answer a question of the guard through the host's service; ``flight`` is the call it claims to belong to."""
        found = self._witness.question(fields, self._standing_of(flight))
        if found is None:
            self._tell(["answer", number, _told(_OVER)])
            return
        self._begin()
        asked = asyncio.get_running_loop().run_in_executor(None, self._decide_for, *found)
        asked.add_done_callback(lambda done: self._decided(number, done))

    def _decide_for(self, question: AccessQuestion, standing: Standing) -> bool | AccessDecision:
        with serve(Caller(*standing.caller)):  # as in process: the service finds the task in which the subject works
            return self._host.decide(question)

    def _standing_of(self, flight: Flight | None) -> Iterable[Standing]:
        """Return the pending calls, beginning with the one that code in the worker claims to belong to."""
        return self._standing() if flight is None else (flight.standing, *self._standing())

    def saw(self, seen: Any) -> int:
        """Report checks that a candidate decides differently; return the number of entries."""
        if type(seen) is not list:
            raise FrameError("malformed shadow report: not a list")
        for entry in seen[:_MOST_AT_ONCE]:
            fields, allowed, times = entry
            if type(allowed) is not bool or type(times) is not int or not 0 < times < _MOST_TIMES:
                raise FrameError("malformed entry in a shadow report")
            found = self._witness.question(fields, self._standing())
            if found is not None:
                self._host.saw(self._label, found[0], allowed=allowed, times=times)
        return len(seen)

    def used(self, number: int, fields: Any) -> None:
        """Record an access that the rules of a subject under test allow; the worker waits for the answer."""
        found = self._witness.question(fields, self._standing())
        if found is not None:
            self._host.used(found[0])  # type: ignore[attr-defined] # the host of a test has it
        self._tell(["answer", number, True])

    def _decided(self, number: int, done: asyncio.Future[bool | AccessDecision]) -> None:
        """Send the decision. Without one, send None, which becomes a failed check in the worker."""
        self._open -= 1
        answer: Any = None
        try:
            result = done.result()
            answer = _told(result) if isinstance(result, AccessDecision) else result is True
            self._tell(["answer", number, answer])
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 - any failure means that no decision exists
            _log.exception("an access question of %s could not be answered", self._label)
            self._tell(["answer", number, None])

    def serve(self, number: int, name: str, flight: Flight | None, who: Any, args: list[Any]) -> None:
        """Call a service for code in the worker."""
        if type(name) is not str or type(args) is not list:
            raise FrameError("malformed service request")
        found = self._witness.view(who, self._standing_of(flight))
        try:
            result = self._served(name, flight, found, args)
        except Exception as error:  # noqa: BLE001 - the worker raises it
            self._tell(["answer", number, self._failure(name, error)])
            return
        if not asyncio.isfuture(result):
            self._give("answer", number, name, result)
            return
        self._begin()
        result.add_done_callback(lambda done: self._kept(number, name, done))
        self._tell(["answer", number, ["promise"]])

    def _served(self, name: str, flight: Flight | None, found: tuple[RawView, Standing] | None, args: list[Any]) -> Any:
        if found is None:
            raise RuntimeServiceFailed(f"{name}: the call that asked for this has ended")
        if name == _PROGRESS and flight is not None and flight.progress is not None:
            return flight.progress(*args)
        if name not in self._services:
            raise NoRuntime(f"no runtime serves {name} in this process")
        view, standing = found
        with serve(Caller(*standing.caller)):  # as in process: the service finds the caller of the subject
            return self._host.door(name, view, args)

    def _kept(self, number: int, name: str, done: asyncio.Future[Any]) -> None:
        self._open -= 1
        if done.cancelled():
            error: BaseException | None = RuntimeServiceFailed(f"{name} was canceled")
        else:
            error = done.exception()
        if error is not None:
            self._tell(["settle", number, self._failure(name, error)])
        else:
            self._give("settle", number, name, done.result())

    def _give(self, how: str, number: int, name: str, result: Any) -> None:
        try:
            self._tell([how, number, ["value", result]])
        except InvalidInputError as error:
            self._tell([how, number, self._failure(name, error)])

    def _failure(self, name: str, error: BaseException) -> Any:
        """Return an error for the worker to raise; log errors that are not the sandbox's, and replace them."""
        if isinstance(error, SandboxError):
            return describe(error)
        _log.error("service %s failed for %s", name, self._label, exc_info=error)
        return describe(RuntimeServiceFailed(f"{name} failed in the runtime"))

    def _begin(self) -> None:
        self._open += 1
        if self._open > _MOST_AT_ONCE:
            raise FrameError("too many open questions from one worker")


def _told(decision: AccessDecision) -> list[Any]:
    return [decision.allowed, decision.code.value, *decision[2:]]
