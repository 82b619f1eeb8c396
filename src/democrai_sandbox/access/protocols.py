"""Protocols of the service's parts and of the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from democrai_sandbox.policy import AccessDecision, Subject, SubjectChain, SubjectKind

    from .caller import Caller
    from .values import Requester


class Bus(Protocol):
    """Notification of other nodes about changes. Events grant nothing; they only make nodes read the store.

    Events may be lost if the receiver learns that some may be missing.
    """

    node: str
    """Unique id of this node."""

    def publish(self, generation: int) -> None:
        """Notify the other nodes. Does not wait, and does not raise if they cannot be reached."""
        ...

    def start(self, heard: Callable[[int | None], None]) -> None:
        """Start listening. ``heard`` gets the generation that another node announced, or None after a gap."""
        ...

    def stop(self) -> None:
        """Stop listening and release all resources. May be called twice."""
        ...

    @property
    def connected(self) -> bool:
        """Whether events are delivered at the moment, as far as this node knows."""
        ...


class _GuardedIdentity(Protocol):
    @property
    def subject(self) -> str: ...
    @property
    def user_id(self) -> Any: ...
    @property
    def organization_id(self) -> Any: ...
    @property
    def session_key(self) -> Any: ...


class GuardState(_GuardedIdentity, Protocol):
    """State of the guard around the calling code; the guard's view implements it."""

    @property
    def subject_kind(self) -> SubjectKind: ...
    @property
    def subject_chain(self) -> SubjectChain: ...


class GuardQuestion(_GuardedIdentity, Protocol):
    """Access question of the guard when a policy does not allow an access."""

    @property
    def subject_kind(self) -> str: ...
    @property
    def subject_chain(self) -> tuple[str, ...]: ...
    @property
    def resource_type(self) -> str: ...
    @property
    def operation(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def register_request(self) -> bool: ...
    @property
    def resume_action(self) -> str: ...
    @property
    def resume_context(self) -> str | None: ...


class HostEnvironment(Protocol):
    """Host around the service: the caller, its guard, and a way to leave the guard for the service's work."""

    def caller(self) -> Caller | None:
        """Return the identity of the HTTP request or call that is being served, or None."""
        ...

    def is_guarded(self) -> bool:
        """Return whether a guard applies to the calling code; called before every check."""
        ...

    def place_of(self, path: str) -> str:
        """Return an absolute path with all links resolved; called for unguarded code only."""
        ...

    def guard(self) -> GuardState | None:
        """Return the guard of the calling code; None for host code."""
        ...

    def ask(
        self,
        resource_type: str,
        operation: str,
        target: str,
        *,
        register_request: bool,
        resume_action: str,
        resume_context: str | None,
    ) -> AccessDecision:
        """Ask on behalf of guarded code through its guard: first the policy, then ``decide`` of the service, unguarded.

        The identity comes from the guard's state, which the calling code cannot change.
        """
        ...

    def outside(self) -> AbstractContextManager[Any]:
        """Return a context in which the service's files and connections are not checked against the caller's policy."""
        ...


class ResumeHandler(Protocol):
    """Handler that resumes an approved action. It runs unguarded and must enter the original requester's identity."""

    def __call__(self, context: Any, *, origin: Requester, subject: Subject, request_id: str) -> object:
        """Run the action. ``request_id`` is the same in every attempt; use it to prevent duplicate effects."""
        ...
