"""Keep the helper running for an application that can no longer start programs.

After seccomp and Landlock are applied, the application and the children of the spawn server cannot execute the helper
or gain privileges. The keeper is therefore started earlier: it starts the helper and restarts it when it was killed. It
is a script with the standard library only, and holds no secrets.

    python -I -S -B keeper.py DESCRIPTOR COMMAND...

The application sends single letters over the descriptor: ``k`` keep the helper running from now on (before that, the
keeper ends with the helper), ``l`` do not restart it, ``n`` start it now instead of waiting, ``s`` stop it. When the
descriptor closes, the application has ended: the helper detects that itself and cleans up, so the keeper only waits.

After ``k`` the keeper forks a standby with the same user and descriptors. When the keeper ends, the standby takes over
and sends its process id to the application. Both continue the other one if it is stopped. Only these processes can
write to the descriptors between them, and neither has a privilege that the other lacks.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import NoReturn

_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 30.0
_LASTED = 60.0
"""Seconds after which a helper counts as stable, so that the next pause is short again."""
_CLEANING = 30.0
"""Seconds for the helper to clean up after the application has ended."""
_LATELY = 2.0
_LOOK = 1.0
"""Seconds between two checks for stopped processes."""
_LOOK_CLOSELY = 0.2
"""Seconds between two checks for the helper's end, without a process descriptor."""
_BEFORE_SUCCESSION = 0.2
"""Seconds before a keeper or a standby is replaced: both may be killed, one after the other."""
_NEVER = float("-inf")
_NOT_STARTED = 127
_STILL_THERE = 70
_UNKNOWN = 71


class Keeper:
    """Keeper of one helper at a time, which follows the application's commands."""

    def __init__(self, word: int, command: list[str]) -> None:
        self._word = socket.socket(fileno=word)
        self._command = command
        self._kept = False
        self._ending = False
        self._hurried = _NEVER
        self._pause = _FIRST_PAUSE
        self._helper: _Helper
        self._started = _NEVER
        self._standby: _KeeperStandby | None = None

    def run(self) -> int:
        """Start the helper and watch it; return its exit code when the application does not want it any more."""
        try:
            while True:
                self._start()
                code = self._watch()
                if self._is_over():
                    return code
                _say(f"the helper ended{'' if code == _UNKNOWN else f' with code {code}'}; restarting it")
                self._rest(time.monotonic() - self._started)
                if self._is_over():
                    return code
        finally:
            if self._standby is not None:
                self._standby.end()

    def _is_over(self) -> bool:
        return self._ending or not self._kept

    def _start(self) -> None:
        self._started = time.monotonic()
        pid = os.fork()
        if pid == 0:
            self._become_helper()
        self._helper = _Helper(pid)

    def _become_helper(self) -> NoReturn:
        """Execute the command in this fork. Notify the standby first, so that it never starts a second helper."""
        try:
            if self._standby is not None:
                self._standby.tell(os.getpid())
            os.execve(self._command[0], self._command, dict(os.environ))  # noqa: S606 - intended
        except OSError as error:
            _say(f"{self._command[0]} could not be started: {error.strerror}")
        finally:
            os._exit(_NOT_STARTED)

    def _watch(self) -> int:
        """Wait for the helper's end, with a limit only while it cleans up."""
        helper, standby = _Look("helper"), _Look("standby of the keeper")
        over = False
        while not over and not self._ending:
            while self._kept and self._standby is None and self._fork():
                pass  # a new keeper starts a standby as well
            bond = [] if self._standby is None else [self._standby.bond]
            ready = self._helper.wait([self._word, *bond], _LOOK)
            over = self._helper.has_ended()
            if not ready and not over:
                helper.at(self._helper.pid)
                standby.at(0 if self._standby is None else self._standby.pid)
            if self._standby is not None and self._standby.bond in ready:
                self._bury_standby(self._standby)
            # Read commands first: a command sent before the helper's end applies to it.
            if self._word in ready and self._listen():
                self._helper.stop()
        return self._helper.collect()

    def _fork(self) -> bool:
        """Fork a standby. In the standby, return when the keeper has ended."""
        keeper = os.getpid()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = os.fork()
        except OSError as error:  # too many processes: retry later
            _say(f"the keeper has no standby: {error.strerror}")
            ours.close()
            theirs.close()
            return False
        if pid:
            theirs.close()
            self._standby = _KeeperStandby(pid, ours)
            return True
        ours.close()
        with theirs:
            self._stand_by(keeper, theirs)
        # The keeper has ended: keep a helper that is not a child of this process.
        time.sleep(_BEFORE_SUCCESSION)
        _say(f"the keeper {keeper} ended; process {os.getpid()} takes its place")
        with suppress(OSError):  # the application may have ended too
            self._word.send(b"%d\n" % os.getpid(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        return True

    def _bury_standby(self, standby: _KeeperStandby) -> None:
        self._standby = None
        standby.end()
        _say(f"the standby {standby.pid} of the keeper ended; starting another one")
        time.sleep(_BEFORE_SUCCESSION)

    def _stand_by(self, keeper: int, bond: socket.socket) -> None:
        """Wait for the keeper's end, and record each helper that it starts."""
        look = _Look("keeper")
        while True:
            ready, _, _ = select.select([bond], [], [], _LOOK)
            if not ready:
                look.at(keeper)
                continue
            told = bond.recv(64)
            if not told:
                return
            self._helper.forget()
            self._helper, self._started = _Helper(int(told)), time.monotonic()

    def _listen(self) -> bool:
        """Read the application's commands, in order; return whether to stop the helper."""
        words = ""
        with suppress(OSError):  # the application may have ended without reading everything
            words = self._word.recv(64).decode("ascii", "replace")
        for word in words:
            if word in "kl":
                self._kept = word == "k"
            if word == "n":
                self._hurried = time.monotonic()
        self._ending = not words or "s" in words
        return "s" in words

    def _rest(self, lasted: float) -> None:
        """Wait before the next start, longer each time."""
        self._pause = _FIRST_PAUSE if lasted > _LASTED else self._pause
        deadline = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        while not self._is_over() and not self._is_hurried() and (left := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select([self._word], [], [], left)
            if ready:
                self._listen()
        self._hurried = _NEVER  # one start per command, so that a helper that always fails does not restart in a loop

    def _is_hurried(self) -> bool:
        # The application may send the command before this process sees the helper's end.
        return time.monotonic() - self._hurried < _LATELY


class _KeeperStandby:
    """Standby process, as seen by its keeper."""

    def __init__(self, pid: int, bond: socket.socket) -> None:
        self.pid = pid
        self.bond = bond
        """Readable after the standby has ended."""

    def tell(self, helper: int) -> None:
        """Send the process id of a helper that is being started."""
        with suppress(OSError):  # ended; the next standby gets it at its fork
            self.bond.send(b"%d" % helper, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def end(self) -> None:
        with suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)  # an unreaped child, so the id is still its own
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self.bond.close()


class _Helper:
    """Process of the helper, or of sudo or pkexec: a child of this keeper or of a previous one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._handle = -1
        with suppress(OSError):  # ended, or a container that refuses process descriptors
            self._handle = os.pidfd_open(pid)

    def wait(self, others: list[socket.socket], seconds: float) -> list[socket.socket]:
        """Wait for its end or for readable sockets; return the readable sockets."""
        watched: list[socket.socket | int] = [*others]
        if self._handle >= 0:
            watched.append(self._handle)
        else:
            seconds = min(seconds, _LOOK_CLOSELY)
        ready, _, _ = select.select(watched, [], [], seconds)
        return [other for other in others if other in ready]

    def has_ended(self) -> bool:
        if self._handle >= 0:
            return bool(select.select([self._handle], [], [], 0)[0])
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        except ChildProcessError:
            return not _is_there(self.pid)

    def stop(self) -> None:
        with suppress(OSError):  # owned by another user; it then stops on the application's request
            if self._handle >= 0:
                signal.pidfd_send_signal(self._handle, signal.SIGTERM)
            elif not self.has_ended():
                os.kill(self.pid, signal.SIGTERM)

    def collect(self) -> int:
        """Wait for its end and return its exit code; unknown for a process that is not a child."""
        deadline = time.monotonic() + _CLEANING
        while not self.has_ended() and (left := deadline - time.monotonic()) > 0:
            self.wait([], left)
        ended = self.has_ended()
        self.forget()
        if not ended:
            return _STILL_THERE
        try:
            code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:
            return _UNKNOWN
        return code if code >= 0 else 128 - code

    def forget(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


class _Look:
    """Check that continues a process which stays stopped for more than a moment."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stood = 0

    def at(self, pid: int) -> None:
        stands = pid > 0 and _state(pid) in {b"T", b"t"}
        if stands and self._stood == pid:
            with suppress(OSError):  # owned by another user
                os.kill(pid, signal.SIGCONT)
                _say(f"the {self._name} {pid} was stopped; sent SIGCONT")
        self._stood = pid if stands else 0


def _state(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - avoids importing pathlib
            return file.read().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return b""


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # owned by another user
        pass
    return _state(pid) != b"Z"


def _say(text: str) -> None:
    with suppress(OSError):  # the reader may have ended
        os.write(2, f"{text}\n".encode("utf-8", "backslashreplace"))


def main(arguments: list[str]) -> int:
    """Run the command as long as the application lives and wants it."""
    word = int(arguments[0])
    os.set_inheritable(word, False)  # noqa: FBT003 - positional-only
    try:
        return Keeper(word, arguments[1:]).run()
    except OSError as error:
        _say(f"the helper could not be kept running: {error.strerror}")
        return _NOT_STARTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
