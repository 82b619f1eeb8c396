"""What the guard asks of others: the protocols a host implements, and the values that cross them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from democrai_sandbox.errors import SandboxDenied
    from democrai_sandbox.policy import AccessRule, Operation, ResourceType, Subject, SubjectChain, SubjectKind


@dataclass(frozen=True, slots=True)
class AccessQuestion:
    """May this subject do this? All of it comes from the guard's state, nothing from the code that is guarded."""

    subject: str
    subject_kind: SubjectKind
    subject_chain: SubjectChain
    resource_type: ResourceType
    operation: Operation
    target: str
    register_request: bool
    """False for file probes: only explicit calls create pending requests."""
    user_id: Any
    organization_id: Any
    session_key: Any


@runtime_checkable
class Decider(Protocol):
    """Answers what the policy does not allow.

    Asked synchronously, outside the guard, at most once per activation and (operation, resolved path). Only the answer
    ``True`` allows. An exception is not a denial: it becomes ``ExternalAccessCheckFailed``.
    """

    def decide(self, question: AccessQuestion) -> bool:
        """Return True when an approval covers the question."""
        ...


class DenyAll:
    """The default decider: nobody has approved anything."""

    def decide(self, question: AccessQuestion) -> bool:  # noqa: ARG002 - the protocol's signature
        """Say no."""
        return False


@runtime_checkable
class DenialRecorder(Protocol):
    """Is told of every denial, outside the guard; what it raises is ignored, the denial stands."""

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
