"""What the access-policy service sees of the process it runs in: whom it serves, and the guard around a caller."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from democrai_sandbox.access.identity import Caller
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
    from democrai_sandbox.policy import AccessDecision


@contextmanager
def serving(caller: Caller) -> Iterator[None]:
    """Serve a request for somebody, in this task and all that it starts. Refused inside a guard.

    The core keeps it, and puts it back whenever guarded code is left: the host never acts for whom a subject put in.
    """
    if type(caller) is not Caller:
        raise TypeError("a request is served for a Caller")
    with serve(caller):
        yield


class GuardSurroundings:
    """Where the service is asked from, as the guard and the request context know it."""

    def caller(self) -> Caller | None:
        """Return the identity of the request that is being served; None outside any."""
        present = served()
        return present if type(present) is Caller else None

    def is_guarded(self) -> bool:
        """Return whether something guards the calling code."""
        return is_guarded()

    def place_of(self, path: str) -> str:
        """Return where a path leads, as the guard finds it."""
        return location_of(path)

    def guard(self) -> GuardView | None:
        """Return what guards the calling code; None for code of the host."""
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
        """Ask through the guard, which puts the question to the service outside itself."""
        return ask_external_access(
            resource_type,
            operation,
            target,
            register_request=register_request,
            resume_action=resume_action,
            resume_context=resume_context,
        )

    def outside(self) -> AbstractContextManager[Any]:
        """Return a context outside the guard; refused to guarded code that the host did not register."""
        return process_guard_bypass_context()
