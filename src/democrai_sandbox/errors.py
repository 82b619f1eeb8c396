"""The one error tree: denials, failures of the check itself, and misuse. Bad input is in ``policy.problems``.

Three different things, three branches: policy said no (``SandboxDenied``, a ``PermissionError``), no decision could be
had (``ExternalAccessCheckFailed``), and the call itself was wrong (``GuardUsageError``, ``InvalidInputError``).
"""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING, Any

from .policy import EXTERNAL_URL_LOCKED, InvalidInputError, NetworkTargetMissingError, Problem, SandboxError, Subject

if TYPE_CHECKING:
    from .policy import AccessDecision, SubjectChain

__all__ = [
    "AccountConflict",
    "AccountUnknown",
    "AddressTaken",
    "CallTimeout",
    "CommandMisused",
    "CommandRefused",
    "ConfigInvalid",
    "ConfirmationNeeded",
    "DecisionConflict",
    "DecisionUnknown",
    "EnvironmentDenied",
    "ExtensionBroken",
    "ExtensionFailed",
    "ExtensionUnknown",
    "ExternalAccessAdminRequired",
    "ExternalAccessCheckFailed",
    "FilesystemDenied",
    "FilesystemFdDenied",
    "GuardSealedError",
    "GuardUsageError",
    "HelperFailed",
    "HostRefused",
    "InstallFailed",
    "InvalidInputError",
    "KernelLayerError",
    "KernelRefused",
    "KernelUnsupported",
    "ModuleDenied",
    "NetworkDenied",
    "NetworkTargetMissingError",
    "NoRuntime",
    "NodeRefused",
    "NodeUnreachable",
    "NotInstalled",
    "NotSignedIn",
    "PolicyFileRefused",
    "Problem",
    "RequestUnknown",
    "ResumeContextUnreadable",
    "RuntimeServiceFailed",
    "SandboxDenied",
    "SandboxError",
    "SchemaOutdated",
    "ScopeMissing",
    "SignInRefused",
    "SignInThrottled",
    "SpawnFailed",
    "StateUnusable",
    "StoreUnavailable",
    "SubprocessDenied",
    "TamperDenied",
    "TaskQueueFull",
    "TaskUnknown",
]

_SOCKET_HINTS = {
    "socket:foreign": "The socket belongs to the host or to another subject: open a connection of your own.",
    "socket:option": "Options that lead packets by way of other hosts are not available inside a guard.",
}
_SECTIONS = {"engine": "runtime", "extractor": "runtime"}


class SandboxDenied(SandboxError, PermissionError):  # noqa: N818 - it says what happened, not that something broke
    """Policy said no. ``str()`` is the documented shape; the attributes say the same in parts."""

    code = "sandbox_denied"
    layer = "guard"

    def __init__(
        self,
        target: str,
        *,
        subject: str = "",
        subject_kind: str = "",
        chain: tuple[str, ...] = (),
        operations: tuple[str, ...] = (),
        installing: bool = False,
    ) -> None:
        """Describe what was refused to whom."""
        super().__init__(errno.EACCES, target)
        self.target = target
        self.subject = subject
        self.subject_kind = subject_kind
        self._chain = chain
        self.operations = operations
        self.installing = installing

    @property
    def subject_chain(self) -> SubjectChain:
        """The nested subjects, outermost first. Read only when asked for: many denials are caught and forgotten."""
        return tuple(map(Subject.parse, self._chain))

    @property
    def operation(self) -> str:
        """The operation that was missing; the first, when one of several would have done."""
        return self.operations[0] if self.operations else ""

    @property
    def hint(self) -> str:
        """What to declare and where, or what to use instead."""
        return ""

    def __str__(self) -> str:
        """Return the documented error shape."""
        return f"{self.code}:{self.target}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild the same denial in another process."""
        return (type(self), (self.target,), self.__dict__)

    def diagnostics(self) -> str:
        """Return the shape, who asked for what, and the hint."""
        chain = " -> ".join(self._chain) or f"{self.subject_kind}:{self.subject}"
        asked = f"{self.operation} {self.target}".strip()
        return "\n".join(filter(None, (str(self), f"  {chain} asked for: {asked}", self.hint)))

    def _place(self, key: str) -> str:
        """Name the file and the section in which a declaration of this subject belongs."""
        kind, name = self.subject_kind, self.subject
        if kind in _SECTIONS:
            section = "install" if self.installing else _SECTIONS[kind]
            return f'"{key}" in the "{section}" section of manifest.json of {kind} {name}'
        if kind in {"tool", "agent", "pipeline", "skill"}:
            return f'"{key}" of the declaration of {kind} {name} (or of manifest.json of the module around it)'
        if kind == "mcp":
            return f"the endpoint_url in the registry entry of MCP server {name}"
        return f'"{key}" in manifest.json of module {name}'


class FilesystemDenied(SandboxDenied):
    """A path lies outside what the subject declared for this operation."""

    code = "sandbox_filesystem_denied"

    def __str__(self) -> str:
        """Return ``sandbox_filesystem_denied:<subject>:<path>``."""
        return f"{self.code}:{self.subject}:{self.target}"

    @property
    def hint(self) -> str:
        """The manifest entry that would allow it, and the approval call for paths chosen at run time."""
        operation = list(self.operations) if len(self.operations) > 1 else self.operation
        entry = json.dumps({"resource_type": "filesystem", "operation": operation, "target": self.target})
        return (
            f"Add to {self._place('access')}:\n  {entry}\n"
            "If the path is chosen while the application runs, ask for approval instead: "
            f'sdk.access.check_external_access(resource_type="filesystem", operation="{self.operation}", '
            f"target={self.target!r})"
        )


class FilesystemFdDenied(SandboxDenied):
    """A file was reached for by descriptor in a way that does not belong to the subject."""

    code = "sandbox_filesystem_fd_denied"

    def __str__(self) -> str:
        """Return ``sandbox_filesystem_fd_denied:<subject>:<key>``."""
        return f"{self.code}:{self.subject}:{self.target}"

    @property
    def hint(self) -> str:
        """What to use instead."""
        if self.target == "http-connection":
            return "This connection was opened for HTTP requests, and they are read as they are sent: use its send()."
        if self.target == "socket":
            return "Send on the socket itself: a file object over it is not available inside a guard."
        if self.target.endswith("dir_fd"):
            return f"Use a full path instead of {self.target}: descriptor-relative names are for install phases."
        return "Open the file by its path inside the guard; numbers of descriptors that belong to others are refused."


class ModuleDenied(SandboxDenied):
    """A sensitive module was asked for by the subject's own code, or used."""

    code = "sandbox_module_denied"

    @property
    def hint(self) -> str:
        """Where the root is declared, and that it is a high-trust exception."""
        entry = json.dumps({"allowed_imports": [self.target]})
        return (
            f"If native interop is really needed, declare it in {self._place('allowed_imports')}:\n  {entry}\n"
            "It can do whatever the process can; prefer a dependency that does without."
        )


class SubprocessDenied(SandboxDenied):
    """The subject tried to start, replace or act on a process."""

    code = "sandbox_subprocess_denied"

    @property
    def hint(self) -> str:
        """The supported way to start a child."""
        return "Start the child with await sdk.tasks.run_subprocess([...]): the runtime gives it a guarded environment."


class EnvironmentDenied(SandboxDenied):
    """The subject tried to change a variable that the runtime owns."""

    code = "sandbox_env_denied"

    @property
    def hint(self) -> str:
        """Say that no declaration opens this."""
        if not self.target.startswith("DEMOCRAI_"):
            return f"{self.target} would make programs, or the process itself, use other code or names than their own."
        return "DEMOCRAI_* belongs to the runtime, which sets it for children by itself; use another name."


class TamperDenied(SandboxDenied):
    """The subject reached for the interpreter's own machinery, by which guards of others could be undone."""

    code = "sandbox_guard_denied"

    @property
    def hint(self) -> str:
        """Say that no declaration opens this."""
        return f"{self.target} is not available inside a guard; no declaration allows it."


class NetworkDenied(SandboxDenied):
    """A network target is not enabled for the subject."""

    code = "sandbox_network_denied"
    decision: AccessDecision | None = None
    """What the decider said, when it gave its reasons."""

    @property
    def request_id(self) -> str | None:
        """The pending request for this target, when there is one."""
        return self.decision.request_id if self.decision else None

    def __str__(self) -> str:
        """Return the documented answer for a locked target, or what the decider said."""
        message = self.decision.message if self.decision else EXTERNAL_URL_LOCKED
        return f"{message} ({self.code}:{self.subject}:{self.target})"

    @property
    def hint(self) -> str:
        """The manifest entry that would allow it, and the approval call for targets chosen at run time."""
        if self.target.startswith("socket:"):
            return _SOCKET_HINTS.get(self.target, "Only TCP, UDP and unix sockets are available inside a guard.")
        if self.request_id:
            return f"Request {self.request_id} is waiting for an administrator to approve or deny it."
        entry = json.dumps({"resource_type": "network", "operation": self.operation, "target": self.target})
        return (
            f"Add to {self._place('access')}:\n  {entry}\n"
            "If the target is chosen while the application runs, ask for approval instead: "
            f'sdk.access.check_external_access(resource_type="network", operation="{self.operation}", '
            f"target={self.target!r})"
        )


class ExternalAccessCheckFailed(SandboxError, RuntimeError):  # noqa: N818 - named after its code
    """The approval check itself failed: nothing was decided and nothing was allowed."""

    code = "sandbox_external_access_check_failed"

    def __str__(self) -> str:
        """Return the code; the cause is chained."""
        return self.code


class StoreUnavailable(ExternalAccessCheckFailed):
    """The database could not be reached or did not answer; what was to be written was not."""


class ExternalAccessAdminRequired(SandboxError, PermissionError):  # noqa: N818 - named after its code
    """Only a super user who is not scoped to an organization decides, and never guarded code about itself."""

    code = "external_access_admin_required"

    def __init__(self, why: str = "") -> None:
        """Say why this caller may not decide."""
        super().__init__(errno.EACCES, why)
        self.why = why

    def __str__(self) -> str:
        """Return the documented shape, which is the code alone."""
        return self.code

    def diagnostics(self) -> str:
        """Return the code and what is missing."""
        return f"{self.code}: {self.why}" if self.why else self.code


class RequestUnknown(SandboxError, LookupError):  # noqa: N818 - it says what happened
    """No request has this id."""

    code = "external_access_request_unknown"


class DecisionUnknown(SandboxError, LookupError):  # noqa: N818 - it says what happened
    """No decision has this id."""

    code = "external_access_decision_unknown"


class DecisionConflict(SandboxError, RuntimeError):  # noqa: N818 - it says what happened
    """Somebody else decided first, or another decision stands in the way; nothing was changed."""

    code = "external_access_conflict"


class SchemaOutdated(SandboxError, RuntimeError):  # noqa: N818 - it says what is wrong
    """The database has another schema than this version needs; the text names the command that upgrades it."""

    code = "external_access_schema_outdated"


class ResumeContextUnreadable(SandboxError, ValueError):  # noqa: N818 - it says what is wrong
    """A stored resume context does not decrypt: its key is gone, or it was changed or moved to another request."""

    code = "external_access_resume_context_unreadable"


class GuardUsageError(SandboxError, RuntimeError):
    """A guard was entered, left or used in a way that could not be safe."""

    code = "sandbox_guard_usage"


class GuardSealedError(GuardUsageError):
    """The guard's settings were touched after the first guard was entered, or from inside one."""

    code = "sandbox_guard_sealed"


class ExtensionUnknown(SandboxError, LookupError):  # noqa: N818 - it says what happened
    """No extension has this name, or it has no action, command, task or method of that name."""

    code = "extension_unknown"


class ExtensionBroken(SandboxError, RuntimeError):  # noqa: N818 - it says what is wrong
    """The extension could not be loaded; its entry in the registry has all that is wrong with it."""

    code = "extension_broken"


class ExtensionFailed(SandboxError, RuntimeError):  # noqa: N818 - it says what happened
    """The extension's own code raised something. What it raised is told in texts: the object stays where it is."""

    code = "extension_failed"

    def __init__(self, message: str, *, kind: str = "", traceback: str = "") -> None:
        """Take the text, the name of the exception's class, and where it was raised."""
        super().__init__(f"{kind}: {message}" if kind else message)
        self.kind = kind
        self.message = message
        self.traceback = traceback

    def diagnostics(self) -> str:
        """Return the text, and where it was raised."""
        return "\n".join(filter(None, (super().diagnostics(), self.traceback.rstrip())))


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


class ConfigInvalid(InvalidInputError):  # noqa: N818 - it says what is wrong
    """The configuration was refused: each problem says in which file and line, or in which variable."""

    code = "config_invalid"


class HostRefused(SandboxError, RuntimeError):  # noqa: N818 - it says what happened
    """The host does not start, and says what would let it. Nothing was changed."""

    code = "host_refused"

    def __init__(self, what: str, *, fix: str = "") -> None:
        """Say what is wrong, and what to do about it."""
        super().__init__(what)
        self.what = what
        self.fix = fix

    def diagnostics(self) -> str:
        """Return what is wrong and the fix below it."""
        head = f"{self.code}: {self.what}"
        return f"{head}\n  to fix it: {self.fix}" if self.fix else head


class StateUnusable(HostRefused):
    """A folder or file that the host keeps its state in cannot be made, read or written."""

    code = "host_state_unusable"


class AddressTaken(HostRefused):
    """The address to listen at belongs to somebody else already, or is none of this machine's."""

    code = "host_address_taken"


class NotSignedIn(SandboxError, PermissionError):  # noqa: N818 - it says what is missing
    """Nobody is known to send this request; a person signs in at ``location``."""

    code = "not_signed_in"

    def __init__(self, location: str = "") -> None:
        """Say where a person signs in, and comes back from."""
        super().__init__(errno.EACCES, "nobody is signed in")
        self.location = location

    def __str__(self) -> str:
        """Say it without the address."""
        return "nobody is signed in"


class ConfirmationNeeded(SandboxError, PermissionError):  # noqa: N818 - it says what is missing
    """The password was given too long ago for this act; it is given again at ``location``."""

    code = "confirmation_needed"

    def __init__(self, location: str = "") -> None:
        """Say where the password is given again."""
        super().__init__(errno.EACCES, "the password has to be given again")
        self.location = location

    def __str__(self) -> str:
        """Say it without the address."""
        return "the password has to be given again"


class ScopeMissing(SandboxError, PermissionError):  # noqa: N818 - it says what is missing
    """The token is good for other things than this."""

    code = "scope_missing"

    def __init__(self, scope: str) -> None:
        """Name the scope that would do."""
        super().__init__(errno.EACCES, scope)
        self.scope = str(scope)

    def __str__(self) -> str:
        """Name what is missing."""
        return f"the token lacks the scope {self.scope}"


class SignInRefused(SandboxError, RuntimeError):  # noqa: N818 - it says what happened
    """Name and password do not belong together, or the person is shut out: which of them is not told."""

    code = "sign_in_refused"

    def __str__(self) -> str:
        """Say no more than that."""
        return "the name or the password is wrong"


class SignInThrottled(SandboxError, RuntimeError):  # noqa: N818 - it says what happened
    """Too many sign-ins failed; the next is tried after ``retry_after`` seconds. Nothing was compared."""

    code = "sign_in_throttled"

    def __init__(self, retry_after: int) -> None:
        """Say how long to wait."""
        super().__init__(retry_after)
        self.retry_after = retry_after

    def __str__(self) -> str:
        """Say how long to wait."""
        return f"too many sign-ins failed: try again in {self.retry_after} s"


class AccountUnknown(SandboxError, LookupError):  # noqa: N818 - it says what happened
    """There is no such person, session or token, or none that the one who asks may touch."""

    code = "account_unknown"


class AccountConflict(SandboxError, RuntimeError):  # noqa: N818 - it says what happened
    """A name is taken, or what was asked would leave nobody who can decide; nothing was changed."""

    code = "account_conflict"


class CommandRefused(HostRefused):
    """A command of the command line was not carried out. Nothing was changed."""

    code = "command_refused"


class CommandMisused(CommandRefused):
    """A command cannot be carried out as it was given: its arguments, or a question that nobody can answer."""

    code = "command_misused"


class NodeUnreachable(HostRefused):
    """No node answers at the address, or what answers is none. Whether a change that was sent was made is not known."""

    code = "node_unreachable"


class NodeRefused(SandboxError, RuntimeError):  # noqa: N818 - it says what happened
    """A node said no; ``answer`` is its problem document, whose code is that of the error there."""

    code = "node_refused"

    def __init__(self, status: int, answer: dict[str, Any]) -> None:
        """Take the HTTP status and the problem document."""
        super().__init__(status, answer)
        self.status = status
        self.answer = answer

    def __str__(self) -> str:
        """Say what the node said."""
        return f"{self.answer.get('code') or self.code}: {self.answer.get('detail') or f'HTTP status {self.status}'}"

    def diagnostics(self) -> str:
        """Return what the node said, every problem with the input, and the hint."""
        lines = [str(self), *(f"  - {_told(problem)}" for problem in self.answer.get("problems") or ())]
        if self.answer.get("hint"):
            lines.append(str(self.answer["hint"]))
        return "\n".join(lines)


def _told(problem: dict[str, Any]) -> Problem:
    return Problem(str(problem.get("pointer", "")), str(problem.get("message", "")), problem.get("suggestion"))
