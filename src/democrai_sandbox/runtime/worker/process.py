"""Specification of a worker, the interface of its host, its process without confinement, and its output."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from democrai_sandbox.guard.contexts import ACCESS, SUBJECT, SUBJECT_CHAIN, SUBJECT_KIND
from democrai_sandbox.policy import (
    AccessDecision,
    AccessRule,
    InvalidInputError,
    Operation,
    rules_for_paths,
    rules_from_json,
)
from democrai_sandbox.policy.subjects import CallIdentity
from democrai_sandbox.runtime.child_process import (
    BASE_INTERPRETER,
    PREFIX,
    child_handle,
    host_environment,
    wait_until_readable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from democrai_sandbox.errors import SandboxDenied
    from democrai_sandbox.guard import AccessQuestion


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
    limits: tuple[tuple[str, int], ...] = ()
    """Limits of the process by name; the kernel enforces them, the host that of the temp folder."""
    temp: str = ""
    """Temp folder of the worker, if it has one of its own."""
    longest_call: float | None = None
    """Upper limit of a call's timeout in seconds; None for no limit."""
    no_exec: bool = False
    """Whether the process permanently gives up starting programs before it imports the subject's code."""
    confined: bool = False
    """Whether the kernel confines the process to the subject's files, and with ``tells_endpoints`` to its addresses."""
    is_observed: bool = False
    """Whether its guard reports each connection to the host, which records it, before it is opened."""
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

    @property
    def rules(self) -> tuple[AccessRule, ...]:
        """All rules of the subject, also those for its own folders; read each time."""
        read = (rule for rule in rules_for_paths(self.own_read) if rule.operation == Operation.READ)
        return (*rules_from_json(self.access), *rules_for_paths(self.own_write), *read)


NOBODY = CallIdentity()


class SurfaceInfo(NamedTuple):
    """A function that the code in a worker declared, as the worker reports it."""

    kind: str
    name: str
    options: dict[str, Any]
    awaits: bool
    """Whether it is a coroutine function or an async generator."""
    is_stream: bool
    """Whether it is a generator, async or not."""
    parameters: tuple[str, ...] = ()
    """Names of its parameters; texts of the extension, like the hint."""
    hint: str = ""
    """First line of its documentation."""


class ConnectionReport(NamedTuple):
    """A connection that a worker is about to open."""

    subject: str
    subject_kind: str
    host: str
    addresses: tuple[str, ...]
    port: int


class WorkerHostServices(Protocol):
    """Interface of the host for workers. All methods except ``decide`` and ``observe`` are called on the event loop."""

    @property
    def services(self) -> Collection[str]:
        """Names that ``door`` accepts."""

    def decide(self, question: AccessQuestion) -> bool | AccessDecision:
        """Answer an access question from the guard of the worker; called on a thread, because it may block."""

    def door(self, name: str, view: tuple[Any, ...], args: Sequence[Any]) -> Any:
        """Call a service for the code in a worker; return plain data, or an ``asyncio.Future`` of it."""

    def output(self, label: str, stream: str, text: str) -> None:
        """Receive output of a worker: whole lines, rate-limited."""

    def denied(self, label: str, denial: SandboxDenied) -> None:
        """Record a denial inside the worker."""

    def saw(self, label: str, question: AccessQuestion, *, allowed: bool, times: int) -> None:
        """Record checks in the worker that the candidate of its subject decides differently."""

    def observe(self, told: ConnectionReport) -> None:
        """Permit a connection that the worker is about to open; called on a thread, because it may block."""

    def limit_reached(self, label: str, limit: str) -> None:
        """Count a call that failed because of a limit."""


class WorkerProcess(Protocol):
    """A started process. ``stdout`` and ``stderr`` are descriptors to read."""

    pid: int
    stdout: int
    stderr: int

    def kill(self) -> None:
        """Kill the process and everything it started. May be called repeatedly, and after its end."""

    async def wait(self) -> int:
        """Wait for its end and return its exit code; negative for a signal."""

    def close(self) -> None:
        """Close its descriptors."""


class WorkerStarter(Protocol):
    """Starts processes, directly or through a component that confines them first."""

    async def start(
        self, argv: Sequence[str], *, env: Mapping[str, str], pass_fds: Sequence[int], cwd: str
    ) -> WorkerProcess:
        """Start a program in a new session with these descriptors and without standard input."""


_BOOTSTRAP = Path(__file__).with_name("bootstrap.py")
_PACKAGES = Path(__file__).parents[3]
_OPTIONS = ("-I", "-S", "-B", "-X", "utf8")
_KEPT = ("PATH", "LANG", "LANGUAGE", "TZ", "TMPDIR", "HOME", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR")
"""Variables of the host that a worker inherits; all others may contain secrets."""


def command_of(spec: WorkerSpec, lane: int, control: int, memory: int) -> list[str]:
    """Return the command: isolated, without ``site``, and without writing bytecode.

    An environment's start-up files are code of the subject, and bytecode folders are not writable for it.
    """
    ends = (str(lane), str(control), str(memory))
    return [spec.interpreter, *_OPTIONS, str(_BOOTSTRAP), str(_PACKAGES), spec.environment, *ends]


def template_command(packages: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the command of the template process; without ``packages`` to preload, it serves every environment."""
    return (BASE_INTERPRETER, *_OPTIONS, str(_BOOTSTRAP), str(_PACKAGES), "template", PREFIX, *packages)


def environment_of(spec: WorkerSpec) -> dict[str, str]:
    """Return the complete environment of a worker: ``DEMOCRAI_*`` as for children, and few other variables."""
    for name, _ in spec.env:
        if name.startswith("DEMOCRAI_"):
            raise InvalidInputError.of(f"{name} is reserved for the runtime", pointer="/env")
    kept = {name: value for name, value in host_environment().items() if name in _KEPT or name.startswith("LC_")}
    return {
        **kept,
        **dict(spec.env),
        SUBJECT: spec.name,
        SUBJECT_KIND: spec.kind,
        ACCESS: spec.access,
        SUBJECT_CHAIN: json.dumps([spec.label]),
    }


class PlainProcess:
    """A child of this process, held by a descriptor, because its pid could be reused."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        """Watch a child that was started with both outputs as pipes."""
        self._child = child
        self._handle = child_handle(child.pid)
        self.pid = child.pid
        self.stdout = child.stdout.fileno() if child.stdout else -1
        self.stderr = child.stderr.fileno() if child.stderr else -1

    def kill(self) -> None:
        """Kill the process group while the pid cannot have been reused."""
        if self._child.returncode is None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                return

    async def wait(self) -> int:
        """Return the exit code; first kill the rest of the process group, while the pid cannot have been reused."""
        if self._child.returncode is None:
            await wait_until_readable(self._handle)
            self.kill()
        return self._child.wait()

    def close(self) -> None:
        """Close the descriptors."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
            for pipe in (self._child.stdout, self._child.stderr):
                if pipe is not None:
                    pipe.close()


class PlainStarter:
    """Starts children directly. Only the guard inside restricts them."""

    async def start(
        self, argv: Sequence[str], *, env: Mapping[str, str], pass_fds: Sequence[int], cwd: str
    ) -> PlainProcess:
        """Start a program in a new session."""
        child = subprocess.Popen(  # noqa: ASYNC220, S603 - it returns immediately, and the command is ours
            list(argv),
            env=dict(env),
            pass_fds=tuple(pass_fds),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        return PlainProcess(child)


_CHUNK = 64 * 1024
_BURST = 256 * 1024
"""Bytes per stream that are reported in one burst."""
_PER_SECOND = 64 * 1024
_LONGEST_LINE = 8 * 1024
_LINES_KEPT = 20
_REST = 0.05
"""Seconds between two reads of a flooding stream: the writer waits, the host does not."""


class WorkerOutput:
    """One output stream of a worker, on the running loop."""

    def __init__(self, descriptor: int, emit: Callable[[str], None]) -> None:
        """Read the descriptor; ``emit`` receives whole lines, several at a time."""
        self._loop = asyncio.get_running_loop()
        self._descriptor = descriptor
        self._emit = emit
        self._line = b""
        self._left = float(_BURST)
        self._looked = self._loop.time()
        self._dropped = 0
        self._resting: asyncio.TimerHandle | None = None
        self._open = True
        self.last: deque[str] = deque(maxlen=_LINES_KEPT)
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._readable)

    def drain(self) -> None:
        """Read everything that the pipe holds, after the process has ended."""
        for _ in range(32):
            if not self._open or not self._read():
                return

    def close(self) -> None:
        """Stop reading, and report the last line even without a line end."""
        self._stop()
        if self._line:
            self._pass_on(self._line + b"\n")
            self._line = b""
        self._tell_dropped()

    def _stop(self) -> None:
        if self._open:
            self._open = False
            self._loop.remove_reader(self._descriptor)
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None

    def _readable(self) -> None:
        self._read()
        if self._left <= 0 and self._open:
            self._loop.remove_reader(self._descriptor)
            self._resting = self._loop.call_later(_REST, self._go_on)

    def _go_on(self) -> None:
        self._resting = None
        self._loop.add_reader(self._descriptor, self._readable)

    def _read(self) -> bool:
        """Read once; False when no more data is available."""
        try:
            data = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._stop()
            return False
        whole, newline, rest = (self._line + data).rpartition(b"\n")
        if newline:
            self._pass_on(whole + newline)
        self._line = rest
        if len(rest) > _LONGEST_LINE:
            self._pass_on(rest + b"\n")
            self._line = b""
        return True

    def _pass_on(self, data: bytes) -> None:
        now = self._loop.time()
        self._left = min(float(_BURST), self._left + (now - self._looked) * _PER_SECOND)
        self._looked = now
        if self._left < len(data):
            self._dropped += len(data)
            self._left = min(self._left, 0.0)
            return
        self._left -= len(data)
        self._tell_dropped()
        text = data.decode("utf-8", "backslashreplace")
        self.last.extend(line[:_LONGEST_LINE] for line in text.splitlines()[-_LINES_KEPT:])
        self._emit(text)

    def _tell_dropped(self) -> None:
        """Report once, after a flood, how many bytes were dropped."""
        if self._dropped:
            self._emit(f"... {self._dropped} bytes of output were dropped\n")
            self._dropped = 0
