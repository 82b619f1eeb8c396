"""View of the access-policy service on the process it runs in: the served caller, and the guard of a caller."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from democrai_sandbox.access.caller import Caller, GuardedSubject
from democrai_sandbox.errors import NetworkDenied
from democrai_sandbox.guard import (
    AccessQuestion,
    ask_external_access,
    current_guard,
    is_guarded,
    location_of,
    process_guard_bypass_context,
    serve,
    served,
)
from democrai_sandbox.policy import AccessDecision, Operation, ResourceType, Subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from democrai_sandbox.guard.interface import RawView


@contextmanager
def serving(caller: Caller) -> Iterator[None]:
    """Serve a request on behalf of a caller, in this task and all tasks it starts. Refused inside a guard.

    The core stores the caller and restores it when guarded code is left, so that a subject cannot change it for the
    host.
    """
    if type(caller) is not Caller:
        raise TypeError("expected a Caller")
    with serve(caller):
        yield


def caller_of(view: RawView | None) -> Caller:
    """Return the identity in a view of a guard, with the role of the served request if that has the same identity."""
    if view is None:
        return Caller()
    who = Caller(*view.identity)
    present = served()
    return present if type(present) is Caller and present[:3] == who[:3] else who


def question_of(
    actor: tuple[str, str],
    chain: tuple[str, ...],
    what: tuple[str, str, str],
    identity: tuple[Any, Any, Any],
    *,
    register: bool,
) -> AccessQuestion:
    """Return the question of a subject (kind and name) about a resource type, an operation and a target."""
    kind, name = actor
    # A structure of the core, which takes its members as one sequence.
    return AccessQuestion((name, kind, chain, *what, register, *identity, "", None))  # type: ignore[call-arg, arg-type]


def network_question(
    subject: Subject, chain: tuple[str, ...], place: tuple[Operation, str], who: tuple[Any, Any, Any], *, register: bool
) -> AccessQuestion:
    """Return the question about an operation on a network target, for a user, an organization and a session."""
    operation, target = place
    what = (ResourceType.NETWORK.value, operation.value, target)
    return question_of((subject.kind.value, subject.name), chain, what, who, register=register)


def network_denial(question: AccessQuestion, decision: AccessDecision, target: str = "") -> NetworkDenied:
    """Return the error of the guard for a denied question; ``target`` replaces the one of the question."""
    denial = NetworkDenied(
        target or question.target,
        subject=question.subject,
        subject_kind=question.subject_kind,
        chain=question.subject_chain,
        operations=(question.operation,),
    )
    denial.decision = decision
    return denial


class GuardSurroundings:
    """Context in which the service is asked, as the guard and the served request define it."""

    def caller(self) -> Caller | None:
        """Return the identity of the served request; None outside a request."""
        present = served()
        return present if type(present) is Caller else None

    def is_guarded(self) -> bool:
        """Return whether a guard applies to the calling code."""
        return is_guarded()

    place_of = staticmethod(location_of)
    """Returns the location of a path, as the guard resolves it."""
    ask = staticmethod(ask_external_access)
    """Asks through the guard, which forwards the question to the service outside itself."""

    def guard(self) -> GuardedSubject | None:
        """Return the subject of the calling code; None for code of the host."""
        view = current_guard()
        return None if view is None else GuardedSubject(Subject(view.subject_kind, view.subject), view.subject_chain)

    def outside(self) -> AbstractContextManager[Any]:
        """Return a bypass context; refused to guarded code that the host did not register."""
        return process_guard_bypass_context()
