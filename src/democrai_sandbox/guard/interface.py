"""Interface to the host: protocols that it implements, and the guard state and denials as Python values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from democrai_sandbox import errors
from democrai_sandbox.policy import Subject, SubjectChain, SubjectKind, rules_from_json

from . import _core
from .runtime_paths import is_host_code

if TYPE_CHECKING:
    from democrai_sandbox.errors import SandboxDenied
    from democrai_sandbox.policy import AccessDecision, AccessRule

    from ._core import AccessQuestion, ObservedEndpoint


@runtime_checkable
class Decider(Protocol):
    """Decider for accesses that the policy does not allow.

    Called synchronously, unguarded, at most once per activation and (operation, target) until ``access_changed()`` is
    called. Only ``True``, or a decision that allows, allows the access; without a decider it is refused. An
    exception is not a denial: it is logged, and becomes ``ExternalAccessCheckFailed``.
    """

    def decide(self, question: AccessQuestion) -> bool | AccessDecision:
        """Return whether an approval covers the question; the denial contains a returned decision."""
        ...


@runtime_checkable
class EndpointObserver(Protocol):
    """Observer of every allowed connection before it is opened, called unguarded, for an allowlist below Python.

    The same endpoint is reported again after a minute. An exception is logged and becomes
    ``ExternalAccessCheckFailed``, and the connection is not opened.
    """

    def observe(self, endpoint: ObservedEndpoint) -> None:
        """Record the endpoint that a subject is about to connect to."""
        ...


@runtime_checkable
class CandidateWatcher(Protocol):
    """Watcher of the checks in which a candidate manifest differs from the current one.

    Called unguarded and without influence on the check; exceptions are logged. The resource type ``import`` with the
    operation ``use`` is a sensitive import.
    """

    def saw(self, question: AccessQuestion, allowed: bool) -> None:  # noqa: FBT001 - as the core calls it
        """Record a difference: ``allowed`` is the result of the current rules, and the candidate's is the opposite."""
        ...


@runtime_checkable
class DenialRecorder(Protocol):
    """Recorder of every denial, called unguarded; exceptions are logged, and the denial stays in force."""

    def record(self, denial: SandboxDenied) -> None:
        """Record a denial."""
        ...


@dataclass(frozen=True, slots=True)
class AllowLink:
    """Rules that one subject of the call chain contributes."""

    subject: Subject
    rules: tuple[AccessRule, ...]


@dataclass(frozen=True, slots=True)
class GuardView:
    """Guard state of the caller, as a copy; changing it has no effect."""

    subject: str
    subject_kind: SubjectKind
    subject_chain: SubjectChain
    subject_allow_chain: tuple[AllowLink, ...]
    allowed_imports: frozenset[str]
    allow_subprocess: bool
    user_id: Any
    organization_id: Any
    session_key: Any


_EXACT = 1


class RawView(NamedTuple):
    """View of the core: the subjects from the outermost, then the identity."""

    links: tuple[tuple[str, str, str, int], ...]
    labels: tuple[str, ...]
    user_id: Any
    organization_id: Any
    session_key: Any
    allow_subprocess: bool
    allowed_imports: frozenset[str]
    narrowed: bool = False
    """Whether guarded code gave up declarations in a narrower context; the links do not say which."""
    opened_by: str = ""
    """Public function that the host called for this guard; empty for a guard of the runtime."""

    @property
    def chain(self) -> SubjectChain:
        """Call chain, outermost subject first."""
        return tuple(map(Subject.parse, self.labels))

    @property
    def allow_chain(self) -> tuple[AllowLink, ...]:
        """Rules in force, by contributing subject; an exact context hides the enclosing ones.

        Built from text each time, so that changes to the result have no effect.
        """
        links: list[AllowLink] = []
        for kind, name, declared, mode in self.links:
            if mode == _EXACT:
                links.clear()
            links.append(AllowLink(Subject(SubjectKind(kind), name), rules_from_json(declared)))
        return tuple(links)

    @property
    def identity(self) -> tuple[Any, Any, Any]:
        """User, organization and session."""
        return self.user_id, self.organization_id, self.session_key

    @property
    def actor(self) -> tuple[str, str]:
        """Kind and name of the innermost subject."""
        kind, name, _, _ = self.links[-1]
        return kind, name


def is_guarded() -> bool:
    """Return whether a guard applies to the caller."""
    return _core.current_view() is not None


def current_guard() -> GuardView | None:
    """Return the guard state of the caller, or None."""
    raw = _core.current_view()
    if raw is None:
        return None
    view = RawView(*raw)
    kind, name = view.actor
    return GuardView(
        subject=name,
        subject_kind=SubjectKind(kind),
        subject_chain=view.chain,
        subject_allow_chain=view.allow_chain,
        allowed_imports=view.allowed_imports,
        allow_subprocess=view.allow_subprocess,
        user_id=view.user_id,
        organization_id=view.organization_id,
        session_key=view.session_key,
    )


_CLASSES: dict[str, type[SandboxDenied]] = {
    "filesystem": errors.FilesystemDenied,
    "descriptor": errors.FilesystemFdDenied,
    "module": errors.ModuleDenied,
    "subprocess": errors.SubprocessDenied,
    "environment": errors.EnvironmentDenied,
    "tamper": errors.TamperDenied,
    "network": errors.NetworkDenied,
}
_HARMLESS = frozenset({"read", "execute", "use"})
"""Operations that do not change code of the host."""


def make_denial(
    kind: str, view: tuple[Any, ...], operation: str, target: str, *, decision: AccessDecision | None = None
) -> SandboxDenied:
    """Return the exception for a denial of the core, with the decider's decision if it was asked.

    This decides nothing: if it fails, the access is still refused.
    """
    subject_kind, subject, _, _ = view[0][-1]
    denial = _CLASSES[kind](
        target,
        subject=subject,
        subject_kind=subject_kind,
        chain=view[1],
        operations=tuple(operation.split(",")) if "," in operation else (operation,),
        installing=view[5],
        opened_by=view[8],
    )
    if decision is not None and isinstance(denial, errors.NetworkDenied):
        denial.decision = decision
    if operation not in _HARMLESS and isinstance(denial, errors.FilesystemDenied):
        denial.is_host_code = is_host_code(target, denial.operation)
    return denial


@dataclass(frozen=True, slots=True)
class DenialRecord:
    """Recorded denial; ``silent`` if library code got "does not exist" instead of an exception."""

    time: float
    denial: SandboxDenied
    silent: bool

    def __str__(self) -> str:
        """Return the documented error shape."""
        return str(self.denial)


def recent_denials() -> list[DenialRecord]:
    """Return the latest denials of this process, oldest first. Only for the host: refused inside a guard."""
    if _core.current_view() is not None:
        raise errors.GuardUsageError("guarded code cannot read denials; call this from the host")
    return [DenialRecord(time, make_denial(*facts), silent) for time, silent, facts in _core.recent()]
