"""Misuse of the guard itself."""

from __future__ import annotations

from democrai_sandbox.policy import SandboxError


class GuardUsageError(SandboxError, RuntimeError):
    """A guard was entered, left or used in a way that could not be safe."""

    code = "sandbox_guard_usage"


class GuardSealedError(GuardUsageError):
    """The guard's settings were touched after the first guard was entered, or from inside one."""

    code = "sandbox_guard_sealed"
