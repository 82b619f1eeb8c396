"""Keeps the helper running for an application that can start nothing itself any more.

Once seccomp and Landlock are applied the application can neither execute a program nor gain privileges, and what it
starts through the spawn server cannot either. So this small process is started before: it starts the helper, and starts
it again when it was killed. Standard library only, run as a script; it holds no secrets and decides nothing.

    python -I -S -B keeper.py DESCRIPTOR COMMAND...

Over the descriptor the application says single letters: ``k`` keep it running from now on (before that, the end of the
helper is the keeper's), ``l`` let it go when it ends, ``n`` start it now instead of waiting longer, ``s`` stop it. When
the descriptor closes, the application is gone: the helper sees that itself, cleans up, and is not to be disturbed.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress

_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 30.0
_LASTED = 60.0
"""Seconds after which a helper has proved itself, so that the next pause is a short one again."""
_CLEANING = 30.0
"""Seconds for the helper to clean up after the application."""
_LATELY = 2.0
_LOOK = 1.0
"""How often it is seen whether the helper stands still."""
_NEVER = float("-inf")
_NOT_STARTED = 127
_STILL_THERE = 70


class Keeper:
    """One helper at a time, and what the application says about it."""

    def __init__(self, word: int, command: list[str]) -> None:
        """Keep what is needed; nothing is started yet."""
        self._word = word
        self._command = command
        self._kept = False
        self._ending = False
        self._hurried = _NEVER
        self._pause = _FIRST_PAUSE

    def run(self) -> int:
        """Start the helper and stay with it; return its exit code when it is not wanted any more."""
        while True:
            started = time.monotonic()
            pid = os.posix_spawn(self._command[0], self._command, dict(os.environ))
            code = self._watch(pid, _end_of(pid))
            if self._is_over():
                return code
            _say(f"the helper ended with {code}; it is started again")
            self._rest(time.monotonic() - started)
            if self._is_over():
                return code

    def _is_over(self) -> bool:
        return self._ending or not self._kept

    def _watch(self, pid: int, ended: int) -> int:
        """Wait for the end of the helper, which takes its time only when it has to clean up."""
        over = stood = False
        while not over and not self._ending:
            ready, _, _ = select.select([ended, self._word], [], [], _LOOK)
            over = ended in ready
            stands = not ready and _stands_still(pid)
            if stood and stands:
                with suppress(OSError):  # it may run as another user
                    os.kill(pid, signal.SIGCONT)
                    _say(f"the helper {pid} stood still, and was told to go on")
            stood = stands
            # Words come first: one that was said before the end counts for it.
            if self._word in ready and self._listen() == "stop":
                with suppress(OSError):  # it may run as another user, and ends by what the application asks of it
                    os.kill(pid, signal.SIGTERM)
        ready, _, _ = select.select([ended], [], [], _CLEANING)
        os.close(ended)
        return _collect(pid) if ready else _STILL_THERE

    def _listen(self) -> str:
        """Take in what the application says, in the order in which it says it."""
        words = os.read(self._word, 64).decode("ascii", "replace")
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


def _stands_still(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - this script knows no more
            return file.read().rpartition(b")")[2].split()[0] in {b"T", b"t"}
    except (OSError, IndexError):
        return False


def _end_of(pid: int) -> int:
    """Return a descriptor that is readable once the helper has ended; some containers refuse handles of processes."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        ended, held = os.pipe2(os.O_CLOEXEC)

    def wait() -> None:
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        os.close(held)

    threading.Thread(target=wait, daemon=True).start()
    return ended


def _collect(pid: int) -> int:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else 128 - code


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
        _say(f"{arguments[1]} could not be started: {error.strerror}")
        return _NOT_STARTED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
