"""Denials by policy with their hints, and misuse of the guard. A denial is a ``PermissionError``."""

from __future__ import annotations

import errno
import json
import os
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from democrai_sandbox.policy import EXTERNAL_URL_LOCKED, SandboxError, Subject
from democrai_sandbox.policy.paths import folder_of_temporary, literal_target
from democrai_sandbox.policy.problems import Word
from democrai_sandbox.policy.rules import written_target

if TYPE_CHECKING:
    from collections.abc import Mapping

    from democrai_sandbox.policy import AccessDecision, SubjectChain

FULL_PATHS = "Use a full path instead of {target}: descriptor-relative names are for install phases."
BY_PATH = "Open the file by its path inside the guard; descriptors of other owners are refused."
BY_SOCKET = "Send with the methods of the socket: a file object for it is not available inside a guard."
BY_REQUESTS = "This connection was opened for HTTP requests, which the guard checks as they are sent: use its send()."
HIGH_TRUST = "It then has all rights of the process; prefer a dependency that does not need it."
SDK_SUBPROCESS = (
    "Start the child with await sdk.tasks.run_subprocess([...]): the runtime gives it a guarded environment."
)
OWN_SUBPROCESS = (
    "Pass allow_subprocess=True to {function}(...): programs that the subject starts then have the rights of the "
    "application. Or start the program outside the guard."
)
RUNTIME_NAME = "DEMOCRAI_* belongs to the runtime, which sets it for children; use another name."
OTHER_CODE = "{target} could make programs, or this process, load other code or resolve other names."
NEVER = "{target} is not available inside a guard; no declaration allows it."
WAITING = "Request {request} is waiting for an administrator to approve or deny it."
HOST_CODE = (
    "{target} belongs to the Python environment of the application, or is one of its parent folders. "
    "Extensions cannot change it, even if a rule covers it: write to sdk.data_dir() or another folder."
)
NATIVE_PLACE = (
    "Native modules load only from installed packages, never from a folder that extensions can write. "
    "Install the package that {target} belongs to into the Python environment that runs the extension."
)
TEMPORARY = "The entry names the folder, because the name of {target} differs in every run."
ASK_FOR_PATH = "If the path is chosen at run time, ask for approval instead: "
ASK_FOR_TARGET = "If the target is chosen at run time, ask for approval instead: "
OTHER_SOCKETS = "Only TCP, UDP and unix sockets are available inside a guard."
SOCKETS: Mapping[str, str] = MappingProxyType(
    {
        "socket:kernel": (
            "The kernel gives this process no network sockets, because the subject declares no network access. "
            "Declare the targets that it connects to. For a server on loopback, declare its address and port:\n"
            '  {"resource_type": "network", "operation": "receive", "target": "127.0.0.1:8080"}'
        ),
        "socket:foreign": "The socket belongs to the host or to another subject: open a new connection.",
        "socket:option": "Options that route packets through other hosts are not available inside a guard.",
    }
)


def asking(resource_type: str, operation: str, target: str) -> str:
    """Return the call that asks for approval."""
    return (
        f'sdk.access.check_external_access(resource_type="{resource_type}", operation="{operation}", target={target!r})'
    )


def place_of(kind: str, name: str, key: str, *, installing: bool = False) -> str:
    """Return the file and section where a subject declares ``key``."""
    if kind in {"engine", "extractor"}:
        section = "install" if installing else "runtime"
        return f'"{key}" in the "{section}" section of manifest.json of {kind} {name}'
    if kind in {"skill", "core"}:
        return f'"{key}" of the process_guard_context(...) with which the host runs {kind} {name}'
    if kind in {"tool", "agent", "pipeline"}:
        return f'"{key}" of the declaration of {kind} {name} (or of manifest.json of its module)'
    if kind == "mcp":
        return f"the endpoint_url in the registry entry of MCP server {name}"
    if kind == "task":
        return f'"{key}" in manifest.json of module {name.rpartition(".")[0] or name}'
    return f'"{key}" in manifest.json of module {name}'


_EACCES = errno.EACCES
_REASON = os.strerror(_EACCES)
_WHERE_TO_DECLARE = (
    "A module and its tasks declare access in `access` of the module's `manifest.json`; an engine or extractor in "
    "`access` of the `runtime` or `install` section; a tool, agent or pipeline in its declaration. An MCP server has "
    "its registered endpoint only."
)


class SandboxDenied(SandboxError, PermissionError):
    """Base class of all denials.

    Catch it to handle every denial. The guard raises one of its subclasses. ``str()`` is the documented shape; the
    attributes hold its parts.
    """

    code = "sandbox_denied"
    guidance = """
    Cause: The policy of the subject does not allow the operation. The code of the subclass says which kind.
    Fix: Look up the code at the beginning of the error text, or print `diagnostics()`, which has the hint.
    Example:
    try:
        open("/etc/shadow")
    except SandboxDenied as denial:
        print(denial.code, denial.operation, denial.target)
    -> sandbox_filesystem_denied read /etc/shadow
    See: troubleshooting.md
    """
    layer = "guard"
    package = ""
    """Installed package whose import by an extension caused the denial, if known."""
    names_path = False
    """Whether ``filename`` holds the target, as in an error of the kernel."""
    names_subject = False
    """Whether the documented shape contains the subject."""

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
        """The call chain, outermost subject first; parsed on demand, because many denials are never inspected."""
        return tuple(map(Subject.parse, self._chain))

    @property
    def operation(self) -> str:
        """The missing operation, or the first of several."""
        return self.operations[0] if self.operations else ""

    @property
    def hint(self) -> str:
        """The missing declaration and its place, or the alternative."""
        return ""

    def __str__(self) -> str:
        """Return the documented error shape: ``code:target`` or ``code:subject:target``."""
        return f"{self.code}:{self.subject}:{self.target}" if self.names_subject else f"{self.code}:{self.target}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.target,), self.__dict__)

    def diagnostics(self) -> str:
        """Return the shape, the call chain with the refused access, and the hint."""
        chain = " -> ".join(self._chain) or f"{self.subject_kind}:{self.subject}"
        asked = f"{self.operation} {self.target}".strip()
        asked += f", while the package {self.package!r} was imported" if self.package else ""
        return "\n".join(filter(None, (str(self), f"  {chain} asked for: {asked}", self.hint)))

    def _place(self, key: str) -> str:
        """Return the file and section, or the call of the host, where this subject declares ``key``."""
        if self.opened_by:
            return f"{key}=[...] of {self.opened_by}(subject={self.subject!r}, ...)"
        return place_of(self.subject_kind, self.subject, key, installing=self.installing)

    def _entry_or(self, ask: str, resource_type: str, operation: str | list[str], target: str) -> str:
        """Return the entry to declare with its place, and after ``ask`` the call that asks for approval."""
        entry = json.dumps({"resource_type": resource_type, "operation": operation, "target": target})
        asked = asking(resource_type, self.operation, self.target)
        return f"Add to {self._place('access')}:\n  {entry}\n{ask}{asked}"


class FilesystemDenied(SandboxDenied):
    """A path is outside the declared access of the subject.

    The subject has no rule for this operation on this path. ``operation`` is ``read``, ``create``, ``modify``,
    ``delete`` or ``execute``. The answer is the same whether the path exists or not.
    """

    code = "sandbox_filesystem_denied"
    guidance = f"""
    Shape: sandbox_filesystem_denied:<subject>:<path>
    Cause: The path, after resolving links and `..`, is not below a declared root; or the root is declared for another
    operation (`read`, but the file was opened for writing) or another phase (`install` instead of `runtime`); or the
    host protects the path. Moving and linking need rights at both ends. Subjects can never change the Python
    environment of the application. `execute` is missing for a native module outside of the installed packages.
    Fix: Add the entry in `hint` to the manifest, as narrow as possible. {_WHERE_TO_DECLARE} For a path that a user
    chooses at run time, call `sdk.access.check_external_access` before opening it: a denied file operation files no
    request. If the path surprises you, look for a symbolic link. A protected path cannot be allowed. Install native
    modules into the environment that runs the extension.
    Example:
    open("/etc/passwd")      # in module reports, which declares {{"operation": "read", "target": "/srv/sales"}}
    -> PermissionError: sandbox_filesystem_denied:reports:/etc/passwd
    See: manifests.md approvals.md#for-extensions-asking
    """
    names_path = names_subject = True
    is_host_code = False
    """Whether the subject tried to change code of the host, which no declaration allows."""

    @property
    def hint(self) -> str:
        """The missing manifest entry, and the approval call for paths chosen at run time."""
        if self.is_host_code:
            return HOST_CODE.format(target=self.target)
        if self.operation == "execute":
            return NATIVE_PLACE.format(target=self.target)
        operation = list(self.operations) if len(self.operations) > 1 else self.operation
        folder = folder_of_temporary(self.target) if self.target.startswith("/") else ""
        note = f"{TEMPORARY.format(target=self.target)}\n" if folder else ""
        return self._entry_or(note + ASK_FOR_PATH, "filesystem", operation, literal_target(folder or self.target))


class FilesystemFdDenied(SandboxDenied):
    """A file was accessed by descriptor instead of by path.

    The guard cannot check such an access, or the descriptor does not belong to the subject.
    """

    code = "sandbox_filesystem_fd_denied"
    guidance = """
    Shape: sandbox_filesystem_fd_denied:<subject>:<key>
    Cause: `<key>` is `dir_fd`, `src_dir_fd` or `dst_dir_fd` for an argument of this name, which only install phases and
    children may use. It is `fd` for the number of a pipe, socket or other object that the subject did not open. It is
    `http-connection` or `socket` for a connection that was written to by its number or through a file object, so that
    the guard could not read the data.
    Fix: Use full paths below a declared root instead of `dir_fd`. Send data with the methods of the socket. Open files
    inside the guard; let the host pass data instead of descriptors.
    Example:
    folder = os.open("/srv/sales", os.O_RDONLY)
    os.open("may.csv", os.O_RDONLY, dir_fd=folder)
    -> PermissionError: sandbox_filesystem_fd_denied:reports:dir_fd
    See: troubleshooting.md
    """
    names_subject = True

    @property
    def hint(self) -> str:
        """The alternative to use."""
        if self.target.endswith("dir_fd"):
            return FULL_PATHS.format(target=self.target)
        return {"http-connection": BY_REQUESTS, "socket": BY_SOCKET}.get(self.target, BY_PATH)


class ModuleDenied(SandboxDenied):
    """A sensitive module is not declared.

    The subject imported a module that can bypass the guard, or used one that a library had loaded.
    """

    code = "sandbox_module_denied"
    guidance = """
    Shape: sandbox_module_denied:<root>
    Cause: The code imports `ctypes`, `_ctypes`, `cffi`, `_cffi_backend` or a module that the host added to the list,
    also through `importlib` or `sys.modules`. Or a native extension is outside of the code roots.
    Fix: Avoid the module, or a dependency that needs it. If you trust the code, declare `{"allowed_imports":
    ["ctypes"]}`: it then has all rights of the process. Install native extensions into the environment, not into a
    folder that the subject may write.
    Example:
    import ctypes            # in the module's own code
    -> PermissionError: sandbox_module_denied:ctypes
    See: manifests.md
    """

    @property
    def hint(self) -> str:
        """The declaration of the root, with a warning."""
        entry = json.dumps([self.target] if self.opened_by else {"allowed_imports": [self.target]})
        return (
            f"If native interop is really needed, declare it in {self._place('allowed_imports')}:\n  {entry}\n"
            f"{HIGH_TRUST}"
        )


class SubprocessDenied(SandboxDenied):
    """The subject may not start or control a process here.

    ``<entrypoint>`` is the refused function, such as ``subprocess.Popen`` or ``os.fork``.
    """

    code = "sandbox_subprocess_denied"
    guidance = """
    Shape: sandbox_subprocess_denied:<entrypoint>
    Cause: Pages, actions and commands of modules may not start programs directly. Libraries do it too, for example to
    read the version of a program.
    Fix: In a module, call `await sdk.tasks.run_subprocess([...])`: the runtime starts the child with a guarded
    environment. Engines and extractors start programs in their install phase only, MCP servers never.
    Example:
    subprocess.run(["convert", "a.png", "a.jpg"])
    -> PermissionError: sandbox_subprocess_denied:subprocess.Popen
    See: tasks.md
    """

    @property
    def hint(self) -> str:
        """The supported call that starts a child."""
        return OWN_SUBPROCESS.format(function=self.opened_by) if self.opened_by else SDK_SUBPROCESS


class EnvironmentDenied(SandboxDenied):
    """The subject may not change this environment variable.

    Variables that start with ``DEMOCRAI_`` carry the guard into children and belong to the runtime.
    """

    code = "sandbox_env_denied"
    guidance = """
    Shape: sandbox_env_denied:<name>
    Cause: The code set or removed a `DEMOCRAI_` variable, in its environment or that of a child. `LOCALDOMAIN`,
    `RES_OPTIONS` and `HOSTALIASES` are refused too, because they redirect name lookups of the whole process. A child
    may also not get variables that load other code, such as `LD_PRELOAD`.
    Fix: Use another name for your variable. To start a Python child under the same guard, the host calls
    `child_environment()`. Set resolver options in the host, before the guard.
    Example:
    os.environ["DEMOCRAI_ACCESS"] = "[]"
    -> PermissionError: sandbox_env_denied:DEMOCRAI_ACCESS
    See: tasks.md
    """

    @property
    def hint(self) -> str:
        """A note that no declaration allows this."""
        if not self.target.startswith("DEMOCRAI_"):
            return OTHER_CODE.format(target=self.target)
        return RUNTIME_NAME


class TamperDenied(SandboxDenied):
    """The subject used an interpreter function that could disable a guard.

    No declaration and no approval allows it.
    """

    code = "sandbox_guard_denied"
    guidance = """
    Shape: sandbox_guard_denied:<function>
    Cause: The code called, for example, `gc.get_objects`, traced threads of other subjects, replaced the code of a
    function, created code objects or interpreters, loaded a SQLite extension, changed names of the sandbox, or opened
    the bypass.
    Fix: Avoid the function inside a guard. Tracing and profiling the subject's own code is allowed.
    Example:
    gc.get_objects()
    -> PermissionError: sandbox_guard_denied:gc.get_objects
    See: compatibility.md
    """

    @property
    def hint(self) -> str:
        """A note that no declaration allows this."""
        return NEVER.format(target=self.target)


class NetworkDenied(SandboxDenied):
    """A network target is not allowed for the subject.

    Nothing was sent: no HTTP request, no packet, no name lookup. ``operation`` is ``receive`` (reading over HTTP or a
    websocket, listening), ``send`` (every other HTTP method, websocket messages) or ``connect`` (sockets, lookups,
    proxies). ``decision`` is the answer of the decider or ``None``, and ``request_id`` the pending request, if any.
    The message of the decider replaces the first sentence.
    """

    code = "sandbox_network_denied"
    guidance = f"""
    Shape: External URL is locked. (sandbox_network_denied:<subject>:<target>)
    Cause: No declaration, session approval or permanent approval covers scheme, host, port and path together; a rule
    with a path does not allow other paths. Frequent reasons: a redirect to another host, a socket where only a URL is
    declared, a proxy from the environment, or a name that resolves to this machine. If an administrator denied the
    target, the message has the reason.
    Fix: For a fixed target, add the entry in `hint`, as narrow as possible. {_WHERE_TO_DECLARE} For a target that is
    chosen at run time, call `sdk.access.check_external_access(...)`, which files a request for an administrator; if
    `request_id` is set, the request already waits. A denied target stays denied until an administrator revokes the
    denial.
    Example:
    httpx.get("https://api.example.com/v1/reports")      # not declared
    -> PermissionError: External URL is locked. (sandbox_network_denied:reports:https://api.example.com/v1/reports)
    See: approvals.md manifests.md network.md#when-something-is-denied
    """
    guidance_words = (
        Word(
            "socket:<family>/<type>/<protocol>",
            "a socket other than TCP, UDP and unix, in numbers",
            "use TCP or UDP",
        ),
        Word("socket:family", "a call on such a socket, which the host created", "use TCP or UDP"),
        Word(
            "socket:foreign",
            "a socket, listener or TLS object of the host or another subject, without a peer to check",
            "open a new connection",
        ),
        Word(
            "socket:kernel",
            "the kernel gives the process no network sockets, because its subject declares no network access",
            "declare the targets; for a server on loopback, `receive` on its address and port",
        ),
        Word(
            "socket:option",
            "an option that routes packets through other hosts, or that the guard cannot read",
            "remove the option",
        ),
    )
    decision: AccessDecision | None = None
    """The answer of the decider, if it gave one."""

    @property
    def request_id(self) -> str | None:
        """The id of the pending request for this target, or None."""
        return self.decision.request_id if self.decision else None

    def __str__(self) -> str:
        """Return the documented text for a locked target, or the message of the decider."""
        message = self.decision.message if self.decision else EXTERNAL_URL_LOCKED
        return f"{message} ({self.code}:{self.subject}:{self.target})"

    @property
    def hint(self) -> str:
        """The missing manifest entry, and the approval call for targets chosen at run time."""
        if self.target.startswith("socket:"):
            return SOCKETS.get(self.target, OTHER_SOCKETS)
        if self.request_id:
            return WAITING.format(request=self.request_id)
        return self._entry_or(ASK_FOR_TARGET, "network", self.operation, written_target("network", self.target))


class GuardUsageError(SandboxError, RuntimeError):
    """A guard was entered, left or used in an unsafe way.

    The call was refused because the guard could otherwise stay in force too long or end too early.
    """

    code = "sandbox_guard_usage"
    guidance = """
    Cause: A guard was entered in a generator or through an exit stack, left in another frame than the one that entered
    it, entered twice at the same time, or `run` was given a function that returns an async generator.
    Fix: Use a `with` statement in an ordinary function or coroutine, or call `guard.run(...)`.
    Example:
    def rows():
        with guard:          # the guard would stay in force between the values
            yield 1
    next(rows())
    -> GuardUsageError
    See: embedding.md
    """


class GuardSealedError(GuardUsageError):
    """The guard can no longer be configured.

    The settings are sealed when the first guard is entered, and guarded code can never change them.
    """

    code = "sandbox_guard_sealed"
    guidance = """
    Cause: `configure_guard` was called after the first guard was entered, or by guarded code.
    Fix: Call `configure_guard` when the application starts, before the first guard.
    Example:
    with process_guard_context(subject="module:demo"):
        pass
    configure_guard(decider=decider)
    -> GuardSealedError: the guard is sealed: configure it before the first guard is entered
    See: embedding.md
    """
