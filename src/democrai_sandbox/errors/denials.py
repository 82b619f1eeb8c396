"""Denials: policy said no. Each is a ``PermissionError`` whose text is the documented shape."""

from __future__ import annotations

import errno
import json
import os
from typing import TYPE_CHECKING, Any

from democrai_sandbox.policy import EXTERNAL_URL_LOCKED, SandboxError, Subject
from democrai_sandbox.policy.paths import folder_of_temporary
from democrai_sandbox.policy.patterns import literal_target
from democrai_sandbox.policy.rules import written_target

from . import fixes

if TYPE_CHECKING:
    from democrai_sandbox.policy import AccessDecision, SubjectChain

_EACCES = errno.EACCES
_REASON = os.strerror(_EACCES)


class SandboxDenied(SandboxError, PermissionError):  # noqa: N818 - it says what happened, not that something broke
    """Policy said no. ``str()`` is the documented shape; the attributes say the same in parts."""

    code = "sandbox_denied"
    layer = "guard"
    package = ""
    """The installed package that was being imported for an extension, where that is known."""
    names_path = False
    """Whether ``filename`` has the target, as in an error of the kernel."""

    def __init__(
        self,
        target: str,
        *,
        subject: str = "",
        subject_kind: str = "",
        chain: tuple[str, ...] = (),
        operations: tuple[str, ...] = (),
        installing: bool = False,
        opened_by: str = "",
    ) -> None:
        """Describe what was refused to whom."""
        if self.names_path:
            OSError.__init__(self, _EACCES, _REASON, target)
        else:
            OSError.__init__(self, _EACCES, _REASON)
        self.target = target
        self.subject = subject
        self.subject_kind = subject_kind
        self._chain = chain
        self.operations = operations
        self.installing = installing
        self.opened_by = opened_by

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
        asked += f", while the package {self.package!r} was imported" if self.package else ""
        return "\n".join(filter(None, (str(self), f"  {chain} asked for: {asked}", self.hint)))

    def _place(self, key: str) -> str:
        """Name the file and the section, or the call of the host, in which a declaration of this subject belongs."""
        if self.opened_by:
            return fixes.argument_of(self.opened_by, self.subject, key)
        return fixes.place_of(self.subject_kind, self.subject, key, installing=self.installing)


class FilesystemDenied(SandboxDenied):
    """A path lies outside what the subject declared for this operation."""

    code = "sandbox_filesystem_denied"
    names_path = True
    is_host_code = False
    """Whether it was a change of the code of the host, which no declaration allows."""

    def __str__(self) -> str:
        """Return ``sandbox_filesystem_denied:<subject>:<path>``."""
        return f"{self.code}:{self.subject}:{self.target}"

    @property
    def hint(self) -> str:
        """The manifest entry that would allow it, and the approval call for paths chosen at run time."""
        if self.is_host_code:
            return fixes.HOST_CODE.format(target=self.target)
        if self.operation == "execute":
            return fixes.NATIVE_PLACE.format(target=self.target)
        operation = list(self.operations) if len(self.operations) > 1 else self.operation
        folder = folder_of_temporary(self.target) if self.target.startswith("/") else ""
        target = literal_target(folder or self.target)
        entry = json.dumps({"resource_type": "filesystem", "operation": operation, "target": target})
        note = f"{fixes.TEMPORARY.format(target=self.target)}\n" if folder else ""
        return (
            f"Add to {self._place('access')}:\n  {entry}\n{note}"
            f"{fixes.ASK_FOR_PATH}{fixes.asking('filesystem', self.operation, self.target)}"
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
            return fixes.BY_REQUESTS
        if self.target == "socket":
            return fixes.BY_SOCKET
        if self.target.endswith("dir_fd"):
            return fixes.FULL_PATHS.format(target=self.target)
        return fixes.BY_PATH


class ModuleDenied(SandboxDenied):
    """A sensitive module was asked for by the subject's own code, or used."""

    code = "sandbox_module_denied"

    @property
    def hint(self) -> str:
        """Where the root is declared, and that it is a high-trust exception."""
        entry = json.dumps([self.target] if self.opened_by else {"allowed_imports": [self.target]})
        return (
            f"If native interop is really needed, declare it in {self._place('allowed_imports')}:\n  {entry}\n"
            f"{fixes.HIGH_TRUST}"
        )


class SubprocessDenied(SandboxDenied):
    """The subject tried to start, replace or act on a process."""

    code = "sandbox_subprocess_denied"

    @property
    def hint(self) -> str:
        """The supported way to start a child."""
        return fixes.OWN_SUBPROCESS.format(function=self.opened_by) if self.opened_by else fixes.SDK_SUBPROCESS


class EnvironmentDenied(SandboxDenied):
    """The subject tried to change a variable that the runtime owns."""

    code = "sandbox_env_denied"

    @property
    def hint(self) -> str:
        """Say that no declaration opens this."""
        if not self.target.startswith("DEMOCRAI_"):
            return fixes.OTHER_CODE.format(target=self.target)
        return fixes.RUNTIME_NAME


class TamperDenied(SandboxDenied):
    """The subject reached for the interpreter's own machinery, by which guards of others could be undone."""

    code = "sandbox_guard_denied"

    @property
    def hint(self) -> str:
        """Say that no declaration opens this."""
        return fixes.NEVER.format(target=self.target)


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
            return fixes.SOCKETS.get(self.target, fixes.OTHER_SOCKETS)
        if self.request_id:
            return fixes.WAITING.format(request=self.request_id)
        target = written_target("network", self.target)
        entry = json.dumps({"resource_type": "network", "operation": self.operation, "target": target})
        return (
            f"Add to {self._place('access')}:\n  {entry}\n"
            f"{fixes.ASK_FOR_TARGET}{fixes.asking('network', self.operation, self.target)}"
        )
