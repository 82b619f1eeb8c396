"""Starting the helper, or finding the one that runs, and holding on to it."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

from democrai_sandbox.errors import HelperFailed
from democrai_sandbox.kernel.flow import write_line
from democrai_sandbox.kernel.helper.arguments import helper_command

from .client import FOREIGN_SOCKET, NOT_RUNNING, TIMED_OUT, HelperClient, refusal
from .elevation import PROGRAMS, Way, elevation, no_way_up
from .polling import readable

if TYPE_CHECKING:
    from collections.abc import Callable

    Log = Callable[[str], None]

_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
_KEEPER = Path(__file__).resolve().with_name("keeper.py")
_WITHIN = 20.0
_WITHIN_ASKING = 120.0
"""Seconds for a person to type a password."""
_LOOK = 0.05
_PING_WITHIN = 1.0
_STOPPING = 10.0
_NOBODY = frozenset({NOT_RUNNING, TIMED_OUT})
_CLEAR = frozenset({FOREIGN_SOCKET, "version", "socket_path_too_long"})
"""What says itself what is at the socket."""
_LONGEST_LINE = 8 * 1024
_LARGE_PIPE = 256 * 1024
_ONE_READ = 4096


class HelperStarter:
    """Knows how the helper of this process is started."""

    def __init__(
        self,
        *,
        socket_path: str,
        policy_file: str,
        refresh_seconds: int = 60,
        desktop: bool = False,
        debug: bool = False,
        log: Log | None = None,
        within: float | None = None,
        programs: str = PROGRAMS,
    ) -> None:
        """Keep what the helper is told. ``log`` gets each line that it writes on its standard error."""
        self.socket_path = socket_path
        self._policy_file = policy_file
        self._refresh_seconds = refresh_seconds
        self._desktop = desktop
        self._debug = debug
        self._log = log or _written
        self._within = within
        self._programs = programs

    def command(self) -> list[str]:
        """Return the helper's command line, without what gives it its privileges."""
        told = ("--socket", self.socket_path, "--policy-file", self._policy_file)
        numbers = ("--refresh-seconds", str(self._refresh_seconds), "--parent-pid", str(os.getpid()))
        return [*helper_command(), *told, *numbers, *(("--debug",) if self._debug else ())]

    def start(self, client: HelperClient) -> RunningHelper:
        """Return the helper that answers at the socket: one that runs already, or a new one."""
        pid = self._find(client)
        if pid:
            return RunningHelper(Way.ATTACH, pid)
        self._make_folder()
        way, prefix = elevation(desktop=self._desktop, programs=self._programs)
        running = RunningHelper.launch(way, [*prefix, *self.command()], self._log)
        within = self._within or (_WITHIN_ASKING if way is Way.PKEXEC else _WITHIN)
        try:
            running.await_answer(client, monotonic() + within)
        except BaseException:
            running.stop()
            raise
        return running

    def _find(self, client: HelperClient) -> int:
        """Return the pid of the helper that runs for this process already, or 0 when there is none."""
        try:
            return client.ping()
        except HelperFailed as error:
            if error.reason not in _NOBODY | _CLEAR:
                raise HelperFailed(
                    f"something else than a helper of this application listens at {self.socket_path}: {error.what}",
                    fix="set sandbox.os.helper_socket to a path of this application's own, e.g. with {pid} in it",
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
                f"the folder {folder} of the helper's socket cannot be made: {error.strerror}",
                fix="let this user make it, or set sandbox.os.helper_socket",
                reason="socket_refused",
            ) from error


class RunningHelper:
    """A helper, and the keeper that starts it again; or one that is somebody else's business."""

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
        """Take hold of what was started."""
        self.way = way
        self.pid = pid
        self.lines = lines
        """The descriptor from which its log is read; -1 when there is none."""
        self._keeper = keeper
        self._keeper_pid = 0 if keeper is None else keeper.pid
        self._word = word
        self._log = log or _written
        self._unfinished = b""
        self._last_line = ""

    @classmethod
    def launch(cls, way: Way, command: list[str], log: Log) -> RunningHelper:
        """Start a keeper, which starts the command."""
        ours, theirs = socket.socketpair()
        lines, written = os.pipe2(os.O_CLOEXEC)
        try:
            keeper = subprocess.Popen(  # noqa: S603 - this interpreter, on files of this package
                [command_python(), "-I", "-S", "-B", str(_KEEPER), str(theirs.fileno()), *command],
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
                pass_fds=(theirs.fileno(),),
                env=_ENVIRONMENT,
                cwd="/",
                start_new_session=True,  # what is typed at a terminal is meant for the application
            )
        except OSError as error:
            ours.close()
            os.close(lines)
            raise HelperFailed(
                f"no process could be started for the helper: {command_python()}: {error.strerror}",
                fix="let this user execute that interpreter, and have one more process",
                reason=NOT_RUNNING,
            ) from error
        finally:
            theirs.close()
            os.close(written)
        os.set_blocking(lines, False)
        _enlarge(lines)
        return cls(way, keeper=keeper, word=ours, lines=lines, log=log)

    @property
    def keeper_pid(self) -> int:
        """The number of the keeper's process; 0 when there is none of this process's own."""
        self._hear()
        return self._keeper_pid

    @property
    def is_kept(self) -> bool:
        """Whether something would start it again if it ended: the keeper or its standby, or what started it."""
        return self._keeper is None or self._keeper.poll() is None or self._hear()

    def await_answer(self, client: HelperClient, deadline: float) -> None:
        """Wait for the first answer; raises with the helper's own last word when it ends instead."""
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
                    said = self._last_line or error.what
                    raise HelperFailed(
                        f"the helper was started ({self.way}) and did not answer in time: {said}",
                        fix=error.fix,
                        reason=TIMED_OUT,
                    ) from error
            else:
                self._tell(b"k")
                return

    def read_log(self, wait: float = 0.0) -> None:
        """Hand on what the helper has written. Never waits for longer than told."""
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
            for line in lines:
                self._take_line(line.decode("utf-8", "replace"))

    def hurry(self) -> None:
        """Have it started now if it is not running."""
        self._tell(b"n")

    def let_go(self) -> None:
        """When it ends from now on, it stays away."""
        self._tell(b"l")

    def await_end(self) -> None:
        """Wait for the end of one that has said that it leaves."""
        self._await_keeper(monotonic() + _STOPPING)

    def stop(self) -> None:
        """End it, as far as this process may, and forget it. One that was only attached to goes on."""
        self._tell(b"s")
        self._await_keeper(monotonic() + _STOPPING)
        if self._keeper is not None and self._keeper.poll() is None:
            # Told to stop it does so by itself in the end, also where a confined process may not signal it.
            with suppress(OSError, subprocess.TimeoutExpired):
                self._keeper.kill()
                self._keeper.wait(_LOOK)
        if self._word is not None:
            self._word.close()
            self._word = None
        self.read_log()
        self._close_lines()

    def _await_keeper(self, deadline: float) -> None:
        """Wait for its end, reading along: a helper with something to say must not wait for this process."""
        while self._keeper is not None and self.is_kept and (left := deadline - monotonic()) > 0:
            if self.lines >= 0:
                self.read_log(min(left, _LOOK))
            else:
                sleep(min(left, _LOOK))

    def _tell(self, word: bytes) -> None:
        if self._word is not None:
            with suppress(OSError):  # it is gone, and is_kept says so
                self._word.send(word, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def _hear(self) -> bool:
        """Take in which process is the keeper now; return whether there is one, or its standby."""
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

    def _take_line(self, line: str) -> None:
        if line.strip():
            self._last_line = line
            self._log(line)

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
            f"the helper ended with {code} before it answered: {self._last_line or 'it said nothing'}",
            fix="see what it wrote on its standard error",
            reason=NOT_RUNNING,
        )


def command_python() -> str:
    """Return the interpreter itself, not the link to it in a virtual environment."""
    return helper_command()[0]


def _written(line: str) -> None:
    write_line(line, "helper")


def _enlarge(pipe: int) -> None:
    """Let the helper write much before it has to wait for a reader."""
    with suppress(OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _LARGE_PIPE)
