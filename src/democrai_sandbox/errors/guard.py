"""Errors for misuse of the guard."""

from __future__ import annotations

from democrai_sandbox.policy import SandboxError
from democrai_sandbox.policy.guidance import Guidance


class GuardUsageError(SandboxError, RuntimeError):
    """A guard was entered, left or used in an unsafe way.

    The call was refused because the guard could otherwise stay in force too long or end too early.
    """

    code = "sandbox_guard_usage"
    guidance = Guidance(
        cause=(
            "A guard was entered in a generator or through an exit stack, left in another frame than the one that "
            "entered it, entered twice at the same time, or `run` was given a function that returns an async generator."
        ),
        fix="Use a `with` statement in an ordinary function or coroutine, or call `guard.run(...)`.",
        example="""\
def rows():
    with guard:          # the guard would stay in force between the values
        yield 1
next(rows())
-> GuardUsageError""",
        see=("embedding.md",),
    )


class GuardSealedError(GuardUsageError):
    """The guard can no longer be configured.

    The settings are sealed when the first guard is entered, and guarded code can never change them.
    """

    code = "sandbox_guard_sealed"
    guidance = Guidance(
        cause="`configure_guard` was called after the first guard was entered, or by guarded code.",
        fix="Call `configure_guard` when the application starts, before the first guard.",
        example="""\
with process_guard_context(subject="module:demo"):
    pass
configure_guard(decider=decider)
-> GuardSealedError: the guard is sealed: configure it before the first guard is entered""",
        see=("embedding.md",),
    )
