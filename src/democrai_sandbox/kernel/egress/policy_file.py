"""The file in which the helper finds the allowlist: whole or not at all, and nobody else's."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from time import time
from typing import TYPE_CHECKING

from democrai_sandbox.errors import PolicyFileRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .interface import Endpoint

VERSION = 1
LARGEST = 4 * 1024 * 1024
"""Bytes that the helper reads."""
_ROOT = 0
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_UNFINISHED = ".unfinished"
_FORGOTTEN_AFTER = 60.0
"""Seconds after which an unfinished file is nobody's any more: writing one takes milliseconds."""


def policy_path(configured: str, data_dir: str | os.PathLike[str], pid: int) -> str:
    """Return where the policy file of a process lies."""
    return _placed(configured, Path(data_dir) / f"os_sandbox_allowlist_{pid}.json", pid)


def socket_path(configured: str, state_dir: str | os.PathLike[str], pid: int) -> str:
    """Return where the helper of a process listens."""
    return _placed(configured, Path(state_dir) / f"os_sandbox_helper_{pid}.sock", pid)


def encoded(endpoints: Iterable[Endpoint]) -> bytes:
    """Return the content of the file; the same for the same endpoints."""
    document = {"version": VERSION, "endpoints": [endpoint.as_dict() for endpoint in endpoints]}
    return json.dumps(document, ensure_ascii=True, separators=(",", ":"), sort_keys=True).encode("ascii")


def digest_of(content: bytes) -> str:
    """Return by what the helper says which content it has applied."""
    return hashlib.sha256(content).hexdigest()


class PolicyFile:
    """One file that is replaced as a whole. Whoever opens it sees one complete state, also after a loss of power."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Keep the path; nothing is touched yet."""
        self.path = os.fspath(path)
        self._folder, self._name = os.path.split(self.path)
        self._written = False

    def write(self, content: bytes) -> None:
        """Put the content in the place of what is there."""
        if len(content) > LARGEST:
            raise PolicyFileRefused(
                f"the allowlist has {len(content)} bytes, and the helper reads at most {LARGEST}",
                fix="declare fewer endpoints, or take back approvals that are not needed any more",
            )
        with self._opened() as folder:
            try:
                self._replace(folder, content)
            except OSError as error:
                raise PolicyFileRefused(
                    f"the policy file {self.path} could not be written: {error.strerror}",
                    fix=f"make room and let this user write to {self._folder}, or set sandbox.os.policy_file",
                ) from error

    def remove(self) -> None:
        """Take the file away, if it was written here."""
        if self._written:
            with suppress(OSError):
                Path(self.path).unlink()
            self._written = False

    def _replace(self, folder: int, content: bytes) -> None:
        self._sweep(folder)
        unfinished = f".{self._name}.{secrets.token_hex(8)}{_UNFINISHED}"
        number = os.open(unfinished, _OPEN_NEW, 0o600, dir_fd=folder)
        try:
            try:
                os.fchmod(number, 0o600)  # whatever the umask takes away or a default ACL adds
                _write_all(number, content)
                os.fsync(number)
            finally:
                os.close(number)
            os.rename(unfinished, self._name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(unfinished, dir_fd=folder)
            raise
        self._written = True
        os.fsync(folder)

    def _sweep(self, folder: int) -> None:
        """Remove what a writer left that was killed."""
        for name in os.listdir(folder):
            if name.startswith(f".{self._name}.") and name.endswith(_UNFINISHED):
                with suppress(OSError):
                    if time() - os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime > _FORGOTTEN_AFTER:
                        os.unlink(name, dir_fd=folder)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """Hold the folder open: what was checked is what is written to."""
        try:
            Path(self._folder).mkdir(mode=0o700, parents=True, exist_ok=True)
            number = os.open(self._folder, _OPEN_FOLDER)
        except OSError as error:
            raise PolicyFileRefused(
                f"the folder of the policy file {self.path} cannot be used: {error.strerror}",
                fix=f"make {self._folder} a folder of this user, or set sandbox.os.policy_file",
            ) from error
        try:
            self._check(os.fstat(number))
            yield number
        finally:
            os.close(number)

    def _check(self, status: os.stat_result) -> None:
        """Refuse a folder in which somebody else could put another file in the place of this one."""
        if status.st_uid not in (_ROOT, os.geteuid()):
            raise PolicyFileRefused(
                f"the folder {self._folder} of the policy file belongs to user {status.st_uid}",
                fix=f"chown {os.geteuid()} {self._folder}, or set sandbox.os.policy_file",
            )
        if status.st_mode & _OTHERS_WRITE:
            raise PolicyFileRefused(
                f"others can write to the folder {self._folder} of the policy file "
                f"(mode {stat.S_IMODE(status.st_mode):04o})",
                fix=f"chmod go-w {self._folder}, or set sandbox.os.policy_file to a file in another folder",
            )


def _placed(configured: str, default: Path, pid: int) -> str:
    return configured.replace("{pid}", str(pid)) if configured else str(default.absolute())


def _write_all(number: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(number, rest) :]
