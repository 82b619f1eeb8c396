"""Protocols that a host implements for the guard, and their values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ._core import AccessQuestion, ObservedEndpoint

if TYPE_CHECKING:
    from democrai_sandbox.errors import SandboxDenied
    from democrai_sandbox.policy import AccessDecision, AccessRule, Subject, SubjectChain, SubjectKind

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
