"""What a host meets when it runs extensions, and an extension when it uses the runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from democrai_sandbox.policy import SandboxError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from democrai_sandbox.policy import Problem


class ExtensionUnknown(SandboxError, LookupError):  # noqa: N818 - it says what happened
    """No extension has this name, or it has no action, command, task or method of that name."""

    code = "extension_unknown"


class ExtensionBroken(SandboxError, RuntimeError):  # noqa: N818 - it says what is wrong
    """The extension could not be loaded; its entry in the registry has all that is wrong with it."""

    code = "extension_broken"


class ExtensionFailed(SandboxError, RuntimeError):  # noqa: N818 - it says what happened
    """The extension's own code raised something. What it raised is told in texts: the object stays where it is."""

    code = "extension_failed"

    def __init__(self, message: str, *, kind: str = "", traceback: str = "", advice: str = "") -> None:
        """Take the text, the name of the exception's class, where it was raised, and what helps."""
        super().__init__(f"{kind}: {message}" if kind else message)
        self.kind = kind
        self.message = message
        self.traceback = traceback
        self.advice = advice

    def diagnostics(self) -> str:
        """Return the text, where it was raised, and what helps."""
        return "\n".join(filter(None, (super().diagnostics(), self.traceback.rstrip(), self.advice)))


class ResultInvalid(ExtensionFailed):
    """The extension's own code returned something that cannot be passed on: no plain data, or too much of it."""

    code = "extension_result_invalid"

    def __init__(self, message: str, *, problems: Iterable[Problem] = ()) -> None:
        """Take the text, and everything that is wrong, each with its place in the result."""
        super().__init__(message)
        self.problems = tuple(problems)

    @classmethod
    def of(cls, problems: Iterable[Problem]) -> ResultInvalid:
        """Return the error for these problems."""
        found = tuple(problems)
        return cls(f"the result cannot be passed on: {'; '.join(map(str, found))}", problems=found)


class CallTimeout(SandboxError, TimeoutError):  # noqa: N818 - it says what happened
    """A call into an extension took longer than it may, and was cancelled."""

    code = "extension_timeout"


class NoRuntime(SandboxError, RuntimeError):  # noqa: N818 - it says what is missing
    """The SDK was used in a process that runs no extensions; ``sdk.testing`` has a runtime for tests."""

    code = "extension_no_runtime"


class RuntimeServiceFailed(SandboxError, RuntimeError):  # noqa: N818 - it says what happened
    """A service of the runtime failed while it worked for an extension. The host's log has the details."""

    code = "extension_service_failed"


class NotInstalled(SandboxError, RuntimeError):  # noqa: N818 - it says what is missing
    """An engine or extractor has no finished environment for its present requirements; the text names the fix."""

    code = "extension_not_installed"


class InstallFailed(SandboxError, RuntimeError):  # noqa: N818 - it says what happened
    """An environment could not be built; the one before it, if any, is still in use."""

    code = "extension_install_failed"


class TaskUnknown(SandboxError, LookupError):  # noqa: N818 - it says what happened
    """No task has this id, or none that the one who asks may see."""

    code = "runtime_task_unknown"


class TaskQueueFull(SandboxError, RuntimeError):  # noqa: N818 - it says what happened
    """As many tasks of the module wait as may; this one was not taken."""

    code = "runtime_task_queue_full"
