"""What the guard asks of others: the protocols a host implements, and the values that cross them."""

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
    """Answers what the policy does not allow.

    Asked synchronously, outside the guard, at most once per activation and (operation, target) until
    ``access_changed()`` is called. Only ``True``, or a decision that allows, allows; without a decider the answer is
    no. An exception is not a denial: it is logged, and becomes ``ExternalAccessCheckFailed``.
    """

    def decide(self, question: AccessQuestion) -> bool | AccessDecision:
        """Return whether an approval covers the question; a decision says in the denial what is pending."""
        ...


@runtime_checkable
class EndpointObserver(Protocol):
    """Is told of every permitted connection before it is made, outside the guard, for an allowlist below Python.

    The same endpoint is told again after a minute. What it raises is logged and becomes
    ``ExternalAccessCheckFailed``, and the connection is not made.
    """

    def observe(self, endpoint: ObservedEndpoint) -> None:
        """Take note of where a subject is about to connect."""
        ...


@runtime_checkable
class CandidateWatcher(Protocol):
    """Is told of every check of a subject with a candidate where the candidate's rules say something else.

    Called outside the guard, after nothing and before everything: the check goes on as if there were no candidate, and
    what is raised here is logged. The resource type ``import`` with the operation ``use`` is a sensitive import.
    """

    def saw(self, question: AccessQuestion, allowed: bool) -> None:  # noqa: FBT001 - as the core calls it
        """Take note of what the rules in force say (``allowed``), and the candidate's do not."""
        ...


@runtime_checkable
class DenialRecorder(Protocol):
    """Is told of every denial, outside the guard; what it raises is logged, the denial stands."""

    def record(self, denial: SandboxDenied) -> None:
        """Take note of a denial."""
        ...


@dataclass(frozen=True, slots=True)
class AllowLink:
    """The allowlist entries that one subject of the chain contributes."""

    subject: Subject
    rules: tuple[AccessRule, ...]


@dataclass(frozen=True, slots=True)
class GuardView:
    """What is in force where it was asked for. A copy to read; changing it changes nothing."""

    subject: str
    subject_kind: SubjectKind
    subject_chain: SubjectChain
    subject_allow_chain: tuple[AllowLink, ...]
    allowed_imports: frozenset[str]
    allow_subprocess: bool
    user_id: Any
    organization_id: Any
    session_key: Any
