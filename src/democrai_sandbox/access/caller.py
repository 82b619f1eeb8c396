"""Caller of the service: its identity, its right to decide, and the host around it."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self
from uuid import UUID

from democrai_sandbox.policy import InvalidInputError, Subject, SubjectChain
from democrai_sandbox.policy.subjects import CallIdentity

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from democrai_sandbox.policy import AccessDecision

SUPER = "super"
"""Role or access level that may decide."""


class Caller(CallIdentity):
    """Identity of the caller that the runtime serves. Missing parts are empty texts.

    The identity is an immutable tuple, because it is shared. Numbers become texts, so that organization 0 is not empty.
    """

    __slots__ = ()

    def __new__(cls, *fields: object, **named: object) -> Self:
        """Accept texts, numbers, UUIDs and None; reject other types."""
        given = {**dict(zip(cls._fields, fields, strict=False)), **named}
        return super().__new__(cls, **{name: identity_text(value, name) for name, value in given.items()})

    @property
    def may_decide(self) -> bool:
        """Whether this user may approve and deny: a known user without an organization, with super rights."""
        return bool(self.user_id) and not self.organization_id and SUPER in (self.role, self.access_level)


def identity_text(value: object, name: str) -> str:
    """Return a part of an identity as a plain text; None becomes an empty text."""
    if value is None:
        return ""
    if isinstance(value, str):
        return str.__str__(value) if type(value) is str else "".join(value)
    if type(value) is int or isinstance(value, UUID):
        return str(value)
    raise InvalidInputError.of(f"expected a text, a number or None, got {type(value).__name__}", pointer=f"/{name}")


class GuardedSubject(NamedTuple):
    """Subject of guarded code, with its call chain, the outermost subject first."""

    subject: Subject
    chain: SubjectChain


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

    def guard(self) -> GuardedSubject | None:
        """Return the subject of the calling code; None for host code."""
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


class UnguardedHost:
    """Surroundings of a host without guards and callers, for tools and tests."""

    def caller(self) -> Caller | None:
        """Return None."""
        return None

    def place_of(self, path: str) -> str:
        """Return the path with all links resolved."""
        return os.path.realpath(path)

    def is_guarded(self) -> bool:
        """Return False."""
        return False

    def guard(self) -> GuardedSubject | None:
        """Return None."""
        return None

    def ask(self, *_: object, **__: object) -> AccessDecision:
        """Raise an error, because no guard exists."""
        raise InvalidInputError.of("no guard is active")

    def outside(self) -> AbstractContextManager[Any]:
        """Return a context that changes nothing."""
        return nullcontext()
