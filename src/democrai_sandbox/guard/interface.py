"""Interface to the host: protocols that it implements, and the guard state as Python values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from democrai_sandbox.policy import Subject, SubjectChain, SubjectKind, rules_from_json

from ._core import AccessQuestion, ObservedEndpoint, current_view

if TYPE_CHECKING:
    from democrai_sandbox.errors import SandboxDenied
    from democrai_sandbox.policy import AccessDecision, AccessRule

__all__ = [
    "AccessQuestion",
    "AllowLink",
    "CandidateWatcher",
    "Decider",
    "DenialRecorder",
    "EndpointObserver",
    "GuardView",
    "ObservedEndpoint",
]


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
    def actor(self) -> tuple[str, str]:
        """Kind and name of the innermost subject."""
        kind, name, _, _ = self.links[-1]
        return kind, name


def is_guarded() -> bool:
    """Return whether a guard applies to the caller."""
    return current_view() is not None


def current_guard() -> GuardView | None:
    """Return the guard state of the caller, or None."""
    raw = current_view()
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
