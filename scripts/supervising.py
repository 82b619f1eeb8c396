"""Run a command, and remove everything that it leaves behind in any case.

    scripts/supervise COMMAND [ARGUMENT ...]

The command gets a separate temporary folder (``TMPDIR``, also ``RUN_FOLDER``), one in memory (``RUN_MEMORY``, with
``/dev/shm``), and a separate process group. SIGINT, SIGTERM and SIGHUP interrupt the group, like Ctrl-C. After the
command has ended, its remaining descendants are interrupted and then killed, even stopped ones; then its cgroups,
packet filter chains, mounts and folders are removed. Objects of a living process, or older than the run, stay
untouched, so parallel runs are not affected.

Exit status: that of the command; 130 after SIGINT, 143 after SIGTERM, 129 after SIGHUP.

This needs two processes. The outer one forwards signals; the inner one starts the command. Both are subreapers, so that
they adopt orphans. If one of them is killed, the other one cleans up.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

from leavings import Run, look, reap, remove_all

GRACE = 20.0
"""Seconds for the command to end after a signal."""
REPEAT = 1.0
"""Seconds after which a second signal means an immediate stop. Ctrl-C may arrive twice, from the terminal and make."""
TICK = 0.25
LONGEST = 32
"""Maximum length of a temporary folder below which socket paths are short enough."""

STOPPING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
_PDEATHSIG, _SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)


def say(text: str) -> None:
    """Print a line; ignore a closed output."""
    with contextlib.suppress(OSError):
        os.write(2, f"supervise: {text}\n".encode(errors="replace"))


def clean(run: Run, *, patient: bool) -> None:
    """Remove everything of the run, and report objects that needed force."""
    forced, stuck = remove_all(run, patient=patient)
    if forced:
        say(f"removed by force: {', '.join(forced)}")
    if stuck:
        say(f"could not be removed: {', '.join(stuck)}")


def prepare() -> Run:
    """Create the folders of the run, with short names because of the length limit of socket paths."""
    shared = 0o1777 if os.geteuid() == 0 else 0o700  # like /tmp: tests start programs as other users
    usual = tempfile.gettempdir()
    # Before the folders are created: the clock of a file system may be behind.
    began = time.time()
    folder = tempfile.mkdtemp(prefix="ds-", dir=usual if len(usual) <= LONGEST else "/tmp")
    os.chmod(folder, shared)
    memory = f"/dev/shm/{os.path.basename(folder)}"
    try:
        os.mkdir(memory, 0o700)
        os.chmod(memory, shared)
    except OSError:
        memory = ""
    return Run(folder, memory, began)


def start(command: list[str], run: Run, mask: set[int]) -> int:
    """Start the command in a separate process group; it ends with this process."""
    pid = os.fork()
    if pid:
        with contextlib.suppress(OSError):  # the child has already done it and executed its program
            os.setpgid(pid, pid)
        return pid
    os.setpgid(0, 0)
    _libc.prctl(_PDEATHSIG, signal.SIGTERM)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.environ |= {"TMPDIR": run.folder, "RUN_FOLDER": run.folder, "RUN_MEMORY": run.memory}
    try:
        os.execvp(command[0], command)
    except OSError as error:
        say(f"{command[0]} cannot be started: {error.strerror}")
        os._exit(127 if error.errno == errno.ENOENT else 126)


def status_of(code: int) -> int:
    """Return the exit status in the notation of a shell."""
    number = os.waitstatus_to_exitcode(code)
    return number if number >= 0 else 128 - number


def inner(command: list[str], run: Run, mask: set[int], waited: set[int]) -> int:
    """Run the command; after a signal, interrupt it and wait with a timeout; then clean up."""
    _libc.prctl(_SUBREAPER, 1)
    child = start(command, run, mask)
    stopped, since, status = 0, 0.0, None
    while status is None:
        left = GRACE - (time.monotonic() - since) if stopped else None
        if left is not None and left <= 0:
            break
        found = signal.sigtimedwait(waited, left if left is not None else 3600)
        number = found.si_signo if found else 0
        if number in STOPPING:
            if stopped and time.monotonic() - since > REPEAT:
                break
            if not stopped:
                stopped, since = number, time.monotonic()
                ask(child)
        elif number == signal.SIGTSTP:
            pause(child)
        status = reap().get(child)
    clean(run, patient=status is not None)
    return 128 + stopped if stopped else status_of(status or 0)


def ask(group: int) -> None:
    """Interrupt a process group, like Ctrl-C, so that programs end in order."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGINT)
        os.killpg(group, signal.SIGCONT)


def pause(group: int) -> None:
    """Stop together with the command after Ctrl-Z, and continue together."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGSTOP)
        os.killpg(group, signal.SIGCONT)


def heard_by(pid: int) -> int:
    """Return the signal that make is handling, or 0.

    Make forwards SIGTERM only: sent only to make, SIGINT and SIGHUP make it wait for this process, with the signal
    blocked.
    """
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        blocked = int(next(line for line in lines if line.startswith("SigBlk:")).split()[1], 16)
        return next((number for number in STOPPING if blocked >> (number - 1) & 1), 0)
    return 0


def outer(child: int, run: Run, waited: set[int], make: int) -> int:
    """Forward signals to the inner process until it ends; clean up if it was killed."""
    passed: set[int] = set()
    while True:
        found = signal.sigtimedwait(waited, TICK if make else 3600)
        number = found.si_signo if found else 0
        if make and os.getppid() != make:
            number, make = signal.SIGTERM, 0
        elif make and not number and (heard := heard_by(make)) and heard not in passed:
            number = heard
        if number == signal.SIGTSTP:
            os.kill(child, number)
            os.kill(os.getpid(), signal.SIGSTOP)
            os.kill(child, signal.SIGCONT)
        elif number in STOPPING:
            passed.add(number)
            os.kill(child, number)
        status = reap().get(child)
        if status is not None:
            break
    if os.WIFSIGNALED(status):
        clean(run, patient=True)
    return 128 + min(passed) if passed and os.WIFSIGNALED(status) else status_of(status)


def main(command: list[str]) -> int:
    """Start both processes."""
    if not command:
        say("usage: scripts/supervise COMMAND [ARGUMENT ...]")
        return 2
    _libc.prctl(_SUBREAPER, 1)
    above = look(os.getppid())
    make = above.pid if above and above.name in {"make", "gmake"} else 0
    hears = {signal.SIGINT, signal.SIGTERM, signal.SIGTSTP, signal.SIGCHLD}
    # With nohup, continue when the terminal is closed.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        hears.add(signal.SIGHUP)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, hears)
    try:
        run = prepare()
    except OSError as error:
        say(f"no temporary folder can be created ({error.strerror}): free some space, or set TMPDIR to another folder")
        return 1
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        _libc.prctl(_PDEATHSIG, signal.SIGTERM)
        try:
            os._exit(inner(command, run, mask, hears))
        finally:  # after an error, the outer process cleans up
            traceback.print_exc()
            os.kill(os.getpid(), signal.SIGKILL)
    return outer(child, run, hears, make)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
