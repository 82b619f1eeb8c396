"""Errors of workers themselves, apart from errors of the code in them."""

from __future__ import annotations

from democrai_sandbox.errors import CallTimeout, SandboxError

__all__ = ["FrameError", "WorkerBroken", "WorkerCrashed", "WorkerFailed", "WorkerFlooded", "WorkerTimeout"]

_LONGEST_LINE = 300


class WorkerFailed(SandboxError, RuntimeError):  # noqa: N818 - named after its code
    """The worker failed: nothing was denied, and the effect of the call is unknown."""

    code = "worker_failed"

    def __init__(self, label: str, why: str, *, output: str = "") -> None:
        """Take the subject's label, the reason, and the last lines of the worker's standard error."""
        super().__init__(label, why, output)
        self.label = label
        self.why = why
        self.output = output

    @property
    def parts(self) -> tuple[str, str]:
        """Constructor arguments, for rebuilding it on the other side of a guard or a process."""
        return self.label, self.why

    def __str__(self) -> str:
        return f"{self.code}:{self.label}: {self.why}"

    def before_ready(self) -> WorkerFailed:
        """Return the error for a process that ended before it could serve, with the last line that it wrote."""
        last = next((line.strip() for line in reversed(self.output.splitlines()) if line.strip()), "")
        said = f"; its last line was: {last[:_LONGEST_LINE]}" if last else ", without an error message"
        return type(self)(self.label, f"{self.why} before it was ready{said}", output=self.output)

    def diagnostics(self) -> str:
        """Return the error line, followed by the last lines of the worker's standard error."""
        lines = (f"  | {line}" for line in self.output.splitlines())
        return "\n".join((str(self), *lines))


class WorkerCrashed(WorkerFailed):
    """The process ended during a call. The next call starts a new one."""

    code = "worker_crashed"


class WorkerTimeout(WorkerFailed, CallTimeout):
    """A call exceeded its timeout. If the worker did not stop the call, the worker was stopped."""

    code = "worker_timeout"


class WorkerBroken(WorkerFailed):
    """The worker failed to start several times in a row; the text has the reason and the time of the next attempt."""

    code = "worker_broken"


class WorkerFlooded(WorkerFailed):
    """The worker sent more messages or bytes than its rate limit allows, and was stopped."""

    code = "worker_flooded"


class FrameError(SandboxError, ValueError):
    """The message on the channel is not a valid frame."""

    code = "worker_frame"
