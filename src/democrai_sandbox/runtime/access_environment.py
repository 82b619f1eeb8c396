"""View of the access-policy service on the process it runs in: the served caller, and the guard of a caller."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from democrai_sandbox.access.caller import Caller
from democrai_sandbox.guard import (
    ask_external_access,
    current_guard,
    is_guarded,
    location_of,
    process_guard_bypass_context,
    serve,
    served,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from democrai_sandbox.guard import GuardView
    from democrai_sandbox.guard.interface import RawView
    from democrai_sandbox.policy import AccessDecision


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


def caller_of(view: RawView) -> Caller:
    """Return the identity in a view of a guard, with the role of the served request if that has the same identity."""
    who = Caller(view.user_id, view.organization_id, view.session_key)
    present = served()
    return present if type(present) is Caller and present[:3] == who[:3] else who


class GuardSurroundings:
    """Context in which the service is asked, as the guard and the served request define it."""

    def caller(self) -> Caller | None:
        """Return the identity of the served request; None outside a request."""
        present = served()
        return present if type(present) is Caller else None

    def is_guarded(self) -> bool:
        """Return whether a guard applies to the calling code."""
        return is_guarded()

    def place_of(self, path: str) -> str:
        """Return the location of a path, as the guard resolves it."""
        return location_of(path)

    def guard(self) -> GuardView | None:
        """Return the guard of the calling code; None for code of the host."""
        return current_guard()

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
        """Ask through the guard, which forwards the question to the service outside itself."""
        return ask_external_access(
            resource_type,
            operation,
            target,
            register_request=register_request,
            resume_action=resume_action,
            resume_context=resume_context,
        )

    def outside(self) -> AbstractContextManager[Any]:
        """Return a bypass context; refused to guarded code that the host did not register."""
        return process_guard_bypass_context()
