"""Cgroups: find the mounted tree; create, join, kill and remove a cgroup; move processes in and out.

The cgroup of an application is at the top of the tree, not below its previous cgroup. That one may be delegated to the
application's user, who could then leave ours by writing to ``cgroup.procs``. That file is never handed out: the kernel
only checks its opener, which is root, so its holder could move any process of the machine into the cgroup. Instead, a
child asks over a socket, and the helper moves the process that the kernel names.
"""

from __future__ import annotations

import errno
import os
import re
import select
import signal
import socket
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from .processes import network_of
from .protocol import RequestRefused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .main import HelperLog
    from .processes import ProcessFamily

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


class _Mount(NamedTuple):
    root: str
    writable: bool
    options: tuple[str, ...]
    """Of the file system: in cgroup v1 its controllers too."""


def _mounts(wanted: str, mountinfo: str) -> dict[str, _Mount]:
    """Return the mounts of a kind of file system by their place."""
    mounts: dict[str, _Mount] = {}
    for line in Path(mountinfo).read_text("utf-8", "surrogateescape").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split()[:3] if after else ("", "", "")
        if kind == wanted:
            _, _, _, root, mount, flags = (_plain(word) for word in before.split()[:6])
            given = tuple(options.split(","))
            # A later mount at the same place hides the earlier one.
            mounts[mount] = _Mount(root, "ro" not in {*flags.split(","), *given}, given)
    return mounts


def own_folder(controller: str, mountinfo: str = "/proc/self/mountinfo", own: str = "/proc/self/cgroup") -> str:
    """Return the folder of this process's cgroup that has, or in cgroup v2 may have, a controller; empty for none."""
    for line in Path(own).read_text("utf-8", "surrogateescape").splitlines():  # cgroup v2 is the last one
        _, controllers, place = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        for path, mount in _mounts("cgroup" if controllers else "cgroup2", mountinfo).items():
            root = mount.root.rstrip("/")
            fits = mount.writable and (not controllers or controller in mount.options)
            if fits and f"{place.rstrip('/')}/".startswith(f"{root}/"):
                return str(Path(path, place[len(root) :].lstrip("/")))
    return ""


def find_tree(mountinfo: str = "/proc/self/mountinfo") -> Tree:
    """Return the mounted tree, at ``/sys/fs/cgroup`` or any other place."""
    # "/..": outside the cgroup namespace of this process. Missing file: hidden by another mount.
    usable = [
        (Tree(mount, root), writable)
        for mount, (root, writable, _) in _mounts("cgroup2", mountinfo).items()
        if not root.startswith("/..") and Path(mount, "cgroup.procs").exists()
    ]
    found = next((tree for tree, writable in usable if writable), None)
    if found is not None:
        return found
    if usable:
        text = f"the cgroup tree at {usable[0][0].mount} is mounted read-only"
        raise RequestRefused("cgroup_read_only", text, _WRITABLE_FIX)
    raise RequestRefused("no_cgroup2", "no cgroup v2 tree (cgroup2) is mounted", _MOUNT_FIX)


class Cgroup:
    """Cgroup, identified by its folder."""

    __slots__ = ("_folder", "name", "path", "relative")

    def __init__(self, folder: Path, relative: str) -> None:
        self._folder = folder
        self.name = folder.name
        self.path = str(folder)
        self.relative = relative

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
            with suppress(FileExistsError):
                self._folder.mkdir()
                # Independent of the umask: the application may read, but not write.
                self._folder.chmod(0o755)
            if mark:
                with suppress(OSError):  # a kernel without extended attributes; the rules name the owner too
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
            raise RequestRefused("gone", f"process {pid} has ended", "start it again") from None
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
                    with suppress(ProcessLookupError):
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


def _refused(path: str, error: OSError) -> RequestRefused:
    if error.errno == errno.EROFS:
        return RequestRefused("cgroup_read_only", f"the cgroup {path} is on a read-only mount", _WRITABLE_FIX)
    if error.errno in {errno.EACCES, errno.EPERM}:
        text = f"the helper may not change the cgroup {path}"
        return RequestRefused("not_privileged", text, "start the helper as root")
    if error.errno == errno.ENOENT:
        return RequestRefused("gone", f"the cgroup {path} has been removed", "apply the policy again")
    if error.errno in {errno.EOPNOTSUPP, errno.EBUSY}:
        text = f"the cgroup {path} does not accept processes ({error.strerror})"
        return RequestRefused("no_cgroup2", text, "run the helper where the root of the cgroup tree is of type domain")
    text = f"the cgroup {path} cannot be used: {error.strerror}"
    return RequestRefused(
        "no_cgroup2", text, "check cgroup.max.descendants and cgroup.max.depth of its ancestor cgroups"
    )


_ROUNDS = 3


class CgroupMembers:
    """Processes of one application's cgroup."""

    def __init__(self) -> None:
        self._origins: dict[int, str] = {}

    def join(self, tree: Tree, group: Cgroup, pid: int) -> None:
        """Move a process in. One that is already inside stays, because a child's cgroup is stricter.

        The helper itself stays outside: otherwise it would be killed with the members before it has cleaned up.
        """
        if pid == os.getpid():
            raise RequestRefused(
                "bad_request", "the helper cannot join the cgroup that it manages", "send another process id"
            )
        same_network(pid)
        path = tree.path_of(pid)
        if not _is_inside(group, path):
            self._origins[pid] = path or tree.mount
            group.add(pid)

    def move_out(self, group: Cgroup) -> int:
        """Move all members back to their previous cgroups, or out of this one; return their number."""
        moved, top = 0, Path(group.path).parent
        for _ in range(_ROUNDS):  # members may fork while the others are moved
            for pid in group.members():
                for folder in (Path(self._origins.get(pid, top)), top):
                    with suppress(RequestRefused):
                        Cgroup(folder, "").add(pid)
                        moved += 1
                        break
        self._origins.clear()
        return moved


def same_network(pid: int) -> None:
    """Refuse a process in another network namespace, where the rules would have no effect."""
    if network_of(pid) not in {None, network_of()}:
        text = f"process {pid} is in another network namespace than the helper, whose rules would not apply to it"
        raise RequestRefused("other_network", text, "start the helper in the network namespace of the application")


def step_out(tree: Tree, group: Cgroup) -> None:
    """Move this process and its children out of the application's cgroup, in which they were started."""
    if not _is_inside(group, tree.path_of(os.getpid())):
        return
    children: list[int] = []
    with suppress(OSError):  # a kernel without this file
        for task in Path("/proc/self/task").iterdir():
            children.extend(map(int, (task / "children").read_text().split()))
    for pid in (os.getpid(), *children):
        Cgroup(Path(tree.mount), "").add(pid)


def _is_inside(group: Cgroup, path: str | None) -> bool:
    return path is not None and f"{path}/".startswith(f"{group.path}/")


ENTERED, REFUSED = b"1", b"0"
_CREDENTIALS = struct.Struct("3i")
_SPACE = socket.CMSG_SPACE(_CREDENTIALS.size)


class JoinSockets:
    """Open entry sockets: one per child that has not joined yet."""

    def __init__(self, family: ProcessFamily, log: HelperLog) -> None:
        self._family = family
        self._log = log
        self._lock = threading.Lock()
        self._open: dict[int, tuple[socket.socket, int]] = {}
        self._events: select.epoll | None = None

    def opened(self, procs: int) -> int:
        """Take over the file of a cgroup; return the descriptor over which one process can ask to join."""
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            os.close(procs)
            raise
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        ours.settimeout(0)
        with self._lock:
            if self._events is None:
                self._events = select.epoll()
                threading.Thread(target=self._serve, args=(self._events,), name="join-sockets", daemon=True).start()
            self._open[ours.fileno()] = (ours, procs)
            self._events.register(ours, select.EPOLLIN)
        return theirs.detach()

    def _serve(self, events: select.epoll) -> None:
        while True:
            for number, _ in events.poll():
                with self._lock:
                    ours, procs = self._open.pop(number)
                    events.unregister(number)
                try:
                    with ours, suppress(OSError):
                        self._let_in(ours, procs)
                finally:
                    os.close(procs)

    def _let_in(self, ours: socket.socket, procs: int) -> None:
        data, control, _, _ = ours.recvmsg(1, _SPACE)
        if not data:
            return  # closed without being used
        answer = REFUSED
        try:
            pid = next(_CREDENTIALS.unpack(value)[0] for _, kind, value in control if kind == socket.SCM_CREDENTIALS)
            with self._family.target(pid) as target:
                target.check()
                os.write(procs, str(pid).encode())
            answer = ENTERED
        except RequestRefused as refused:
            self._log.say(f"a process may not join a child's cgroup: {refused}")
        except (OSError, StopIteration) as error:
            self._log.say(f"a process could not be moved into a child's cgroup: {error}")
        ours.send(answer, socket.MSG_NOSIGNAL)
