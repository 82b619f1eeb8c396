"""What a worker is made from, what it needs of the host around it, and how its process is started."""

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
    """Whom a worker is for, on which interpreter, and what the guard inside it allows."""

    kind: str
    name: str
    folder: str
    """Of the extension; its entry file lies there."""
    interpreter: str
    """The program to start: one that no subject can write to, because it runs before there is a guard."""
    environment: str = ""
    """A virtual environment whose packages the worker has; its own interpreter is not used, see ``interpreter``."""
    entry: str = "main.py"
    """The file of the folder that declares the surfaces."""
    data_dir: str = ""
    """Where the subject keeps its data."""
    access: str = "[]"
    """The subject's rules, as JSON."""
    allowed_imports: tuple[str, ...] = ()
    own_read: tuple[str, ...] = ()
    own_write: tuple[str, ...] = ()
    allow_subprocess: bool = False
    protected: tuple[str, ...] = ()
    """What no subject may reach, as the host told its own guard."""
    sensitive_imports: tuple[str, ...] = ()
    native_packages: tuple[str, ...] = ()
    code_paths: tuple[str, ...] = ()
    """Further folders of libraries, which only others than the subject can write to."""
    read_only: tuple[str, ...] = ()
    """Code of the host, which the subject cannot change; told to each process when it is started."""
    candidate_access: str = ""
    """The rules of a candidate that the subject is held against, as JSON; empty without one."""
    candidate_imports: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    """Variables to add to the few that a worker gets."""
    threads: int = 8
    """Plain functions that run at the same time; more wait."""
    start_timeout: float = 30.0
    call_timeout: float = 30.0
    grace: float = 2.0
    """Seconds that a call has to end by itself after it was cancelled for its time."""
    pause: float = 30.0
    """Seconds until a worker that failed to start three times is tried again."""
    largest_frame: int = 64 * 1024 * 1024
    longest_call: float | None = None
    """Seconds that a call may take whatever its caller says; None for no such limit."""
    no_exec: bool = False
    """Whether the process gives up starting programs, for good, before it imports the subject's code."""
    confined: bool = False
    """Whether the kernel holds the process to the subject's files; to its addresses too if it ``tells_endpoints``."""
    tells_endpoints: bool = False
    """Whether the guard in it has the host open the way before each connection."""
    tells_accesses: bool = False
    """Whether it is recorded: the host, which then has a ``noticed``, is told what is reached for, and from where."""
    tells_uses: bool = False
    """Whether the host, which then has a ``used``, is told what the rules allow, too: for a subject under test.

    The candidate that it is held against has to be one without rules.
    """

    @property
    def label(self) -> str:
        """The subject, as chains name it."""
        return f"{self.kind}:{self.name}"


class Identity(NamedTuple):
    """For whom a call is made. The fields of the access-policy service's ``Caller``, without what that needs."""

    user_id: str = ""
    organization_id: str = ""
    session_key: str = ""
    role: str = ""
    access_level: str = ""
    task_id: str = ""


NOBODY = Identity()


class SurfaceInfo(NamedTuple):
    """Something that the code in a worker declared, as the worker tells it."""

    kind: str
    name: str
    options: dict[str, Any]
    awaits: bool
    """Whether it is a coroutine function or an async generator."""
    streams: bool
    """Whether it is a generator of either sort."""

    @property
    def is_stream(self) -> bool:
        """The same, as a surface in this process says it."""
        return self.streams


class Host(Protocol):
    """The host as a worker's pool needs it. All are called on the pool's loop, but for ``decide``."""

    @property
    def services(self) -> Sequence[str]:
        """The names that ``door`` knows."""
        ...

    def decide(self, question: AccessQuestion) -> bool | AccessDecision:
        """Answer what the guard in the worker does not allow by itself; on a thread, because it may wait."""
        ...

    def door(self, name: str, view: tuple[Any, ...], args: Sequence[Any]) -> Any:
        """Do what the code in a worker asks for; plain data, or an ``asyncio.Future`` of it."""
        ...

    def output(self, label: str, stream: str, text: str) -> None:
        """Take what a worker wrote to its standard output or error: whole lines, and not more than it may."""
        ...

    def denied(self, label: str, denial: SandboxDenied) -> None:
        """Take note of a denial inside the worker."""
        ...

    def saw(self, label: str, question: AccessQuestion, *, allowed: bool, times: int) -> None:
        """Take note of checks in the worker about which the candidate of its subject says something else."""
        ...

    def observe(self, told: Told) -> None:
        """Open the way for a connection that the worker is about to make; on a thread, because it may wait."""
        ...


class Process(Protocol):
    """A process that was started, as long as it is needed. ``stdout`` and ``stderr`` are descriptors to read."""

    pid: int
    stdout: int
    stderr: int

    def kill(self) -> None:
        """End it, with everything that it started. May be called twice, and after its end."""
        ...

    async def wait(self) -> int:
        """Return its exit code when it has ended; negative for a signal."""
        ...

    def close(self) -> None:
        """Let its descriptors go."""
        ...


class Starter(Protocol):
    """How processes come to be: by themselves, or through something that confines them first."""

    async def start(self, argv: Sequence[str], *, env: Mapping[str, str], pass_fds: Sequence[int], cwd: str) -> Process:
        """Start a program in a session of its own; it has these descriptors, and no standard input."""
        ...
