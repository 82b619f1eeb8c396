"""Leftovers of a run: processes, cgroups, packet filter chains, mounts and folders.

Objects of a living process, or older than the run, stay untouched.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SETTLE = 3.0
"""Seconds for descendants to end after the command; some watch it and clean up."""
ASKED = 2.0
"""Seconds between SIGTERM and SIGKILL for the remaining ones."""
KILLED = 10.0
"""Seconds to wait for a killed process that the kernel keeps."""
OTHERS = 10.0
"""Seconds for the helper of another run to remove the cgroup of an application that has just ended."""
_TICK = 0.25
_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


class Process(NamedTuple):
    """Fields of /proc/PID/stat."""

    pid: int
    name: str
    state: str
    parent: int
    start: int


class Run(NamedTuple):
    """Objects of one run."""

    folder: str
    memory: str
    began: float


def look(pid: int | str) -> Process | None:
    """Return the state of a process; None if it does not exist."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    head, _, tail = text.rpartition(")")
    number, _, name = head.partition(" (")
    fields = tail.split()
    return Process(int(number), name, fields[0], int(fields[1]), int(fields[19]))


def descendants() -> list[Process]:
    """Return the living children of this process and all their descendants."""
    known = [process for name in os.listdir("/proc") if name.isdigit() and (process := look(name))]
    children: dict[int, list[Process]] = {}
    for process in known:
        children.setdefault(process.parent, []).append(process)
    found, todo = [], [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found += [process for process in below if process.state not in "ZX"]
        todo += [process.pid for process in below]
    return found


def reap() -> dict[int, int]:
    """Collect ended children; return their statuses."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            ended[found[0]] = found[1]
    return ended


def send(processes: list[Process], number: signal.Signals) -> None:
    """Signal processes; skip those that have ended or belong to another user."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def wait_for_none(seconds: float) -> list[Process]:
    """Wait until no descendant is left, with a timeout; return the remaining ones."""
    end = time.monotonic() + seconds
    pause = 0.005
    while True:
        reap()
        left = descendants()
        if not left or time.monotonic() > end:
            return left
        time.sleep(pause)
        pause = min(pause * 1.5, 0.1)


def end_descendants(*, patient: bool) -> list[str]:
    """Stop the remaining processes; return the names of those that needed force."""
    left = wait_for_none(SETTLE if patient else 0)
    forced = left
    if left and patient:
        send(left, signal.SIGTERM)
        send(left, signal.SIGCONT)
        left = wait_for_none(ASKED)
    end = time.monotonic() + KILLED
    while left and time.monotonic() < end:
        # Stop all first: otherwise a parent may start a new child for each one that it loses.
        send(left, signal.SIGSTOP)
        send(descendants(), signal.SIGKILL)
        left = wait_for_none(_TICK)
    return [f"{process.name} ({process.pid})" for process in forced]


def owner_lives(pid: int, start: int | None) -> bool:
    """Return whether the owner of an object still runs; with its start time, whether it is the same process."""
    process = look(pid)
    return process is not None and process.state not in "ZX" and start in {None, process.start}


def is_ours(path: str, run: Run) -> bool:
    """Return whether an object was created since the run began; file system clocks are slightly coarser."""
    try:
        return os.lstat(path).st_ctime >= run.began - 0.1
    except OSError:
        return False


def left_in(folder: str, pattern: str, run: Run) -> Iterator[tuple[str, int]]:
    """Yield entries named after a process that were created since the run began."""
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder)):
            found = re.fullmatch(pattern, name)
            path = f"{folder}/{name}"
            if found and is_ours(path, run):
                yield path, int(found["pid"])


def mounts() -> Iterator[tuple[str, str]]:
    """Yield the mounts of this machine: type and path."""
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        place = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), before.split()[4])
        yield after.split()[0], place


def dead_cgroups(run: Run) -> list[str]:
    """Return the cgroups of applications that have ended."""
    found = []
    for tree in {place for kind, place in mounts() if kind in {"cgroup", "cgroup2"}}:
        for path, pid in left_in(tree, r"democrai_(os_sandbox|pids|test|test_home)_(?P<pid>\d+)(_\w+)?", run):
            start = None
            with contextlib.suppress(OSError, ValueError):
                start = int(os.getxattr(path, "trusted.democrai").split()[1])
            if not owner_lives(pid, start):
                found.append(path)
    return found


def remove_cgroups(run: Run) -> Iterator[str]:
    """Remove cgroups of applications that have ended, after helpers of other runs had time to remove theirs."""
    left = dead_cgroups(run)
    end = time.monotonic() + OTHERS
    while left and time.monotonic() < end:
        time.sleep(_TICK)
        left = [path for path in left if os.path.isdir(path)]
    yield from (f"cgroup {path}" for path in left if remove_cgroup(path))


def remove_cgroup(path: str) -> bool:
    """Kill the members of a cgroup and remove it with nested ones; return whether it is removed."""
    with contextlib.suppress(OSError):
        Path(path, "cgroup.kill").write_text("1")
    end = time.monotonic() + ASKED
    while os.path.isdir(path):
        for folder, _, _ in os.walk(path, topdown=False):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def remove_chains() -> Iterator[str]:
    """Remove packet filter chains, in this network, of applications that have ended."""
    for name in ("iptables", "ip6tables"):
        save, restore = (shutil.which(f"{name}-{act}", path="/usr/sbin:/sbin:/usr/bin") for act in ("save", "restore"))
        if not (save and restore):
            continue
        text = subprocess.run([save, "-t", "filter"], capture_output=True, text=True, check=False, timeout=30).stdout
        named = set(re.findall(r"^:(DEMOCRAI_OS_\d+_\w+) ", text, re.MULTILINE))
        starts = dict(re.findall(r'--comment "democrai (\d+) (\d+) \d+"', text))
        dead = set()
        for chain in named:
            pid = chain.split("_")[2]
            if not owner_lives(int(pid), int(starts[pid]) if pid in starts else None):
                dead.add(chain)
        if not dead:
            continue
        jumps = [line for line in text.splitlines() if line.startswith("-A OUTPUT ") and line.split()[-1] in dead]
        orders = [f"-D{line[2:]}" for line in jumps] + [f"{act} {chain}" for act in ("-F", "-X") for chain in dead]
        order = "\n".join(["*filter", *orders, "COMMIT", ""])
        words = [restore, "--noflush", "-w", "10"]
        done = subprocess.run(words, input=order, text=True, capture_output=True, check=False, timeout=30)
        if done.returncode == 0:
            yield from (f"{name} chain {chain}" for chain in sorted(dead))


_NAMED = (
    ("/dev/shm", r"attack-(?P<pid>\d+)"),
    ("/tmp", r"(perf|egress|events)-(?P<pid>\d+)[-.]\w+"),
)


def remove_named_files(run: Run) -> Iterator[str]:
    """Remove files outside the run's folders that are named after a process that has ended."""
    for folder, pattern in _NAMED:
        for path, pid in left_in(folder, pattern, run):
            if not owner_lives(pid, None) and os.lstat(path).st_uid == os.geteuid():
                remove_tree(path)
                yield path


def remove_tree(path: str) -> bool:
    """Remove a file or folder with its content, except mounts; return whether it is removed."""
    for _, place in reversed(list(mounts())):
        if place == path or place.startswith(f"{path}/"):
            _libc.umount2(os.fsencode(place), _DETACH)
    if any(place == path or place.startswith(f"{path}/") for _, place in mounts()):
        return False
    if os.path.isdir(path) and not os.path.islink(path):
        for _ in range(3):
            shutil.rmtree(path, onerror=_with_rights)
            if not os.path.lexists(path):
                break
    else:
        with contextlib.suppress(OSError):
            os.unlink(path)
    return not os.path.lexists(path)


def _with_rights(act: Callable[..., Any], name: str, _: object) -> None:
    """Retry a failed removal after restoring the permissions of a folder."""
    with contextlib.suppress(OSError):
        for each in (os.path.dirname(name), name):
            if stat.S_ISDIR(os.lstat(each).st_mode):
                os.chmod(each, 0o700)
        if act in {os.unlink, os.rmdir}:
            act(name)
        else:
            shutil.rmtree(name, ignore_errors=True)


def remove_all(run: Run, *, patient: bool) -> tuple[list[str], list[str]]:
    """Stop and remove everything of a run; return the objects that needed force, and the remaining ones."""
    forced = end_descendants(patient=patient)
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if os.geteuid() == 0:
            forced += [*remove_cgroups(run), *remove_chains()]
        forced += remove_named_files(run)
    stuck = [f"{process.name} ({process.pid})" for process in descendants()]
    stuck += [folder for folder in (run.folder, run.memory) if folder and not remove_tree(folder)]
    return forced, stuck
