"""Answering a worker: its guard's questions about access, and its code's requests for services."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from democrai_sandbox.access.identity import Caller
from democrai_sandbox.errors import InvalidInputError, NoRuntime, RuntimeServiceFailed
from democrai_sandbox.guard import serve
from democrai_sandbox.policy import AccessDecision, DecisionCode, SandboxError
from democrai_sandbox.runtime.outcomes import describe

from .errors import FrameError
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
    message="The call for which this was asked is over.",
)


class Clerk:
    """Answers over the control line, on the loop; what may wait is asked on a thread."""

    def __init__(
        self,
        spec: WorkerSpec,
        host: Host,
        tell: Callable[[list[Any]], None],
        standing: Callable[[], Iterable[Standing]],
    ) -> None:
        """Answer for the host what this worker asks, on behalf of the calls that stand."""
        self._label = spec.label
        self._services = frozenset(host.services)
        self._witness = Witness(spec)
        self._host = host
        self._tell = tell
        self._standing = standing
        self._open = 0

    def decide(self, number: int, fields: Any, flight: Flight | None) -> None:
        """Have a question of the guard answered by the host's service; ``flight`` is the call it says it belongs to."""
        found = self._witness.question(fields, self._standing_of(flight))
        if found is None:
            self._tell(["answer", number, _told(_OVER)])
            return
        self._begin()
        asked = asyncio.get_running_loop().run_in_executor(None, self._decide_for, *found)
        asked.add_done_callback(lambda done: self._decided(number, done))

    def _decide_for(self, question: AccessQuestion, standing: Standing) -> bool | AccessDecision:
        with serve(Caller(*standing.caller)):  # as in process: the service finds in which task the subject works
            return self._host.decide(question)

    def _standing_of(self, flight: Flight | None) -> Iterable[Standing]:
        """Return for whom calls are in flight, beginning with the one that code in the worker says it belongs to."""
        return self._standing() if flight is None else (flight.standing, *self._standing())

    def saw(self, seen: Any) -> int:
        """Pass on where the candidate of the worker's subject says something else; return how many places that were."""
        if type(seen) is not list:
            raise FrameError("what was seen is no list")
        for entry in seen[:_MOST_AT_ONCE]:
            fields, allowed, times = entry
            if type(allowed) is not bool or type(times) is not int or not 0 < times < _MOST_TIMES:
                raise FrameError("something seen with other fields")
            found = self._witness.question(fields, self._standing())
            if found is not None:
                self._host.saw(self._label, found[0], allowed=allowed, times=times)
        return len(seen)

    def used(self, number: int, fields: Any) -> None:
        """Take note of what the rules of a subject under test allow; it waits, so that nothing is told too late."""
        found = self._witness.question(fields, self._standing())
        if found is not None:
            self._host.used(found[0])  # type: ignore[attr-defined] # the host of a test has it
        self._tell(["answer", number, True])

    def _decided(self, number: int, done: asyncio.Future[bool | AccessDecision]) -> None:
        """Tell the decision. That there is none is told as such, and becomes a failed check over there."""
        self._open -= 1
        answer: Any = None
        try:
            result = done.result()
            answer = _told(result) if isinstance(result, AccessDecision) else result is True
            self._tell(["answer", number, answer])
        except (Exception, asyncio.CancelledError):  # noqa: BLE001 - whatever it is, no decision came of it
            _log.exception("a question of %s could not be answered", self._label)
            self._tell(["answer", number, None])

    def serve(self, number: int, name: str, flight: Flight | None, who: Any, args: list[Any]) -> None:
        """Do what code in the worker asks for through a door."""
        if type(name) is not str or type(args) is not list:
            raise FrameError("a request without a name")
        found = self._witness.view(who, self._standing_of(flight))
        try:
            result = self._served(name, flight, found, args)
        except Exception as error:  # noqa: BLE001 - told to who asked
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
            raise RuntimeServiceFailed(f"{name}: the call for which this was asked is over")
        if name == _PROGRESS and flight is not None and flight.progress is not None:
            return flight.progress(*args)
        if name not in self._services:
            raise NoRuntime(f"no runtime serves {name} in this process")
        view, standing = found
        with serve(Caller(*standing.caller)):  # as in process: the service finds for whom the subject works
            return self._host.door(name, view, args)

    def _kept(self, number: int, name: str, done: asyncio.Future[Any]) -> None:
        self._open -= 1
        if done.cancelled():
            error: BaseException | None = RuntimeServiceFailed(f"{name} was given up")
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
        """Return an error as the worker raises it; what is not the sandbox's own stays in the host's log."""
        if isinstance(error, SandboxError):
            return describe(error)
        _log.error("service %s failed for %s", name, self._label, exc_info=error)
        return describe(RuntimeServiceFailed(f"{name} failed in the runtime"))

    def _begin(self) -> None:
        self._open += 1
        if self._open > _MOST_AT_ONCE:
            raise FrameError("more questions at once than a worker can have")


def _told(decision: AccessDecision) -> list[Any]:
    return [decision.allowed, decision.code.value, *decision[2:]]
