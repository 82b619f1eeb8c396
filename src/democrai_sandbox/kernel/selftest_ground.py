"""Fixtures of the self-test: a file, a program and listeners that no rule allows."""

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
    """Folder in the state directory and four listeners on loopback, removed at the end."""

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
        """Whether this run's datagram arrived. Consumes earlier datagrams of the same run."""
        listener = self._datagrams[name]
        until = time.monotonic() + _ARRIVES_WITHIN
        found = False
        while not found and (left := until - time.monotonic()) > 0:
            if select.select([listener], [], [], left)[0]:
                found = listener.recv(_DATAGRAM) == self.token.encode()
        return found

    def _program(self) -> str:
        """Place a program in a folder from which programs may not be executed."""
        path = f"{self.folder}/program"
        shutil.copyfile(harmless_program(), path)
        Path(path).chmod(0o700)
        return path

    def call_unix(self) -> None:
        """Connect to the unix socket, as a process with access to the folder does."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link, self._short_path() as folder:
            link.connect(f"{folder}/socket")

    def _unix(self) -> None:
        listener = self._cleanup.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        with self._short_path() as folder:
            listener.bind(f"{folder}/socket")
        listener.listen(16)

    @contextlib.contextmanager
    def _short_path(self) -> Iterator[str]:
        """Return a short path to the folder through a descriptor, because socket addresses have a length limit."""
        folder = os.open(self.folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            yield f"/proc/self/fd/{folder}"
        finally:
            os.close(folder)

    def _listen(self, name: str, family: socket.AddressFamily, host: str) -> None:
        self.addresses[f"tcp {name}"] = self.addresses[f"udp {name}"] = None
        with contextlib.suppress(OSError):  # a machine without this address family
            stream = self._cleanup.enter_context(socket.socket(family, socket.SOCK_STREAM))
            stream.bind((host, 0))
            stream.listen(16)
            datagrams = self._cleanup.enter_context(socket.socket(family, socket.SOCK_DGRAM))
            datagrams.bind((host, 0))
            self._datagrams[name] = datagrams
            self.addresses[f"tcp {name}"] = stream.getsockname()
            self.addresses[f"udp {name}"] = datagrams.getsockname()


def harmless_program() -> str:
    """Return a program that does nothing; fall back to the interpreter, which exits on empty input."""
    return next((path for path in ("/bin/true", "/usr/bin/true") if os.access(path, os.X_OK)), sys.executable)


def readable_outside(lists: Iterable[str]) -> str | None:
    """Return a folder outside the lists that every user may read, so that only Landlock can refuse it."""
    return next(_outside(("/", "/home", "/var", "/srv", "/mnt", "/media"), lists, os.R_OK | os.X_OK), None)


def writable_outside(lists: Iterable[str]) -> str | None:
    """Return a folder outside the lists that this user may write to."""
    own = str(Path.home()) if "HOME" in os.environ else "/"
    places = ("/var/tmp", "/tmp", "/dev/mqueue", f"/run/user/{os.getuid()}", "/run/lock", own, "/srv", "/")  # noqa: S108
    return next(_outside(places, lists, os.W_OK | os.X_OK), None)


def _outside(places: Iterable[str], lists: Iterable[str], mode: int) -> Iterator[str]:
    listed = [Path(path).resolve() for path in lists]
    for place in places:
        resolved = Path(place).resolve()
        # Landlock does not restrict access(), which checks owner and mode only.
        if resolved.is_dir() and os.access(place, mode) and not any(resolved.is_relative_to(path) for path in listed):
            yield place


def cgroup_root() -> str:
    """Return the file that moves a process into the root cgroup; empty without cgroup v2."""
    for line in Path("/proc/self/mountinfo").read_text("utf-8", "replace").splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 "):
            return f"{before.split()[4]}/cgroup.procs"
    return ""
