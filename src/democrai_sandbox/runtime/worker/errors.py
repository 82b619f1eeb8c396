"""What can go wrong with a worker, apart from what the code in it does."""

from __future__ import annotations

from democrai_sandbox.errors import CallTimeout, SandboxError

__all__ = ["FrameError", "WorkerBroken", "WorkerCrashed", "WorkerFailed", "WorkerFlooded", "WorkerTimeout"]

_LONGEST_LINE = 300


class WorkerFailed(SandboxError, RuntimeError):  # noqa: N818 - named after its code
    """The worker did not do its part: nothing was denied, and nothing is known of what the call achieved."""

    code = "worker_failed"

    def __init__(self, label: str, why: str, *, output: str = "") -> None:
        """Say whose worker it is, what happened, and what it last wrote to its standard error."""
        super().__init__(label, why, output)
        self.label = label
        self.why = why
        self.output = output

    @property
    def parts(self) -> tuple[str, str]:
        """What it is made of again on the other side of a guard or a process."""
        return self.label, self.why

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.code}:{self.label}: {self.why}"

    def before_ready(self) -> WorkerFailed:
        """Return the same for a process that ended before it could serve, with the last line that it wrote."""
        last = next((line.strip() for line in reversed(self.output.splitlines()) if line.strip()), "")
        said = f"; the last line it wrote is: {last[:_LONGEST_LINE]}" if last else ", without writing why"
        return type(self)(self.label, f"{self.why} before it was ready{said}", output=self.output)

    def diagnostics(self) -> str:
        """Return the line, and the end of the worker's standard error below it."""
        lines = (f"  | {line}" for line in self.output.splitlines())
        return "\n".join((str(self), *lines))


class WorkerCrashed(WorkerFailed):
    """The process ended while a call was in it. The next call starts another."""

    code = "worker_crashed"


class WorkerTimeout(WorkerFailed, CallTimeout):
    """A call took longer than it may. A worker that did not let go of it was ended."""

    code = "worker_timeout"


class WorkerBroken(WorkerFailed):
    """The worker failed to start several times in a row; the text says why, and when it is tried again."""

    code = "worker_broken"


class WorkerFlooded(WorkerFailed):
    """The worker kept sending more messages or bytes than it may of its own accord, and was ended."""

    code = "worker_flooded"


class FrameError(SandboxError, ValueError):
    """What came over the channel is no frame of ours."""

    code = "worker_frame"
