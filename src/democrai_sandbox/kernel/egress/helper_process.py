"""Helper process, as its application sees it: start it or attach to it, detect its end, stop it, remove leftovers."""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import re
import shlex
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.errors import HelperFailed
from democrai_sandbox.kernel.flow_log import write_line
from democrai_sandbox.kernel.helper.processes import answers
from democrai_sandbox.kernel.helper.protocol import helper_command

from .helper_client import FOREIGN_SOCKET, NOT_RUNNING, TIMED_OUT, HelperClient, readable, refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from democrai_sandbox.kernel.flow_log import FlowLog

    Log = Callable[[str], None]

PROGRAMS = "/usr/bin:/bin:/usr/sbin:/sbin"
"""Folders with ``sudo`` and ``pkexec``. PATH is not used, because other users may control it."""
NO_WAY_UP = "no_way_up"
_STATUS = Path("/proc/self/status")


class Way(StrEnum):
    """Way in which the helper was started."""

    ATTACH = "attach"
    """It was already running for this application."""
    DIRECT = "direct"
    PKEXEC = "pkexec"
    SUDO = "sudo"


class Elevation(NamedTuple):
    """Way to start the helper, with the words in front of its command."""

    way: Way
    prefix: tuple[str, ...] = ()


def elevation(*, desktop: bool = False, programs: str = PROGRAMS) -> Elevation:
    """Return the way for this process; raise ``HelperFailed`` with the reason ``no_way_up`` without one."""
    if is_privileged():
        return Elevation(Way.DIRECT)
    if "NoNewPrivs:\t1" in _STATUS.read_text("utf-8", "replace").splitlines():
        raise no_way_up("this process cannot gain privileges (no_new_privs is set)")
    if desktop and (pkexec := shutil.which("pkexec", path=programs)):
        return Elevation(Way.PKEXEC, (pkexec, "--disable-internal-agent"))
    if sudo := shutil.which("sudo", path=programs):
        return Elevation(Way.SUDO, (sudo, "-n", "--"))
    raise no_way_up("sudo and pkexec are not installed" if desktop else "sudo is not installed")


def is_privileged() -> bool:
    """Whether a child of this process can create cgroups and packet filter rules.

    Capabilities of another user are not enough: the cgroup is created at the top of the tree, and the lock file of
    ``iptables`` belongs to root. If root lacks a permission, the helper reports it.
    """
    return os.geteuid() == 0


def no_way_up(why: str, way: Way = Way.SUDO) -> HelperFailed:
    """Return the error, with the command that prints the rule to install."""
    rule = "polkit" if way is Way.PKEXEC else "sudoers"
    return HelperFailed(
        f"the helper cannot be started with root privileges: {why}",
        fix=f"as an administrator, install the output of: {_program()} helper {rule} "
        f"--user {shlex.quote(_user())} (or use systemd instead of {rule})",
        reason=NO_WAY_UP,
    )


def _program() -> str:
    """Return the command of this installation, also when it is not in PATH."""
    interpreter = Path(sys.executable or "python3")
    beside = interpreter.with_name("democrai-sandbox")
    return shlex.quote(str(beside)) if beside.exists() else f"{shlex.quote(str(interpreter))} -m democrai_sandbox.cli"


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"#{os.getuid()}"


_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
_KEEPER = Path(__file__).resolve().with_name("keeper.py")
_WITHIN = 20.0
_WITHIN_ASKING = 120.0
"""Seconds for a user to type a password."""
_LOOK = 0.05
_PING_WITHIN = 1.0
_STOPPING = 10.0
_NOBODY = frozenset({NOT_RUNNING, TIMED_OUT})
_CLEAR = frozenset({FOREIGN_SOCKET, "version", "socket_path_too_long"})
"""Reasons that already describe the problem at the socket."""
_LONGEST_LINE = 8 * 1024
_LARGE_PIPE = 256 * 1024
_ONE_READ = 4096


def _write_helper_line(line: str) -> None:
    write_line(line, "helper")


@dataclass(slots=True, kw_only=True)
class HelperStarter:
    """Starter of this process's helper."""

    socket_path: str
    policy_file: str
    refresh_seconds: int = 60
    desktop: bool = False
    debug: bool = False
    log: Log = _write_helper_line
    """Receiver of each line of the helper's standard error."""
    within: float | None = None
    programs: str = PROGRAMS

    def command(self) -> list[str]:
        """Return the helper's command line, without sudo or pkexec."""
        paths = ("--socket", self.socket_path, "--policy-file", self.policy_file)
        numbers = ("--refresh-seconds", str(self.refresh_seconds), "--parent-pid", str(os.getpid()))
        return [*helper_command(), *paths, *numbers, *(("--debug",) if self.debug else ())]

    def start(self, client: HelperClient) -> RunningHelper:
        """Return the helper that answers at the socket: an existing one, or a new one."""
        pid = self._find(client)
        if pid:
            return RunningHelper(Way.ATTACH, pid)
        self._make_folder()
        way, prefix = elevation(desktop=self.desktop, programs=self.programs)
        running = RunningHelper.launch(way, [*prefix, *self.command()], self.log)
        within = self.within or (_WITHIN_ASKING if way is Way.PKEXEC else _WITHIN)
        try:
            running.await_answer(client, monotonic() + within)
        except BaseException:
            running.stop()
            raise
        return running

    def _find(self, client: HelperClient) -> int:
        """Return the process id of the helper that already runs for this process; 0 without one."""
        try:
            return client.ping()
        except HelperFailed as error:
            if error.reason not in _NOBODY | _CLEAR:
                raise HelperFailed(
                    f"{self.socket_path} is in use, but not by a helper of this application: {error.what}",
                    fix="set sandbox.os.helper_socket to a path that only this application uses, with {pid} in it",
                    reason="socket_taken",
                ) from error
            if error.reason not in _NOBODY:
                raise
        return 0

    def _make_folder(self) -> None:
        folder = Path(self.socket_path).parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise HelperFailed(
                f"the folder {folder} of the helper's socket cannot be created: {error.strerror}",
                fix="give this user permission to create it, or set sandbox.os.helper_socket",
                reason="socket_refused",
            ) from error


class RunningHelper:
    """Helper with the keeper that restarts it, or a helper that another program manages."""

    def __init__(
        self,
        way: Way,
        pid: int = 0,
        *,
        keeper: subprocess.Popen[bytes] | None = None,
        word: socket.socket | None = None,
        lines: int = -1,
        log: Log | None = None,
    ) -> None:
        self.way = way
        self.pid = pid
        self.lines = lines
        """Descriptor of the helper's log; -1 without one."""
        self._keeper = keeper
        self._keeper_pid = 0 if keeper is None else keeper.pid
        self._word = word
        self._log = log or _write_helper_line
        self._unfinished = b""
        self._last_line = ""

    @classmethod
    def launch(cls, way: Way, command: list[str], log: Log) -> RunningHelper:
        """Start a keeper, which starts the command."""
        interpreter = helper_command()[0]  # not the link in a virtual environment
        ours, theirs = socket.socketpair()
        lines, written = os.pipe2(os.O_CLOEXEC)
        try:
            keeper = subprocess.Popen(  # noqa: S603 - this interpreter, with files of this package
                [interpreter, "-I", "-S", "-B", str(_KEEPER), str(theirs.fileno()), *command],
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                pass_fds=(theirs.fileno(),),
                env=_ENVIRONMENT,
                cwd="/",
                start_new_session=True,  # signals of the terminal are for the application only
            )
        except OSError as error:
            ours.close()
            os.close(lines)
            raise HelperFailed(
                f"the process for the helper could not be started: {interpreter}: {error.strerror}",
                fix="make that interpreter executable for this user, and check the process limit",
                reason=NOT_RUNNING,
            ) from error
        finally:
            theirs.close()
            os.close(written)
        os.set_blocking(lines, False)
        with suppress(OSError):  # a larger pipe, so that the helper can write more before it must wait for a reader
            fcntl.fcntl(lines, fcntl.F_SETPIPE_SZ, _LARGE_PIPE)
        return cls(way, keeper=keeper, word=ours, lines=lines, log=log)

    @property
    def keeper_pid(self) -> int:
        """Process id of the keeper; 0 if this process has not started one."""
        self._hear()
        return self._keeper_pid

    @property
    def is_kept(self) -> bool:
        """Whether the helper would be restarted: by the keeper, its standby, or the program that started it."""
        return self._keeper is None or self._keeper.poll() is None or self._hear()

    def await_answer(self, client: HelperClient, deadline: float) -> None:
        """Wait for the first answer; if the helper ends instead, raise its last log line."""
        while True:
            ended = not self.is_kept
            self.read_log(_LOOK)
            if ended:
                raise self._why_it_ended()
            try:
                self.pid = client.ping(timeout=_PING_WITHIN)
            except HelperFailed as error:
                if error.reason not in _NOBODY:
                    raise
                if monotonic() > deadline:
                    raise HelperFailed(
                        f"the helper was started ({self.way}) but did not answer in time: "
                        f"{self._last_line or error.what}",
                        fix=error.fix,
                        reason=TIMED_OUT,
                    ) from error
            else:
                self._tell(b"k")
                return

    def read_log(self, wait: float = 0.0) -> None:
        """Forward the helper's log lines, waiting at most ``wait`` seconds."""
        if self.lines < 0:
            return
        readable((self.lines,), wait)
        while True:
            try:
                data = os.read(self.lines, 64 * 1024)
            except BlockingIOError:
                return
            if not data:
                self._close_lines()
                return
            *lines, rest = (self._unfinished + data).split(b"\n")
            self._unfinished = rest[-_LONGEST_LINE:]
            for line in (raw.decode("utf-8", "replace") for raw in lines):
                if line.strip():
                    self._last_line = line
                    self._log(line)

    def hurry(self) -> None:
        """Start the helper now if it is not running."""
        self._tell(b"n")

    def let_go(self) -> None:
        """Stop restarting the helper when it ends."""
        self._tell(b"l")

    def await_end(self) -> None:
        """Wait for its end while reading the log, so that the helper is not blocked by a full pipe."""
        deadline = monotonic() + _STOPPING
        while self._keeper is not None and self.is_kept and (left := deadline - monotonic()) > 0:
            if self.lines >= 0:
                self.read_log(min(left, _LOOK))
            else:
                sleep(min(left, _LOOK))

    def stop(self) -> None:
        """Stop the helper, as far as this process may. A helper managed by another program keeps running."""
        self._tell(b"s")
        self.await_end()
        if self._keeper is not None and self._keeper.poll() is None:
            # The keeper stops on this command even if a confined process may not signal it.
            with suppress(OSError, subprocess.TimeoutExpired):
                self._keeper.kill()
                self._keeper.wait(_LOOK)
        if self._word is not None:
            self._word.close()
            self._word = None
        self.read_log()
        self._close_lines()

    def _tell(self, word: bytes) -> None:
        if self._word is not None:
            with suppress(OSError):  # ended; is_kept reports it
                self._word.send(word, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def _hear(self) -> bool:
        """Read the process id of the current keeper; return whether a keeper or standby exists."""
        word = self._word
        if word is None:
            return False
        try:
            said = word.recv(_ONE_READ, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        for number in said.split():
            self._keeper_pid = int(number)
        return bool(said)

    def _close_lines(self) -> None:
        lines, self.lines = self.lines, -1
        if lines >= 0:
            os.close(lines)

    def _why_it_ended(self) -> HelperFailed:
        with suppress(ValueError):
            answer = json.loads(self._last_line)
            if isinstance(answer, dict):
                return refusal(answer)
        code = self._keeper.returncode if self._keeper is not None else 0
        if self.way in {Way.SUDO, Way.PKEXEC}:
            return no_way_up(self._last_line or f"{self.way} ended with {code}", self.way)
        return HelperFailed(
            f"the helper ended with code {code} before it answered: {self._last_line or 'no output'}",
            fix="check its standard error",
            reason=NOT_RUNNING,
        )


_RETURNING = 4.0
"""Seconds to wait for a helper that is restarting."""
_HURRY_EVERY = 1.0
_PING_HELPER_WITHIN = 2.0
_GONE_FIX = (
    "the current rules stay in force; restart the application, or run the helper as a service, which restarts it "
    "automatically"
)


class HelperConnection:
    """The running helper of this process, if any. One thread at a time may use it, except for ``running``."""

    def __init__(self, client: HelperClient, starter: HelperStarter, flow: FlowLog) -> None:
        self.running: RunningHelper | None = None
        self._client = client
        self._starter = starter
        self._flow = flow
        self._handle = -1
        """Process descriptor of the helper, readable when it ends."""

    def start(self) -> None:
        """Start a helper, or attach to a running one."""
        self.running = self._starter.start(self._client)
        self._watch()
        self._flow("egress.helper", way=self.running.way, pid=self.running.pid)

    def watched(self) -> Iterable[int]:
        """Return descriptors that become readable when the helper writes a log line or ends."""
        log = self.running.lines if self.running is not None else -1
        return [number for number in (log, self._handle) if number >= 0]

    def heard(self, ready: Iterable[int]) -> bool:
        """Forward the helper's log; return whether it has just ended."""
        if self.running is not None:
            self.running.read_log()
        if self._handle < 0 or self._handle not in ready:
            return False
        self._unwatch()
        return True

    def revive(self, error: HelperFailed) -> None:
        """Wait until a helper answers again; raise when none can be started in time."""
        running = self.running
        if running is None:
            raise error
        if not running.is_kept:
            # A process started now would be confined, and in the cgroup whose processes a new helper kills.
            raise HelperFailed(error.what, fix=_GONE_FIX, reason=NOT_RUNNING) from error
        running.pid = self._await(running, error)
        self._watch()
        self._flow("egress.helper_returned", pid=running.pid)

    def stop(self) -> None:
        """Remove the rules and stop the helper. If it has ended, the rules stay until the next helper removes them."""
        running, self.running = self.running, None
        self._unwatch()
        if running is None:
            return
        try:
            self._clear(running)
        except HelperFailed as error:
            self._flow("egress.clear_failed", error=str(error))
        finally:
            running.stop()
            remove_dead_socket(self._client.path)

    def _clear(self, running: RunningHelper) -> None:
        try:
            self._client.ping(timeout=_PING_HELPER_WITHIN)
        except HelperFailed as error:
            if error.reason != NOT_RUNNING or not running.is_kept:
                raise
            self._await(running, error)
        running.let_go()
        if self._client.clear(leave=running.way is not Way.ATTACH):
            running.await_end()

    def _await(self, running: RunningHelper, error: HelperFailed) -> int:
        now = hurried = monotonic()
        deadline = now + _RETURNING
        running.hurry()
        while True:
            running.read_log()
            with suppress(HelperFailed):
                return self._client.ping(timeout=_PING_HELPER_WITHIN)
            now = monotonic()
            if now > deadline or not running.is_kept:
                raise error
            if now - hurried > _HURRY_EVERY:  # it may have ended again
                running.hurry()
                hurried = now
            sleep(_LOOK)

    def _watch(self) -> None:
        self._unwatch()
        if self.running is not None and self.running.pid:
            with suppress(OSError):  # already ended, or pidfd is unsupported: requests will show it
                self._handle = os.pidfd_open(self.running.pid)

    def _unwatch(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


_OURS = re.compile(
    r"os_sandbox_helper_(?P<socket>[0-9]+)\.sock"
    r"|\.?os_sandbox_allowlist_(?P<file>[0-9]+)\.json(?:\.[0-9a-f]+\.unfinished)?"
)


def sweep(data_dir: str, state_dir: str) -> tuple[str, ...]:
    """Remove files with the default name of a process that does not exist; return their paths.

    The folder may be shared with another pid namespace, whose process ids are unknown here. A socket with a listening
    helper therefore stays.
    """
    removed = []
    for folder in {Path(data_dir), Path(state_dir)}:
        with suppress(OSError):
            for path in list(folder.iterdir()):
                match = _OURS.fullmatch(path.name)
                pid = int(match["socket"] or match["file"]) if match else 0
                if pid and not answers(pid) and not _listens(Path(state_dir) / f"os_sandbox_helper_{pid}.sock"):
                    with suppress(OSError):
                        path.unlink()
                        removed.append(str(path))
    return tuple(removed)


def remove_dead_socket(path: str) -> None:
    """Remove the socket of a killed helper, unless a process listens on it."""
    place = Path(path)
    with suppress(OSError):
        if place.is_socket() and not place.is_symlink() and not _listens(place):
            place.unlink()


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.0)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True  # it exists but is busy, or belongs to another user
    return True
