"""The host as worker processes see it: the same services and decisions as for code in this process."""

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
    """Answers workers. What they say of themselves has been held against what the host knows before it comes here."""

    def __init__(
        self,
        decider: Decider,
        output: Output,
        recorder: DenialRecorder | None = None,
        observe: Callable[[Told], None] | None = None,
        shadows: Shadows | None = None,
    ) -> None:
        """Decide as for this process, and keep what workers print where that of others is kept.

        ``observe`` opens the way for a connection of a worker, where something below Python has to. ``shadows`` are
        told where candidates would say something else.
        """
        self._shadows = shadows
        self._observe = observe
        self._decider = decider
        self._output = output
        self._recorder = recorder
        self._services: dict[str, Callable[..., Any]] = {}

    def serve(self, services: Mapping[str, Callable[..., Any]]) -> None:
        """Offer services to workers, as they are offered to code in this process."""
        self._services.update(services)

    @property
    def services(self) -> Sequence[str]:
        """The names that ``door`` knows."""
        return tuple(self._services)

    def decide(self, question: AccessQuestion) -> bool | AccessDecision:
        """Answer what the guard in a worker does not allow by itself."""
        return self._decider.decide(question)

    def door(self, name: str, view: tuple[Any, ...], args: Sequence[Any]) -> Any:
        """Do what the code in a worker asks for."""
        service = self._services.get(name)
        if service is None:
            raise InvalidInputError.of(f"workers are not served {name}")
        return service(RawView(*view), *args)

    def output(self, label: str, stream: str, text: str) -> None:
        """Keep what a worker wrote."""
        del stream
        self._output.add(label, text)

    def observe(self, told: Told) -> None:
        """Have the way opened for a connection of a worker."""
        if self._observe is not None:
            self._observe(told)

    def saw(self, label: str, question: AccessQuestion, *, allowed: bool, times: int) -> None:
        """Take note of what a candidate would change for the subject of a worker."""
        if self._shadows is not None:
            self._shadows.saw_in(label, question, allowed=allowed, times=times)

    def denied(self, label: str, denial: SandboxDenied) -> None:
        """Take note of a denial inside a worker."""
        del label
        if self._recorder is not None:
            try:
                self._recorder.record(denial)
            except Exception:  # noqa: BLE001 - a recorder that fails changes nothing about the denial
                _log.exception("the recorder of denials failed")
