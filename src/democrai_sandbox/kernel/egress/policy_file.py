"""Policy file and socket of an application's helper: their paths, atomic replacement, and removal after a crash."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import socket
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from time import time
from typing import TYPE_CHECKING

from democrai_sandbox.errors import PolicyFileRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .allowlist import Endpoint

VERSION = 1
LARGEST = 4 * 1024 * 1024
"""Maximum size in bytes that the helper reads."""
_ROOT = 0
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN_OLD = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPEN_TO_HOLD = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OF_OTHERS = frozenset({errno.EACCES, errno.ELOOP})
"""Errors for a file of another user, which the helper would reject, or a link: replace it without reading it."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_UNFINISHED = ".unfinished"
_FORGOTTEN_AFTER = 60.0
"""Seconds after which an unfinished file counts as abandoned; writing takes milliseconds."""


def policy_path(configured: str, data_dir: str | os.PathLike[str], pid: int) -> str:
    """Return the path of a process's policy file."""
    return _placed(configured, Path(data_dir) / f"os_sandbox_allowlist_{pid}.json", pid)


def socket_path(configured: str, state_dir: str | os.PathLike[str], pid: int) -> str:
    """Return the path of a process's helper socket."""
    return _placed(configured, Path(state_dir) / f"os_sandbox_helper_{pid}.sock", pid)


def encoded(endpoints: Iterable[Endpoint]) -> bytes:
    """Return the content of the file, identical for the same endpoints."""
    document = {"version": VERSION, "endpoints": [endpoint.as_dict() for endpoint in endpoints]}
    return json.dumps(document, ensure_ascii=True, separators=(",", ":"), sort_keys=True).encode("ascii")


def digest_of(content: bytes) -> str:
    """Return the digest by which the helper reports the applied content."""
    return hashlib.sha256(content).hexdigest()


class PolicyFile:
    """File that is replaced atomically, so that readers see one complete state, also after a power loss.

    The process that wrote it holds a lock until it removes the file or ends. Otherwise two processes with the same file
    would overwrite each other's allowlist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._folder, self._name = os.path.split(self.path)
        self._held = -1
        """Descriptor of the last written file, which holds the lock."""

    def write(self, content: bytes) -> None:
        """Replace the file; raise if another process uses the same path."""
        if len(content) > LARGEST:
            raise PolicyFileRefused(
                f"the allowlist has {len(content)} bytes; the helper reads at most {LARGEST}",
                fix="declare fewer endpoints, or revoke unneeded approvals",
            )
        with self._opened() as folder:
            try:
                self._replace(folder, content)
            except OSError as error:
                raise PolicyFileRefused(
                    f"the policy file {self.path} could not be written: {error.strerror}",
                    fix=f"free disk space, make {self._folder} writable for this user, or set sandbox.os.policy_file",
                ) from error

    def remove(self) -> None:
        """Remove the file if this process wrote it."""
        held, self._held = self._held, -1
        if held < 0:
            return
        with suppress(OSError):
            if os.path.samestat(os.stat(self.path, follow_symlinks=False), os.fstat(held)):  # noqa: PTH116 - a str path
                Path(self.path).unlink()
        os.close(held)

    def _replace(self, folder: int, content: bytes) -> None:
        self._sweep(folder)
        unfinished = f".{self._name}.{secrets.token_hex(8)}{_UNFINISHED}"
        number = -1
        try:
            _write_new(folder, unfinished, content)
            # Read-only, so that the descriptor cannot be used for writing; a lock against writers needs no more. The
            # lock belongs to this process alone: a fork does not inherit it.
            number = os.open(unfinished, _OPEN_TO_HOLD, dir_fd=folder)
            fcntl.lockf(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._place(folder, unfinished)
            self._held, number = number, self._held
        finally:
            if number >= 0:
                os.close(number)
            with suppress(OSError):
                os.unlink(unfinished, dir_fd=folder)
        os.fsync(folder)

    def _place(self, folder: int, unfinished: str) -> None:
        """Rename the file into place, unless another process has a file of this name."""
        try:
            try:
                with self._claimed(folder):
                    os.rename(unfinished, self._name, src_dir_fd=folder, dst_dir_fd=folder)
            except FileNotFoundError:
                # Unlike a rename, a link never replaces a file that was created meanwhile.
                os.link(unfinished, self._name, src_dir_fd=folder, dst_dir_fd=folder)
        except (BlockingIOError, FileExistsError):
            raise PolicyFileRefused(
                f"another application uses the policy file {self.path}",
                fix="put {pid} into sandbox.os.policy_file, or remove the setting: each application needs its own file",
            ) from None

    @contextmanager
    def _claimed(self, folder: int) -> Iterator[None]:
        """Lock the existing file: it belongs to this process, or to one that has ended."""
        while not self._is_at(folder, self._held):
            try:
                number = os.open(self._name, _OPEN_OLD, dir_fd=folder)
            except OSError as error:
                if error.errno not in _OF_OTHERS:
                    raise
                break
            try:
                fcntl.lockf(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_at(folder, number):  # otherwise it was replaced before the lock
                    yield
                    return
            finally:
                os.close(number)
        yield

    def _is_at(self, folder: int, number: int) -> bool:
        """Whether an open file is the one with the name; raise when the name does not exist."""
        found = os.stat(self._name, dir_fd=folder, follow_symlinks=False)
        return number >= 0 and os.path.samestat(found, os.fstat(number))

    def _sweep(self, folder: int) -> None:
        for name in os.listdir(folder):
            if name.startswith(f".{self._name}.") and name.endswith(_UNFINISHED):
                with suppress(OSError):
                    if time() - os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime > _FORGOTTEN_AFTER:
                        os.unlink(name, dir_fd=folder)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """Keep the folder open, so that the checked folder is the one that is written to."""
        try:
            Path(self._folder).mkdir(mode=0o700, parents=True, exist_ok=True)
            number = os.open(self._folder, _OPEN_FOLDER)
        except OSError as error:
            raise PolicyFileRefused(
                f"the folder of the policy file {self.path} cannot be used: {error.strerror}",
                fix=f"make {self._folder} a folder owned by this user, or set sandbox.os.policy_file",
            ) from error
        try:
            self._check(os.fstat(number))
            yield number
        finally:
            os.close(number)

    def _check(self, status: os.stat_result) -> None:
        """Reject a folder in which another user could replace the file."""
        if status.st_uid not in (_ROOT, os.geteuid()):
            raise PolicyFileRefused(
                f"the folder {self._folder} of the policy file belongs to user {status.st_uid}",
                fix=f"chown {os.geteuid()} {self._folder}, or set sandbox.os.policy_file",
            )
        if status.st_mode & _OTHERS_WRITE:
            raise PolicyFileRefused(
                f"other users can write to the folder {self._folder} of the policy file "
                f"(mode {stat.S_IMODE(status.st_mode):04o})",
                fix=f"chmod go-w {self._folder}, or set sandbox.os.policy_file to a file in another folder",
            )


def _placed(configured: str, default: Path, pid: int) -> str:
    return configured.replace("{pid}", str(pid)) if configured else str(default.absolute())


def _write_new(folder: int, name: str, content: bytes) -> None:
    number = os.open(name, _OPEN_NEW, 0o600, dir_fd=folder)
    try:
        os.fchmod(number, 0o600)  # independent of the umask and default ACLs
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(number, rest) :]
        os.fsync(number)
    finally:
        os.close(number)


_OURS = re.compile(
    r"os_sandbox_helper_(?P<socket>[0-9]+)\.sock"
    r"|\.?os_sandbox_allowlist_(?P<file>[0-9]+)\.json(?:\.[0-9a-f]+\.unfinished)?"
)


def sweep(data_dir: str, state_dir: str) -> tuple[str, ...]:
    """Remove files with the default name of a process that does not exist; return their paths.

    The folder may be shared with another pid namespace, whose process ids are unknown here. A socket with a listening
    helper therefore stays.
    """
    removed = []
    for folder in {Path(data_dir), Path(state_dir)}:
        with suppress(OSError):
            for path in list(folder.iterdir()):
                match = _OURS.fullmatch(path.name)
                pid = int(match["socket"] or match["file"]) if match else 0
                if pid and not _exists(pid) and not _listens(Path(state_dir) / f"os_sandbox_helper_{pid}.sock"):
                    with suppress(OSError):
                        path.unlink()
                        removed.append(str(path))
    return tuple(removed)


def remove_dead_socket(path: str) -> None:
    """Remove the socket of a killed helper, unless a process listens on it."""
    place = Path(path)
    with suppress(OSError):
        if place.is_socket() and not place.is_symlink() and not _listens(place):
            place.unlink()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0.0)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True  # it exists but is busy, or belongs to another user
    return True
