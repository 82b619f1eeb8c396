"""What the kernel layer raises. Never a denial: nothing was decided by it."""

from __future__ import annotations

from democrai_sandbox.policy import SandboxError


class KernelLayerError(SandboxError, RuntimeError):
    """Something of the kernel layer does not work. Never a denial: nothing was decided by it."""

    code = "os_sandbox_failed"

    def __init__(self, what: str, *, fix: str = "") -> None:
        """Say what happened, and what to do about it."""
        super().__init__(what)
        self.what = what
        self.fix = fix

    def __str__(self) -> str:
        """Return the code, what happened and the fix."""
        return f"{self.code}: {self.what}" + (f"; to fix it: {self.fix}" if self.fix else "")


class KernelUnsupported(KernelLayerError):  # noqa: N818 - it says what happened
    """The kernel, the architecture or the machine lacks what was asked for."""

    code = "os_sandbox_unsupported"


class KernelRefused(KernelLayerError):  # noqa: N818 - it says what happened
    """A control is less than active, and the configuration requires it: the application does not start."""

    code = "os_sandbox_required"


class SpawnFailed(KernelLayerError):  # noqa: N818 - it says what happened
    """The spawn server is gone or did not do what it was asked; no program was started."""

    code = "os_sandbox_spawn_failed"


class PolicyFileRefused(KernelLayerError):  # noqa: N818 - it says what happened
    """The file of the egress allowlist cannot be written or used as it is."""

    code = "os_sandbox_policy_refused"


class HelperFailed(KernelLayerError):  # noqa: N818 - it says what happened
    """The privileged helper could not be started or reached, or refused; ``reason`` is its word for why."""

    code = "os_sandbox_helper_failed"

    def __init__(self, what: str, *, fix: str = "", reason: str = "") -> None:
        """Say what happened, what to do about it, and the helper's word for it."""
        super().__init__(what, fix=fix)
        self.reason = reason


class HelperOpening(HelperFailed):
    """The helper has not opened the way for a connection yet: try again in a moment.

    Only event loops are told so. Their own connections try again by themselves.
    """

    is_logged = True
    """It is not a failure, and nothing is to be logged about it."""
