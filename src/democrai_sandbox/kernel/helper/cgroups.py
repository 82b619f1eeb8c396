"""Control groups: where their tree is mounted, and making, joining, killing and removing one.

The group of an application lies at the top of the tree, not below the group that it came from: that one may belong to
the application's own user (a delegated one of a session), who could then leave ours by a write to ``cgroup.procs``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .answers import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX = "democrai_os_sandbox_"
_MARK = "trusted.democrai"
_EMPTY_SECONDS = 3.0
_REMOVED = frozenset({errno.ENOENT, errno.ENODEV})
"""What a file of a group says that is gone, perhaps since it was opened."""
_ESCAPED = re.compile(r"\\([0-7]{3})")
_MOUNT_FIX = "mount it: mount -t cgroup2 none /sys/fs/cgroup (or /sys/fs/cgroup/unified beside the older kind)"
_WRITABLE_FIX = "mount the tree writable for the helper: mount -o remount,rw"


class Tree(NamedTuple):
    """The tree of control groups, version 2."""

    mount: str
    """Where it is mounted."""
    root: str
    """Which group of the tree that is, seen from its root: the packet filter counts from there."""

    def group(self, name: str) -> Cgroup:
        """Return the group with that name at the top, whether or not it exists."""
        return Cgroup(Path(self.mount, name), f"{self.root}/{name}".lstrip("/"))

    def application(self, pid: int) -> Cgroup:
        """Return the group of an application."""
        return self.group(f"{PREFIX}{pid}")

    def applications(self) -> Iterator[tuple[int, Cgroup]]:
        """Go through the groups that are named as those of applications."""
        for name in sorted(entry.name for entry in Path(self.mount).iterdir()):
            number = name.removeprefix(PREFIX)
            if name.startswith(PREFIX) and number.isascii() and number.isdigit():
                yield int(number), self.group(name)

    def path_of(self, pid: int) -> str | None:
        """Return the folder of the group that a process is in; None when it is gone or outside this mount."""
        try:
            lines = Path(f"/proc/{pid}/cgroup").read_text("utf-8", "surrogateescape").splitlines()
        except (FileNotFoundError, ProcessLookupError):
            return None
        place = next((line[3:] for line in lines if line.startswith("0::")), None)
        prefix = self.root.rstrip("/")
        if place is None or not f"{place}/".startswith(f"{prefix}/"):
            return None
        return str(Path(self.mount, place[len(prefix) :].lstrip("/")))


def find_tree(mountinfo: str = "/proc/self/mountinfo") -> Tree:
    """Return the tree as it is mounted here; it may be at ``/sys/fs/cgroup``, below it, or anywhere else."""
    mounts: dict[str, tuple[str, bool]] = {}
    for line in Path(mountinfo).read_text("utf-8", "surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split()[:3] if after else ("", "", "")
        if kind == "cgroup2":
            _, _, _, root, mount, flags = (_plain(word) for word in before.split()[:6])
            # A later one at the same place hides the earlier.
            mounts[mount] = (root, "ro" not in {*flags.split(","), *options.split(",")})
    # "/..": a part of the tree above what this process may name. No file: something else is mounted over it.
    usable = [
        (Tree(mount, root), writable)
        for mount, (root, writable) in mounts.items()
        if not root.startswith("/..") and Path(mount, "cgroup.procs").exists()
    ]
    found = next((tree for tree, writable in usable if writable), None)
    if found is not None:
        return found
    if usable:
        text = f"the control groups at {usable[0][0].mount} are mounted read-only"
        raise Refused("cgroup_read_only", text, _WRITABLE_FIX)
    raise Refused("no_cgroup2", "no tree of control groups of version 2 (cgroup2) is mounted here", _MOUNT_FIX)


class Cgroup:
    """One control group, by its folder."""

    __slots__ = ("_folder", "relative")

    def __init__(self, folder: Path, relative: str) -> None:
        """Name it; nothing is made."""
        self._folder = folder
        self.relative = relative

    @property
    def name(self) -> str:
        """Return its name."""
        return self._folder.name

    @property
    def path(self) -> str:
        """Return where it is."""
        return str(self._folder)

    def below(self, name: str) -> Cgroup:
        """Return a group inside this one."""
        return Cgroup(self._folder / name, f"{self.relative}/{name}")

    def identity(self) -> int | None:
        """Return what tells it from another that is made later in its place; None when it does not exist.

        A rule of the packet filter stays with the group for which it was made: where a group was removed and made
        again, the rule is still listed, and matches nothing.
        """
        try:
            return self._folder.stat().st_ino
        except FileNotFoundError:
            return None

    def make(self, mark: str = "") -> int:
        """Make it unless it exists, say whose it is, and return its identity."""
        try:
            with contextlib.suppress(FileExistsError):
                self._folder.mkdir()
                # Whatever the umask is: the application looks in, and can write nothing.
                self._folder.chmod(0o755)
            if mark:
                with contextlib.suppress(OSError):  # a kernel without such attributes; the rules say it too
                    os.setxattr(self._folder, _MARK, mark.encode())
            return self._folder.stat().st_ino
        except OSError as error:
            raise _refused(self.path, error) from None

    def mark(self) -> str:
        """Return what ``make`` has noted."""
        try:
            return os.getxattr(self._folder, _MARK).decode("utf-8", "replace")
        except OSError:
            return ""

    def add(self, pid: int) -> None:
        """Move a process in, with all its threads. Sockets that it has already stay where they were made."""
        try:
            self._write("cgroup.procs", str(pid))
        except ProcessLookupError:
            raise Refused("gone", f"process {pid} has ended", "start it again") from None
        except OSError as error:
            raise _refused(self.path, error) from None

    def opened(self) -> int:
        """Return a descriptor by which a process without rights moves itself in: the kernel asks who opened it."""
        try:
            return os.open(self._folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            raise _refused(self.path, error) from None

    def inside(self) -> Iterator[Cgroup]:
        """Go through the groups directly in this one."""
        try:
            names = sorted(entry.name for entry in self._folder.iterdir() if entry.is_dir())
        except FileNotFoundError:
            return
        yield from map(self.below, names)

    def members(self) -> list[int]:
        """Return the processes in it; not those in groups inside it."""
        try:
            return [pid for line in (self._folder / "cgroup.procs").read_text().split() if (pid := int(line))]
        except OSError:  # removed, perhaps after it was opened
            return []

    def populated(self) -> bool:
        """Tell whether a living process is in it or in a group inside it."""
        try:
            return "populated 1" in (self._folder / "cgroup.events").read_text()
        except OSError as error:
            return error.errno not in _REMOVED  # who cannot look does not know that it is empty

    def kill(self, seconds: float = _EMPTY_SECONDS) -> bool:
        """Kill everything in it and inside it, and tell whether it is empty then: only then may its rules go."""
        try:
            self._write("cgroup.kill", "1")
        except FileNotFoundError:
            self._kill_one_by_one(time.monotonic() + seconds)
        except OSError as error:
            if error.errno not in _REMOVED:  # no descriptors left, for instance: nobody was killed
                return False
        return self._empty(seconds)

    def remove(self) -> bool:
        """Remove it with what is inside it, from the bottom up; tell whether it is gone. It has to be empty."""
        for group in self.inside():
            group.remove()
        try:
            self._folder.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def _write(self, name: str, text: str) -> None:
        # Opened so that it is never made: where the group is gone, this is an error and not a new file.
        descriptor = os.open(self._folder / name, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def _kill_one_by_one(self, end: float) -> None:
        """Do it by signals, for kernels before 5.14; again until nothing is left, because children may be born."""
        while self.populated() and time.monotonic() < end:
            for group in (self, *self.inside(), *(deeper for each in self.inside() for deeper in each.inside())):
                for pid in group.members():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(0.002)

    def _empty(self, seconds: float) -> bool:
        end = time.monotonic() + seconds
        try:
            with (self._folder / "cgroup.events").open() as file:
                changes = select.poll()
                changes.register(file, select.POLLPRI)
                while "populated 1" in file.read():
                    left = end - time.monotonic()
                    if left <= 0:
                        return False
                    changes.poll(min(left, 0.1) * 1000)
                    file.seek(0)
        except OSError:
            return not self.populated()
        return True


def _plain(word: str) -> str:
    """Return a word of ``mountinfo`` as it was: blanks in it are written as octal numbers."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), word)


def _refused(path: str, error: OSError) -> Refused:
    if error.errno == errno.EROFS:
        return Refused("cgroup_read_only", f"the control group {path} is on a read-only mount", _WRITABLE_FIX)
    if error.errno in {errno.EACCES, errno.EPERM}:
        text = f"this process may not change the control group {path}"
        return Refused("not_privileged", text, "start the helper as root")
    if error.errno == errno.ENOENT:
        return Refused("gone", f"the control group {path} has been removed", "apply the policy again")
    if error.errno in {errno.EOPNOTSUPP, errno.EBUSY}:
        text = f"the control group {path} takes no processes ({error.strerror})"
        return Refused("no_cgroup2", text, "let the helper see the tree from a group that is of type domain")
    text = f"the control group {path} cannot be used: {error.strerror}"
    return Refused("no_cgroup2", text, "see cgroup.max.descendants and cgroup.max.depth of the groups above it")
