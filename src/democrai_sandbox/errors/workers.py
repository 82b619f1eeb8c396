"""Errors of worker processes."""

from __future__ import annotations

from democrai_sandbox.policy import SandboxError
from democrai_sandbox.policy.guidance import Guidance

from .extensions import CallTimeout

_LONGEST_LINE = 300


class WorkerFailed(SandboxError, RuntimeError):
    """A worker failed.

    Nothing was denied. It is unknown whether the call had an effect. ``output`` is the end of the worker's standard
    error.
    """

    code = "worker_failed"
    guidance = Guidance(
        cause="The worker could not be started, was stopped, or sent a malformed message.",
        fix="Read `diagnostics()`. The next call starts a new worker.",
        example="""\
A module in a worker is called while the host shuts down:
-> WorkerFailed: worker_failed:module:reports: it was stopped""",
        see=("modules.md",),
    )

    def __init__(self, label: str, why: str, *, output: str = "") -> None:
        """Take the label of the worker, the reason, and the end of its standard error."""
        super().__init__(label, why, output)
        self.label = label
        self.why = why
        self.output = output

    @property
    def parts(self) -> tuple[str, str]:
        """The arguments that rebuild the error across a guard or a process."""
        return self.label, self.why

    def __str__(self) -> str:
        """Return one line."""
        return f"{self.code}:{self.label}: {self.why}"

    def before_ready(self) -> WorkerFailed:
        """Return the same error for a worker that ended before it was ready, with its last line of output."""
        last = next((line.strip() for line in reversed(self.output.splitlines()) if line.strip()), "")
        said = f"; its last line was: {last[:_LONGEST_LINE]}" if last else ", without an error message"
        return type(self)(self.label, f"{self.why} before it was ready{said}", output=self.output)

    def diagnostics(self) -> str:
        """Return the line, followed by the end of the worker's standard error."""
        lines = (f"  | {line}" for line in self.output.splitlines())
        return "\n".join((str(self), *lines))


class WorkerCrashed(WorkerFailed):
    """A worker ended during a call.

    The text names the signal or the exit status. It is unknown whether the call had an effect.
    """

    code = "worker_crashed"
    guidance = Guidance(
        cause="Native code crashed, the worker ran out of memory, or another program killed it.",
        fix=(
            "Read `diagnostics()`, fix the extension or raise its memory limit, and retry: the next call starts a "
            "new worker."
        ),
        example="""\
os.abort()               # in an action of a module that runs in a worker
-> WorkerCrashed: worker_crashed:module:reports: it was ended by signal SIGABRT""",
        see=("modules.md",),
    )


class WorkerTimeout(WorkerFailed, CallTimeout):
    """A call in a worker exceeded its timeout.

    The call was canceled. A worker that did not stop the call was killed.
    """

    code = "worker_timeout"
    guidance = Guidance(
        cause="The call took longer than `call_timeout` of the settings, or than the `timeout` of its task.",
        fix="Move long work into a task, or raise `call_timeout`.",
        example="""\
while True: pass         # in an action of a module that runs in a worker
-> WorkerTimeout after 30 s, and the worker is killed""",
        see=("tasks.md",),
    )


class WorkerBroken(WorkerFailed):
    """A worker failed to start several times in a row.

    Calls fail at once until the time in the text, then the next call starts a worker again.
    """

    code = "worker_broken"
    guidance = Guidance(
        cause="The import of the extension ends the process or does not return, or its environment is damaged.",
        fix="Fix the extension, or install it again with `democrai-sandbox extensions install`.",
        example="""\
sys.exit(1)              # at the top of the file of a module that runs in a worker
-> WorkerBroken after a few calls""",
        see=("modules.md",),
    )


class WorkerFlooded(WorkerFailed):
    """A worker sent too many unsolicited messages and was killed.

    The limit covers messages and bytes that the host did not ask for. Results and streams do not count. The next call
    starts a new worker.
    """

    code = "worker_flooded"
    guidance = Guidance(
        cause="Code in the worker writes to the worker's socket, or calls the host from very many threads at once.",
        fix=(
            "Find the loop in the extension. The SDK waits for each answer of the host, so ordinary use stays "
            "below the limit."
        ),
        example="""\
A module in a worker finds the worker's socket and writes to it in a loop:
-> WorkerFlooded""",
        see=("modules.md",),
    )


class FrameError(SandboxError, ValueError):
    """A message on a worker's channel is malformed.

    Only code that implements a worker sees this; the host reports ``worker_failed``.
    """

    code = "worker_frame"
    guidance = Guidance(
        cause="Another program or the extension wrote to the channel.",
        fix="Remove the code that writes to the channel. The runtime stops the worker.",
        example="""\
os.write(3, b"hello")    # 3 is the channel of the worker
-> the host raises worker_failed, with FrameError as the reason""",
        see=("modules.md",),
    )
