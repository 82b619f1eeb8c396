"""Cgroups: find the mounted tree, and create, join, kill and remove a cgroup.

The cgroup of an application is at the top of the tree, not below its previous cgroup. That one may be delegated to the
application's user, who could then leave ours by writing to ``cgroup.procs``.
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
"""Errors of the files of a removed cgroup, even if they were opened before."""
_ESCAPED = re.compile(r"\\([0-7]{3})")
_MOUNT_FIX = "mount it: mount -t cgroup2 none /sys/fs/cgroup (or /sys/fs/cgroup/unified beside cgroup v1)"
_WRITABLE_FIX = "mount the tree writable for the helper: mount -o remount,rw"


class Tree(NamedTuple):
    """Cgroup v2 tree."""

    mount: str
    """Mount point."""
    root: str
    """Cgroup at the mount point, relative to the root of the hierarchy, as the packet filter needs it."""

    def group(self, name: str) -> Cgroup:
        """Return the top-level cgroup with this name, which may not exist."""
        return Cgroup(Path(self.mount, name), f"{self.root}/{name}".lstrip("/"))

    def application(self, pid: int) -> Cgroup:
        """Return the cgroup of an application."""
        return self.group(f"{PREFIX}{pid}")

    def applications(self) -> Iterator[tuple[int, Cgroup]]:
        """Yield the cgroups with the name of an application."""
        for name in sorted(entry.name for entry in Path(self.mount).iterdir()):
            number = name.removeprefix(PREFIX)
            if name.startswith(PREFIX) and number.isascii() and number.isdigit():
                yield int(number), self.group(name)

    def path_of(self, pid: int) -> str | None:
        """Return the folder of a process's cgroup; None if the process has ended or is outside this mount."""
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
    """Return the mounted tree, at ``/sys/fs/cgroup`` or any other place."""
    mounts: dict[str, tuple[str, bool]] = {}
    for line in Path(mountinfo).read_text("utf-8", "surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split()[:3] if after else ("", "", "")
        if kind == "cgroup2":
            _, _, _, root, mount, flags = (_plain(word) for word in before.split()[:6])
            # A later mount at the same place hides the earlier one.
            mounts[mount] = (root, "ro" not in {*flags.split(","), *options.split(",")})
    # "/..": outside the cgroup namespace of this process. Missing file: hidden by another mount.
    usable = [
        (Tree(mount, root), writable)
        for mount, (root, writable) in mounts.items()
        if not root.startswith("/..") and Path(mount, "cgroup.procs").exists()
    ]
    found = next((tree for tree, writable in usable if writable), None)
    if found is not None:
        return found
    if usable:
        text = f"the cgroup tree at {usable[0][0].mount} is mounted read-only"
        raise Refused("cgroup_read_only", text, _WRITABLE_FIX)
    raise Refused("no_cgroup2", "no cgroup v2 tree (cgroup2) is mounted", _MOUNT_FIX)


class Cgroup:
    """Cgroup, identified by its folder."""

    __slots__ = ("_folder", "relative")

    def __init__(self, folder: Path, relative: str) -> None:
        """Store the folder without creating it."""
        self._folder = folder
        self.relative = relative

    @property
    def name(self) -> str:
        """Return its name."""
        return self._folder.name

    @property
    def path(self) -> str:
        """Return its path."""
        return str(self._folder)

    def below(self, name: str) -> Cgroup:
        """Return a cgroup inside this one."""
        return Cgroup(self._folder / name, f"{self.relative}/{name}")

    def identity(self) -> int | None:
        """Return an id that differs for a cgroup created later with the same path; None if it does not exist.

        A packet filter rule belongs to the cgroup for which it was created. If the cgroup is removed and created again,
        the rule is still listed but matches nothing.
        """
        try:
            return self._folder.stat().st_ino
        except FileNotFoundError:
            return None

    def make(self, mark: str = "") -> int:
        """Create it unless it exists, mark its owner, and return its identity."""
        try:
            with contextlib.suppress(FileExistsError):
                self._folder.mkdir()
                # Independent of the umask: the application may read, but not write.
                self._folder.chmod(0o755)
            if mark:
                with contextlib.suppress(OSError):  # a kernel without extended attributes; the rules name the owner too
                    os.setxattr(self._folder, _MARK, mark.encode())
            return self._folder.stat().st_ino
        except OSError as error:
            raise _refused(self.path, error) from None

    def mark(self) -> str:
        """Return the owner mark set by ``make``."""
        try:
            return os.getxattr(self._folder, _MARK).decode("utf-8", "replace")
        except OSError:
            return ""

    def add(self, pid: int) -> None:
        """Move a process in, with all its threads. Its existing sockets keep their previous cgroup."""
        try:
            self._write("cgroup.procs", str(pid))
        except ProcessLookupError:
            raise Refused("gone", f"process {pid} has ended", "start it again") from None
        except OSError as error:
            raise _refused(self.path, error) from None

    def opened(self) -> int:
        """Return a descriptor with which an unprivileged process can join: the kernel checks the opener's rights."""
        try:
            return os.open(self._folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            raise _refused(self.path, error) from None

    def inside(self) -> Iterator[Cgroup]:
        """Yield the cgroups directly inside this one."""
        try:
            names = sorted(entry.name for entry in self._folder.iterdir() if entry.is_dir())
        except FileNotFoundError:
            return
        yield from map(self.below, names)

    def members(self) -> list[int]:
        """Return the processes in it, without those in nested cgroups."""
        try:
            return [pid for line in (self._folder / "cgroup.procs").read_text().split() if (pid := int(line))]
        except OSError:  # removed, possibly after it was opened
            return []

    def populated(self) -> bool:
        """Return whether a living process is in it or in a nested cgroup."""
        try:
            return "populated 1" in (self._folder / "cgroup.events").read_text()
        except OSError as error:
            return error.errno not in _REMOVED  # if it cannot be read, it may not be empty

    def kill(self, seconds: float = _EMPTY_SECONDS) -> bool:
        """Kill all processes in it and below; return whether it is empty. Its rules may only be removed then."""
        try:
            self._write("cgroup.kill", "1")
        except FileNotFoundError:
            self._kill_one_by_one(time.monotonic() + seconds)
        except OSError as error:
            if error.errno not in _REMOVED:  # for example, no free descriptor: nothing was killed
                return False
        return self._empty(seconds)

    def remove(self) -> bool:
        """Remove it with its nested cgroups, bottom up; return whether it is removed. It must be empty."""
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
        # Without O_CREAT: if the cgroup was removed, this must be an error and not a new file.
        descriptor = os.open(self._folder / name, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def _kill_one_by_one(self, end: float) -> None:
        """Kill by signals, for kernels before 5.14; repeat until it is empty, because processes may fork."""
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
    """Decode a word of ``mountinfo``, where spaces are octal escapes."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), word)


def _refused(path: str, error: OSError) -> Refused:
    if error.errno == errno.EROFS:
        return Refused("cgroup_read_only", f"the cgroup {path} is on a read-only mount", _WRITABLE_FIX)
    if error.errno in {errno.EACCES, errno.EPERM}:
        text = f"the helper may not change the cgroup {path}"
        return Refused("not_privileged", text, "start the helper as root")
    if error.errno == errno.ENOENT:
        return Refused("gone", f"the cgroup {path} has been removed", "apply the policy again")
    if error.errno in {errno.EOPNOTSUPP, errno.EBUSY}:
        text = f"the cgroup {path} does not accept processes ({error.strerror})"
        return Refused("no_cgroup2", text, "run the helper where the root of the cgroup tree is of type domain")
    text = f"the cgroup {path} cannot be used: {error.strerror}"
    return Refused("no_cgroup2", text, "check cgroup.max.descendants and cgroup.max.depth of its ancestor cgroups")
