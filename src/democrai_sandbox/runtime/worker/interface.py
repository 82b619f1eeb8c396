"""Interfaces of a worker: its specification, the host around it, and the starter of its process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from democrai_sandbox.errors import SandboxDenied
    from democrai_sandbox.guard import AccessQuestion
    from democrai_sandbox.policy import AccessDecision
    from democrai_sandbox.runtime.confinement.observing import Told

__all__ = ["NOBODY", "Host", "Identity", "Process", "Starter", "SurfaceInfo", "WorkerSpec"]


class WorkerSpec(NamedTuple):
    """Subject and interpreter of a worker, and the rights of the guard inside it."""

    kind: str
    name: str
    folder: str
    """Folder of the extension, with its entry file."""
    interpreter: str
    """Interpreter to start. No subject can write to it, because it runs before a guard exists."""
    environment: str = ""
    """Virtual environment whose packages the worker uses; its own interpreter is not used, see ``interpreter``."""
    entry: str = "main.py"
    """File in the folder that declares the surfaces."""
    data_dir: str = ""
    """Data folder of the subject."""
    access: str = "[]"
    """Rules of the subject as JSON."""
    allowed_imports: tuple[str, ...] = ()
    own_read: tuple[str, ...] = ()
    own_write: tuple[str, ...] = ()
    allow_subprocess: bool = False
    protected: tuple[str, ...] = ()
    """Paths protected from all subjects, as in the host's own guard."""
    sensitive_imports: tuple[str, ...] = ()
    native_packages: tuple[str, ...] = ()
    code_paths: tuple[str, ...] = ()
    """Further library folders, which the subject cannot write to."""
    read_only: tuple[str, ...] = ()
    """Code of the host that the subject cannot change; set when a process starts."""
    candidate_access: str = ""
    """Rules of a candidate for a shadow run, as JSON; empty without one."""
    candidate_imports: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    """Variables added to the few that a worker inherits."""
    threads: int = 8
    """Maximum number of plain functions that run concurrently; further calls wait."""
    start_timeout: float = 30.0
    call_timeout: float = 30.0
    grace: float = 2.0
    """Seconds that a call has to stop after its timeout canceled it."""
    pause: float = 30.0
    """Seconds until the next attempt after a worker failed to start three times."""
    largest_frame: int = 64 * 1024 * 1024
    longest_call: float | None = None
    """Upper limit of a call's timeout in seconds; None for no limit."""
    no_exec: bool = False
    """Whether the process permanently gives up starting programs before it imports the subject's code."""
    confined: bool = False
    """Whether the kernel confines the process to the subject's files, and with ``tells_endpoints`` to its addresses."""
    tells_endpoints: bool = False
    """Whether its guard asks the host to permit each connection in the kernel layer."""
    tells_accesses: bool = False
    """Whether the worker is recorded: it reports each access and its origin to ``noticed`` of the host."""
    tells_uses: bool = False
    """Whether a worker under test also reports allowed accesses, to ``used`` of the host.

    Its candidate must have no rules.
    """

    @property
    def label(self) -> str:
        """Label of the subject in call chains."""
        return f"{self.kind}:{self.name}"


class Identity(NamedTuple):
    """Identity of a caller: the fields of ``Caller`` of the access-policy service, without its imports."""

    user_id: str = ""
    organization_id: str = ""
    session_key: str = ""
    role: str = ""
    access_level: str = ""
    task_id: str = ""


NOBODY = Identity()


class SurfaceInfo(NamedTuple):
    """A function that the code in a worker declared, as the worker reports it."""

    kind: str
    name: str
    options: dict[str, Any]
    awaits: bool
    """Whether it is a coroutine function or an async generator."""
    streams: bool
    """Whether it is a generator, async or not."""

    @property
    def is_stream(self) -> bool:
        """Same as ``streams``, under the name that ``Surface`` uses."""
        return self.streams


class Host(Protocol):
    """Interface of the host for workers. All methods except ``decide`` and ``observe`` are called on the event loop."""

    @property
    def services(self) -> Sequence[str]:
        """Names that ``door`` accepts."""
        ...

    def decide(self, question: AccessQuestion) -> bool | AccessDecision:
        """Answer an access question from the guard of the worker; called on a thread, because it may block."""
        ...

    def door(self, name: str, view: tuple[Any, ...], args: Sequence[Any]) -> Any:
        """Call a service for the code in a worker; return plain data, or an ``asyncio.Future`` of it."""
        ...

    def output(self, label: str, stream: str, text: str) -> None:
        """Receive output of a worker: whole lines, rate-limited."""
        ...

    def denied(self, label: str, denial: SandboxDenied) -> None:
        """Record a denial inside the worker."""
        ...

    def saw(self, label: str, question: AccessQuestion, *, allowed: bool, times: int) -> None:
        """Record checks in the worker that the candidate of its subject decides differently."""
        ...

    def observe(self, told: Told) -> None:
        """Permit a connection that the worker is about to open; called on a thread, because it may block."""
        ...


class Process(Protocol):
    """A started process. ``stdout`` and ``stderr`` are descriptors to read."""

    pid: int
    stdout: int
    stderr: int

    def kill(self) -> None:
        """Kill the process and everything it started. May be called repeatedly, and after its end."""
        ...

    async def wait(self) -> int:
        """Wait for its end and return its exit code; negative for a signal."""
        ...

    def close(self) -> None:
        """Close its descriptors."""
        ...


class Starter(Protocol):
    """Starts processes, directly or through a component that confines them first."""

    async def start(self, argv: Sequence[str], *, env: Mapping[str, str], pass_fds: Sequence[int], cwd: str) -> Process:
        """Start a program in a new session with these descriptors and without standard input."""
        ...
