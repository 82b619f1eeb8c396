"""The host side of worker processes: the same services and decisions as for code in this process."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from democrai_sandbox.guard.views import RawView
from democrai_sandbox.policy import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from democrai_sandbox.errors import SandboxDenied
    from democrai_sandbox.guard import AccessQuestion, Decider, DenialRecorder
    from democrai_sandbox.policy import AccessDecision

    from .confinement.observing import Told
    from .output import Output
    from .shadows import Shadows

_log = logging.getLogger(__name__)


class WorkerHost:
    """Answers workers. Their statements about themselves have already been checked against the host's knowledge."""

    def __init__(
        self,
        decider: Decider,
        output: Output,
        recorder: DenialRecorder | None = None,
        observe: Callable[[Told], None] | None = None,
        shadows: Shadows | None = None,
    ) -> None:
        """Decide as for this process, and store the output of workers with all other output.

        ``observe`` permits a connection of a worker in the kernel layer. ``shadows`` records where candidates would
        decide differently.
        """
        self._shadows = shadows
        self._observe = observe
        self._decider = decider
        self._output = output
        self._recorder = recorder
        self._services: dict[str, Callable[..., Any]] = {}

    def serve(self, services: Mapping[str, Callable[..., Any]]) -> None:
        """Offer services to workers, as for code in this process."""
        self._services.update(services)

    @property
    def services(self) -> Sequence[str]:
        """Names that ``door`` accepts."""
        return tuple(self._services)

    def decide(self, question: AccessQuestion) -> bool | AccessDecision:
        """Answer an access question from the guard of a worker."""
        return self._decider.decide(question)

    def door(self, name: str, view: tuple[Any, ...], args: Sequence[Any]) -> Any:
        """Call a service for the code in a worker."""
        service = self._services.get(name)
        if service is None:
            raise InvalidInputError.of(f"service {name} is not available in workers")
        return service(RawView(*view), *args)

    def output(self, label: str, stream: str, text: str) -> None:
        """Store the output of a worker."""
        del stream
        self._output.add(label, text)

    def observe(self, told: Told) -> None:
        """Permit a connection of a worker in the kernel layer."""
        if self._observe is not None:
            self._observe(told)

    def saw(self, label: str, question: AccessQuestion, *, allowed: bool, times: int) -> None:
        """Record a check that a candidate would decide differently for the subject of a worker."""
        if self._shadows is not None:
            self._shadows.saw_in(label, question, allowed=allowed, times=times)

    def denied(self, label: str, denial: SandboxDenied) -> None:
        """Record a denial inside a worker."""
        del label
        if self._recorder is not None:
            try:
                self._recorder.record(denial)
            except Exception:  # noqa: BLE001 - a failing recorder must not change the denial
                _log.exception("the denial recorder failed")
