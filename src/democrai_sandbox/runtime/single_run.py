"""Single run of a script or a program: with the streams of the caller, until it ends or its timeout expires."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from democrai_sandbox.errors import CallTimeout, KernelUnsupported, SandboxDenied
from democrai_sandbox.errors.extensions import FrameError
from democrai_sandbox.guard.runtime_paths import read_only_paths
from democrai_sandbox.kernel import FlowLog
from democrai_sandbox.kernel.landlock.rights import landlock_support
from democrai_sandbox.kernel.seccomp import process_filter as seccomp
from democrai_sandbox.kernel.spawn import SpawnedChild, SpawnOrder, SpawnServer
from democrai_sandbox.kernel.status import ControlState
from democrai_sandbox.policy import Operation, ResourceType, SandboxError, is_at_or_below
from democrai_sandbox.runtime.calls.outcome import release
from democrai_sandbox.runtime.worker.codec import FrameReader, encode
from democrai_sandbox.runtime.worker.process import WorkerSpec, command_of, environment_of

from .child_process import child_handle
from .confinement.confiner import ConfinedChild, ConfinedStarter, Confiner, started_programs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from .children.launch_request import LaunchRequest
    from .confinement.confiner import PreparedConfinement
    from .confinement.process_paths import ProcessRights
    from .extension_run import Recording

    StartedRun: TypeAlias = "PlainStart | _SingleRunChild"
    ProgramStarter = Callable[["Command"], StartedRun]
    """Starts a process, directly or confined by the kernel; raises ``OSError`` if that fails."""

_LARGEST = 64 * 1024 * 1024
_UNUSED = -1
_GRACE = 2.0
_INTERRUPTED, _BY_SIGNAL = 130, 128
"""As in shells."""


class Command(NamedTuple):
    """Command to start, with its standard streams."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str
    pass_fds: tuple[int, ...] = ()
    program: str = ""
    """File to execute, if it is not the first word."""
    streams: tuple[int, int, int] = (0, 1, 2)
    """Descriptors of its standard input, output and error."""


class PlainStart:
    """Starts a child of this process, without confinement."""

    def __init__(self, command: Command) -> None:
        """Start it in this process's group, so that terminal signals reach it."""
        stdin, stdout, stderr = command.streams
        self._child = subprocess.Popen(  # noqa: S603 - a command of the user, without a shell
            command.argv,
            executable=command.program or None,
            env=dict(command.environment),
            cwd=command.folder,
            pass_fds=command.pass_fds,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
        )
        self.ended = child_handle(self._child.pid)
        """Descriptor that becomes readable when it has ended."""

    def signal(self, number: int) -> None:
        """Send it a signal, unless it has been reaped."""
        self._child.send_signal(number)

    def collect(self) -> int:
        """Return its exit status, negative for a signal."""
        os.close(self.ended)
        return self._child.wait()


def run_script(
    spec: WorkerSpec,
    arguments: Sequence[str],
    recording: Recording,
    *,
    start: ProgramStarter = PlainStart,
    timeout: float | None = None,
    streams: tuple[int, int, int] = (0, 1, 2),
) -> int:
    """Run the script that is the entry of ``spec``; return its exit status, or raise ``CallTimeout``."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            number = theirs.fileno()
            argv = tuple(command_of(spec, _UNUSED, number, _UNUSED))
            started = start(Command(argv, environment_of(spec), str(Path.cwd()), (number,), streams=streams))
        ours.sendall(encode(["init", spec._replace(read_only=read_only_paths())._asdict(), list(arguments)]))
        return _waited(started, timeout, _ScriptChannel(ours, recording))


def run_program(command: Command, *, start: ProgramStarter, timeout: float | None = None) -> int:
    """Run a program and return its exit status; raise ``CallTimeout`` after the timeout."""
    return _waited(start(command), timeout, None)


class _ScriptChannel:
    """Reads the messages of a script's process until it closes the connection."""

    def __init__(self, link: socket.socket, recording: Recording) -> None:
        self._link = link
        self._recording = recording
        self._inbox = FrameReader(largest=_LARGEST)
        self.is_open = True

    def fileno(self) -> int:
        return self._link.fileno()

    def hear(self) -> None:
        """Handle available messages."""
        size = self._link.recv_into(self._inbox.room)
        self.is_open = bool(size)
        for message in self._inbox.feed(size) if size else ():
            self._take(message)

    def _take(self, message: Any) -> None:
        """Handle a message. The process belongs to the script, and may send anything."""
        if type(message) is not list or len(message) != 2:  # noqa: PLR2004 - a kind and its facts
            raise FrameError("a malformed message")
        kind, facts = message
        try:
            if kind == "noticed":
                self._recording.notice(facts)
            elif kind == "denied":
                release(facts)
        except SandboxDenied as denial:
            self._recording.deny(denial)
        except (SandboxError, TypeError, ValueError) as error:
            raise FrameError("a malformed message") from error


def _waited(started: StartedRun, timeout: float | None, hearing: _ScriptChannel | None) -> int:
    """Wait for the end; pass an interrupt on, and keep waiting.

    An interrupt that carries a signal number also concerns this process, so it is raised again afterwards.
    """
    until = None if timeout is None else monotonic() + timeout
    interrupt: KeyboardInterrupt | None = None
    late, harder = False, iter((signal.SIGTERM,))
    try:
        while True:
            try:
                if _is_over(started.ended, hearing, until):
                    break
                late = interrupt is None
                started.signal(next(harder, signal.SIGKILL))
            except KeyboardInterrupt as error:
                interrupt = error
                started.signal(*(error.args or (signal.SIGINT,)))
            until = monotonic() + _GRACE
    except BaseException:
        with suppress(OSError):
            started.signal(signal.SIGKILL)
        started.collect()
        raise
    status = started.collect()
    if late:
        raise CallTimeout(f"it took longer than {timeout:g} s and was stopped")
    if interrupt is not None and interrupt.args:
        raise interrupt
    return _INTERRUPTED if interrupt is not None else status if status >= 0 else _BY_SIGNAL - status


def _is_over(ended: int, hearing: _ScriptChannel | None, until: float | None) -> bool:
    """Wait until the process has ended (True) or the deadline has passed (False)."""
    while True:
        heard: list[Any] = [hearing] if hearing is not None and hearing.is_open else []
        left = None if until is None else until - monotonic()
        if left is not None and left <= 0:  # also while messages keep arriving
            return False
        ready, _, _ = select.select([ended, *heard], [], [], left)
        if not ready:
            return False
        if hearing in ready and hearing is not None:
            hearing.hear()
        elif ended in ready:  # and no more messages are queued
            return True


# ---- confinement ----------------------------------------------------------------------------------------------------

_MAKING = (Operation.CREATE, Operation.MODIFY)


def check_support() -> int:
    """Return the Landlock ABI in use; raise ``KernelUnsupported`` if a child cannot be confined here."""
    landlock = landlock_support()
    if landlock.abi < 1:
        raise KernelUnsupported(f"Landlock: {landlock.reason}", fix=landlock.fix)
    possible = seccomp.support()
    if possible.state is ControlState.UNSUPPORTED:
        raise KernelUnsupported(f"seccomp: {possible.reason}", fix=possible.fix)
    return landlock.abi


@contextmanager
def confined_run(rights: ProcessRights) -> Iterator[ConfinedRun]:
    """Start a spawn server for one child. Stopping it ends all processes that the child left behind."""
    abi = check_support()
    server = SpawnServer.start()
    try:
        yield ConfinedRun(Confiner(server, abi, FlowLog()), rights, abi)
    finally:
        server.stop()


class ConfinedRun:
    """Starts processes confined to the rules of one subject.

    A confined run has one child under Landlock and seccomp, derived from its rules. No egress helper runs: of the
    network, the kernel restricts only TCP ports.
    """

    def __init__(self, confiner: Confiner, rights: ProcessRights, abi: int) -> None:
        self._confiner = confiner
        self._rights = rights
        self._prepared = confiner.prepare(rights)
        self.unenforced = self._prepared.enforcement.unenforced
        """Rules that the kernel does not enforce, in words."""
        self.closed = self._prepared.closed
        """Writable folders that contain code of the host, so that the kernel allows no new files directly in them."""
        self.abi = abi
        self.starter = ConfinedStarter(confiner, lambda: rights)
        """For a worker, which has pipes as its streams."""

    @property
    def is_program(self) -> bool:
        """Whether it is not Python code, and so has no guard inside."""
        return bool(self._rights.execute)

    @property
    def missing(self) -> tuple[str, ...]:
        """Paths that its rules let it create, but the kernel does not: Landlock rules need an existing path."""
        rules = (rule for rule in self._rights.rules if rule.resource_type is ResourceType.FILESYSTEM)
        wanted = {rule.normalized_target for rule in rules if rule.operation in _MAKING}
        there = {place for place in wanted if os.path.exists(place)}  # noqa: PTH110 - a text
        around = (*there, *self._rights.write, tempfile.gettempdir())
        return tuple(sorted(one for one in wanted if not any(is_at_or_below(one, place) for place in around)))

    def start(self, command: Command) -> _SingleRunChild:
        """Start a program with the given streams."""
        path = command.program or command.argv[0]
        what = SpawnOrder(path, command.argv, command.environment, command.folder, pass_fds=command.pass_fds)
        child = self._confiner.start(self._prepared, what, command.streams)
        return _SingleRunChild(child, self._confiner, self._prepared)

    def launcher(self, order: LaunchRequest) -> ConfinedChild:
        """Start a program of the subject with the same confinement."""
        rules = self._rights.rules
        programs = started_programs(order.program, rules, rules)
        rights = self._rights._replace(readable=order.readable, execute=(order.program,), programs=programs)
        return ConfinedChild(self._confiner, self._confiner.prepare(rights), order)


class _SingleRunChild:
    def __init__(self, child: SpawnedChild, confiner: Confiner, prepared: PreparedConfinement) -> None:
        self._child = child
        self._confiner = confiner
        self._prepared = prepared
        self.ended = child.ended

    def signal(self, number: int) -> None:
        """Send a signal to it and to everything it started."""
        self._child.signal_group(number)

    def collect(self) -> int:
        """Return its exit status, negative for a signal."""
        try:
            return self._child.collect()
        finally:
            self._child.close()
            self._confiner.release(self._prepared)
