"""What the self-test has ready for its attempts: a file, a program and listeners that nobody declared."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_ARRIVES_WITHIN = 0.25
_DATAGRAM = 64
FAMILIES = (("v4", socket.AF_INET, "127.0.0.1"), ("v6", socket.AF_INET6, "::1"))


class Ground:
    """A folder in the state directory and four listeners on loopback, all gone at the end."""

    def __init__(self, state_dir: str) -> None:
        self._cleanup = contextlib.ExitStack()
        self.token = secrets.token_hex(8)
        self.addresses: dict[str, Any] = {}
        self._datagrams: dict[str, socket.socket] = {}
        with contextlib.ExitStack() as failing:
            failing.push(self._cleanup)
            self.folder = tempfile.mkdtemp(prefix="os_sandbox_selftest_", dir=state_dir)
            self._cleanup.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self.file = f"{self.folder}/file"
            Path(self.file).write_text("self-test\n", "ascii")
            self.program = self._program()
            self._unix()
            for name, family, host in FAMILIES:
                self._listen(name, family, host)
            failing.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    def arrived(self, name: str) -> bool:
        """Whether the datagram of this self-test came in. Earlier ones of the same self-test are taken with it."""
        listener = self._datagrams[name]
        until = time.monotonic() + _ARRIVES_WITHIN
        found = False
        while not found and (left := until - time.monotonic()) > 0:
            if select.select([listener], [], [], left)[0]:
                found = listener.recv(_DATAGRAM) == self.token.encode()
        return found

    def _program(self) -> str:
        """Place a program where nobody may execute one."""
        path = f"{self.folder}/program"
        shutil.copyfile(harmless_program(), path)
        Path(path).chmod(0o700)
        return path

    def call_unix(self) -> None:
        """Connect to the unix socket, as a process that may see the folder does."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link, self._short_path() as folder:
            link.connect(f"{folder}/socket")

    def _unix(self) -> None:
        listener = self._cleanup.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        with self._short_path() as folder:
            listener.bind(f"{folder}/socket")
        listener.listen(16)

    @contextlib.contextmanager
    def _short_path(self) -> Iterator[str]:
        """Lead to the folder by a descriptor: its path may be longer than the address of a socket may be."""
        folder = os.open(self.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{folder}"
        finally:
            os.close(folder)

    def _listen(self, name: str, family: socket.AddressFamily, host: str) -> None:
        self.addresses[f"tcp {name}"] = self.addresses[f"udp {name}"] = None
        with contextlib.suppress(OSError):  # a machine without this family
            stream = self._cleanup.enter_context(socket.socket(family, socket.SOCK_STREAM))
            stream.bind((host, 0))
            stream.listen(16)
            datagrams = self._cleanup.enter_context(socket.socket(family, socket.SOCK_DGRAM))
            datagrams.bind((host, 0))
            self._datagrams[name] = datagrams
            self.addresses[f"tcp {name}"] = stream.getsockname()
            self.addresses[f"udp {name}"] = datagrams.getsockname()


def harmless_program() -> str:
    """Return a program that does nothing, or the interpreter, which ends at once when its input is empty."""
    return next((path for path in ("/bin/true", "/usr/bin/true") if os.access(path, os.X_OK)), sys.executable)


def readable_outside(lists: Iterable[str]) -> str | None:
    """Return a folder that everybody may read and that lies in none of the lists: what stops it then is Landlock."""
    return next(_outside(("/", "/home", "/var", "/srv", "/mnt", "/media"), lists, os.R_OK | os.X_OK), None)


def writable_outside(lists: Iterable[str]) -> str | None:
    """Return a folder that this user may write to and that lies in none of the lists."""
    own = str(Path.home()) if "HOME" in os.environ else "/"
    places = ("/var/tmp", "/tmp", "/dev/mqueue", f"/run/user/{os.getuid()}", "/run/lock", own, "/srv", "/")  # noqa: S108
    return next(_outside(places, lists, os.W_OK | os.X_OK), None)


def _outside(places: Iterable[str], lists: Iterable[str], mode: int) -> Iterator[str]:
    listed = [Path(path).resolve() for path in lists]
    for place in places:
        resolved = Path(place).resolve()
        # access() is not among the things that Landlock stops: it answers by owner and mode alone.
        if resolved.is_dir() and os.access(place, mode) and not any(resolved.is_relative_to(path) for path in listed):
            yield place


def cgroup_root() -> str:
    """Return the file by which a process gets into the topmost cgroup, out of every other; empty without cgroup v2."""
    for line in Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            return f"{before.split()[4]}/cgroup.procs"
    return ""
