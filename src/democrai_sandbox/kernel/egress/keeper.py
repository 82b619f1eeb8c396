"""Keeps the helper running for an application that can start nothing itself any more.

Once seccomp and Landlock are applied the application can neither execute a program nor gain privileges, and what it
starts through the spawn server cannot either. So this small process is started before: it starts the helper, and starts
it again when it was killed. Standard library only, run as a script; it holds no secrets and decides nothing.

    python -I -S -B keeper.py DESCRIPTOR COMMAND...

Over the descriptor the application says single letters: ``k`` keep it running from now on (before that, the end of the
helper is the keeper's), ``l`` let it go when it ends, ``n`` start it now instead of waiting longer, ``s`` stop it. When
the descriptor closes, the application is gone: the helper sees that itself, cleans up, and is not to be disturbed.

Once the helper is to be kept, the keeper forks a standby, of the same user and with the same descriptors, which takes
over when the keeper is gone and then says its number to the application. Both have the other go on if it stands still.
Nothing but these processes can speak on the descriptors between them, and neither has a privilege that the other lacks.
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
"""Seconds after which a helper has proved itself, so that the next pause is a short one again."""
_CLEANING = 30.0
"""Seconds for the helper to clean up after the application."""
_LATELY = 2.0
_LOOK = 1.0
"""How often it is seen whether another process stands still."""
_LOOK_CLOSELY = 0.2
"""How often it is seen whether the helper has ended, where there is no handle of it."""
_BEFORE_SUCCESSION = 0.2
"""Seconds before a keeper or a standby is replaced: both may be ended, one after the other."""
_NEVER = float("-inf")
_NOT_STARTED = 127
_STILL_THERE = 70
_UNKNOWN = 71


class Keeper:
    """One helper at a time, and what the application says about it."""

    def __init__(self, word: int, command: list[str]) -> None:
        """Keep what is needed; nothing is started yet."""
        self._word = socket.socket(fileno=word)
        self._command = command
        self._kept = False
        self._ending = False
        self._hurried = _NEVER
        self._pause = _FIRST_PAUSE
        self._helper: _Helper
        self._started = _NEVER
        self._standby: _Standby | None = None

    def run(self) -> int:
        """Start the helper and stay with it; return its exit code when it is not wanted any more."""
        try:
            while True:
                self._start()
                code = self._watch()
                if self._is_over():
                    return code
                _say(f"the helper ended{'' if code == _UNKNOWN else f' with {code}'}; it is started again")
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
        """Execute the command in this fork. The standby is told first: it is never to start a second helper."""
        try:
            if self._standby is not None:
                self._standby.tell(os.getpid())
            os.execve(self._command[0], self._command, dict(os.environ))  # noqa: S606 - what the keeper is for
        except OSError as error:
            _say(f"{self._command[0]} could not be started: {error.strerror}")
        finally:
            os._exit(_NOT_STARTED)

    def _watch(self) -> int:
        """Wait for the end of the helper, which takes its time only when it has to clean up."""
        helper, standby = _Look("helper"), _Look("standby of the keeper")
        over = False
        while not over and not self._ending:
            self._have_standby()
            bond = [] if self._standby is None else [self._standby.bond]
            ready = self._helper.wait([self._word, *bond], _LOOK)
            over = self._helper.has_ended()
            if not ready and not over:
                helper.at(self._helper.pid)
                standby.at(0 if self._standby is None else self._standby.pid)
            if self._standby is not None and self._standby.bond in ready:
                self._bury_standby(self._standby)
            # Words come first: one that was said before the end counts for it.
            if self._word in ready and self._listen() == "stop":
                self._helper.stop()
        return self._helper.collect()

    def _have_standby(self) -> None:
        """Have a standby while the helper is to be kept, if there can be one."""
        while self._kept and self._standby is None and self._fork():
            pass

    def _fork(self) -> bool:
        """Fork a standby. In that, this returns when the keeper is gone."""
        keeper = os.getpid()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = os.fork()
        except OSError as error:  # too many processes: there may be room later
            _say(f"the keeper has no standby: {error.strerror}")
            ours.close()
            theirs.close()
            return False
        if pid:
            theirs.close()
            self._standby = _Standby(pid, ours)
            return True
        ours.close()
        with theirs:
            self._stand_by(keeper, theirs)
        self._succeed(keeper)
        return True

    def _bury_standby(self, standby: _Standby) -> None:
        self._standby = None
        standby.end()
        _say(f"the standby {standby.pid} of the keeper ended; another one is started")
        time.sleep(_BEFORE_SUCCESSION)

    def _stand_by(self, keeper: int, bond: socket.socket) -> None:
        """Wait for the end of the keeper, and take note of each helper that it starts."""
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

    def _succeed(self, keeper: int) -> None:
        """Be the keeper from now on, of a helper that is not this process's child."""
        time.sleep(_BEFORE_SUCCESSION)
        _say(f"the keeper {keeper} ended; process {os.getpid()} takes its place")
        with suppress(OSError):  # the application may be gone too
            self._word.send(b"%d\n" % os.getpid(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def _listen(self) -> str:
        """Take in what the application says, in the order in which it says it."""
        words = ""
        with suppress(OSError):  # the application may be gone without having read all
            words = self._word.recv(64).decode("ascii", "replace")
        for word in words:
            if word in "kl":
                self._kept = word == "k"
            if word == "n":
                self._hurried = time.monotonic()
        self._ending = not words or "s" in words
        return "stop" if "s" in words else ""

    def _rest(self, lasted: float) -> None:
        """Pause before the next start, longer each time."""
        self._pause = _FIRST_PAUSE if lasted > _LASTED else self._pause
        deadline = time.monotonic() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        while not self._is_over() and not self._is_hurried() and (left := deadline - time.monotonic()) > 0:
            ready, _, _ = select.select([self._word], [], [], left)
            if ready:
                self._listen()
        self._hurried = _NEVER  # once for each time it is said: what ends at once every time is not to run in circles

    def _is_hurried(self) -> bool:
        # Somebody who has lost the helper may say so before its end is seen here.
        return time.monotonic() - self._hurried < _LATELY


class _Standby:
    """The standby as its keeper holds it."""

    def __init__(self, pid: int, bond: socket.socket) -> None:
        self.pid = pid
        self.bond = bond
        """Readable once it has ended."""

    def tell(self, helper: int) -> None:
        """Give it the number of the helper that is being started."""
        with suppress(OSError):  # it is gone, and the next one knows it
            self.bond.send(b"%d" % helper, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def end(self) -> None:
        """End it, while the keeper is still there."""
        with suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)  # a child that was not waited for
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self.bond.close()


class _Helper:
    """The process of the helper, or the program that gives it its privileges: a child, or that of an earlier keeper."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._handle = -1
        with suppress(OSError):  # it is gone, or this is a container that refuses handles of processes
            self._handle = os.pidfd_open(pid)

    def wait(self, others: list[socket.socket], seconds: float) -> list[socket.socket]:
        """Wait for its end, and whether one of the others has something to read; return those."""
        watched: list[socket.socket | int] = [*others]
        if self._handle >= 0:
            watched.append(self._handle)
        else:
            seconds = min(seconds, _LOOK_CLOSELY)
        ready, _, _ = select.select(watched, [], [], seconds)
        return [other for other in others if other in ready]

    def has_ended(self) -> bool:
        """Tell whether it has."""
        if self._handle >= 0:
            return bool(select.select([self._handle], [], [], 0)[0])
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None
        except ChildProcessError:
            return not _is_there(self.pid)

    def stop(self) -> None:
        """Ask it to end."""
        with suppress(OSError):  # it may run as another user, and ends by what the application asks of it
            if self._handle >= 0:
                signal.pidfd_send_signal(self._handle, signal.SIGTERM)
            elif not self.has_ended():
                os.kill(self.pid, signal.SIGTERM)

    def collect(self) -> int:
        """Wait for its end, and return its exit code; that of another process's child cannot be known."""
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
        """Let go of it."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


class _Look:
    """Has a process go on that stands still for longer than a moment."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stood = 0

    def at(self, pid: int) -> None:
        """Look at it once."""
        stands = pid > 0 and _state(pid) in {b"T", b"t"}
        if stands and self._stood == pid:
            with suppress(OSError):  # it may run as another user
                os.kill(pid, signal.SIGCONT)
                _say(f"the {self._name} {pid} stood still, and was told to go on")
        self._stood = pid if stands else 0


def _state(pid: int) -> bytes:
    """Return the letter of its state, which is empty when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - this script knows no more
            return file.read().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return b""


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    return _state(pid) != b"Z"


def _say(text: str) -> None:
    with suppress(OSError):  # whoever reads along may be gone
        os.write(2, f"{text}\n".encode("utf-8", "backslashreplace"))


def main(arguments: list[str]) -> int:
    """Run the command for as long as the application lives and wants it."""
    word = int(arguments[0])
    os.set_inheritable(word, False)  # noqa: FBT003 - it takes no keyword
    try:
        return Keeper(word, arguments[1:]).run()
    except OSError as error:
        _say(f"the helper could not be kept: {error.strerror}")
        return _NOT_STARTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
