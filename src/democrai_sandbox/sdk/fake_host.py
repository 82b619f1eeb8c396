"""Host of an extension under test: its decisions, records, services and programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.access.checks import NEEDS_APPROVAL
from democrai_sandbox.manifests.proposal import ObservedUse
from democrai_sandbox.policy import (
    EXTERNAL_URL_LOCKED,
    AccessDecision,
    CompiledPolicy,
    DecisionCode,
    Operation,
    ResourceType,
    file_access,
    is_at_or_below,
    parse_request,
)
from democrai_sandbox.runtime.children import ChildService, PathRights

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from democrai_sandbox.errors import SandboxDenied
    from democrai_sandbox.guard import AccessQuestion
    from democrai_sandbox.guard.interface import RawView
    from democrai_sandbox.policy import Subject
    from democrai_sandbox.runtime.children.launch_request import ChildLauncher
    from democrai_sandbox.runtime.store import Progress
    from democrai_sandbox.runtime.worker.connection_reports import ConnectionReport

    from .recording import Recording

__all__ = ["Access", "AccessBook", "FakeHost", "TestedPrograms"]

_ALLOWED = AccessDecision(True, DecisionCode.SANDBOX_ALLOWLIST, False, "Allowed in this test.")  # noqa: FBT003
_LOCKED = AccessDecision(False, DecisionCode.NOT_ENABLED, False, EXTERNAL_URL_LOCKED)  # noqa: FBT003
_DENIED = AccessDecision(False, DecisionCode.NOT_ENABLED, False, NEEDS_APPROVAL)  # noqa: FBT003


class Access(NamedTuple):
    """An access of an extension: a file or folder beyond its own, a host or URL, or a program."""

    resource_type: str
    operation: str
    target: str


class AccessBook:
    """Record of used, requested and denied accesses.

    The guard in the extension's process allows declared access, as in a host, and reports it here. Other access is
    asked about here: the policy stands for approvals.
    """

    def __init__(self, policy: CompiledPolicy, recording: Recording, kept: str | None = None) -> None:
        """Decide by a policy."""
        self._policy = policy
        self._recording = recording
        self._kept = kept
        """Folder with sources that is writable in observe mode only if the manifest declares it."""
        self.asked: set[Access] = set()
        self.denied: set[Access] = set()
        self.narrowed: frozenset[str] = frozenset()
        """Tools, agents and pipelines with their own ``access`` list, which no manifest can extend."""

    def decide(self, question: AccessQuestion) -> AccessDecision:
        """Decide about a question, and record it."""
        allowed = _allows(self._policy, question) or self._is_observed(question)
        access = Access(question.resource_type, question.operation, question.target)
        self.asked.add(access)
        if allowed:
            self._recording.granted.add(ObservedUse(*access))
            return _ALLOWED
        self.denied.add(access)
        self._recording.refused.add(ObservedUse(*access))
        return _LOCKED if question.resource_type == ResourceType.NETWORK else _DENIED

    def used(self, resource_type: str, operation: str, target: str) -> None:
        """Record an access that a declaration allowed."""
        self.asked.add(Access(resource_type, operation, target))

    def _is_observed(self, question: AccessQuestion) -> bool:
        if self._kept is None or not self.narrowed.isdisjoint(question.subject_chain):
            return False
        return not self._is_kept(question)

    def _is_kept(self, question: AccessQuestion) -> bool:
        is_file = question.resource_type == ResourceType.FILESYSTEM and question.operation != Operation.READ
        return is_file and question.operation != Operation.EXECUTE and is_at_or_below(question.target, self._kept or "")


def _allows(policy: CompiledPolicy, question: AccessQuestion) -> bool:
    """Match like the guard does with declared rules."""
    operation = Operation(question.operation)
    if question.resource_type == ResourceType.FILESYSTEM:
        return policy.paths.allows(question.target, file_access(operation))
    if question.resource_type == ResourceType.NETWORK:
        return policy.network.allows(operation, parse_request(question.target))
    wanted = (ResourceType(question.resource_type), operation, question.target)
    return wanted in {(rule.resource_type, rule.operation, rule.normalized_target) for rule in policy.rules}


def progress(_view: object, fraction: Any, message: Any) -> Progress:
    """Validate the progress of a task like the service of a host, and return it."""
    from democrai_sandbox.runtime.store import Progress  # noqa: PLC0415 - slow import
    from democrai_sandbox.runtime.store.values import progress_to_json  # noqa: PLC0415

    said = Progress(fraction, message)
    progress_to_json(said)
    return said


def _take_progress(view: object, fraction: Any, message: Any) -> None:
    progress(view, fraction, message)


class FakeHost:
    """The host of one worker under test."""

    def __init__(self, book: AccessBook, services: dict[str, Callable[..., Any]], recording: Recording) -> None:
        self._book = book
        self._services: dict[str, Callable[..., Any]] = {"tasks.progress": _take_progress, **services}
        self.recording = recording
        self.printed: list[str] = []

    @property
    def services(self) -> tuple[str, ...]:
        """Names that ``door`` accepts."""
        return tuple(self._services)

    def offer(self, services: Mapping[str, Callable[..., Any]]) -> None:
        """Add services; those of the test take precedence."""
        self._services = {**services, **self._services}

    def decide(self, question: AccessQuestion) -> AccessDecision:
        """Answer with the decision of the book."""
        return self._book.decide(question)

    def door(self, name: str, view: tuple[Any, ...], args: Sequence[Any]) -> Any:
        """Call a service for the extension."""
        return self._services[name](view, *args)

    def output(self, label: str, stream: str, text: str) -> None:
        """Store its output."""
        del label, stream
        self.printed.append(text)

    def denied(self, label: str, denial: SandboxDenied) -> None:
        """Record a denial."""
        del label
        self.recording.deny(denial)

    def noticed(self, facts: list[Any]) -> None:
        """Record an access."""
        self.recording.notice(facts)

    def used(self, question: AccessQuestion) -> None:
        """Record the use of a declared access."""
        self._book.used(question.resource_type, question.operation, question.target)

    def saw(self, label: str, question: AccessQuestion, *, allowed: bool, times: int) -> None:
        """Do nothing, because a test has no candidates."""

    def observe(self, told: ConnectionReport) -> None:
        """Do nothing, because no packet filter has to permit the connection."""


class TestedPrograms:
    """Service behind ``sdk.tasks.run_subprocess`` for one extension."""

    def __init__(
        self, book: AccessBook, recording: Recording, data_of: Callable[[Subject], str], launcher: ChildLauncher | None
    ) -> None:
        """Let this book decide about programs; without a launcher, programs are not confined."""
        rights = PathRights(_RecordingDecisions(book, recording), shadows=_Uses(book))
        self._children = ChildService(rights, home_of=data_of, launcher=launcher)
        self._recording = recording

    def services(self) -> dict[str, Callable[..., Any]]:
        """Return the services; the callers are in another process."""
        return {**self._children.services(), "children.start": self._start}

    def _start(self, *order: Any) -> Any:
        self._recording.has_programs = True
        return self._children.start_apart(*order)

    async def open(self) -> None:
        """Serve on this loop."""
        self._children.open()

    def close(self) -> None:
        """Stop all programs."""
        self._children.close()


class _RecordingDecisions:
    """Records questions that are asked here, which the guard in the extension's process does not see."""

    def __init__(self, decider: AccessBook, recording: Recording) -> None:
        self._decider = decider
        self._recording = recording

    def decide(self, question: AccessQuestion) -> bool | AccessDecision:
        self._recording.notice((question.resource_type, question.operation, question.target))
        return self._decider.decide(question)


class _Uses:
    """Records accesses that a declaration allows here, where a host would compare them with a candidate."""

    def __init__(self, book: AccessBook) -> None:
        self._book = book

    def compare(self, view: RawView, what: tuple[str, str, str], allows: Callable[[RawView], bool]) -> bool:
        allowed = allows(view)
        if allowed:
            self._book.used(*what)
        return allowed
