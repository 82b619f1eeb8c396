"""Where the nodes of one host meet: a folder of one user, a lock for the hub, a socket, and who is at its other end."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import struct
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from democrai_sandbox.policy import InvalidInputError
from democrai_sandbox.policy.text import shown

if TYPE_CHECKING:
    from types import TracebackType

_CREDENTIALS = struct.Struct("iII")
_ROOT = 0
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_LOCK = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


class Folder:
    """A folder that only its owner can enter, held open: what was checked is what is used."""

    def __init__(self, number: int, owner: int) -> None:
        self.number = number
        self.owner = owner

    @classmethod
    def open(cls, path: Path) -> Folder:
        """Return the folder, which is made if it is missing; raises ``PermissionError`` where others can enter it."""
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        number = os.open(path, _OPEN_FOLDER)
        status = os.fstat(number)
        wrong = _what_is_wrong(status)
        if wrong:
            os.close(number)
            raise PermissionError(wrong)
        return cls(number, status.st_uid)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the folder go."""
        os.close(self.number)

    def again(self) -> Folder:
        """Return the same folder, held open once more."""
        return Folder(os.dup(self.number), self.owner)

    def address(self, name: str) -> str:
        """Return the address of a socket in the folder; one that is short, however deep the folder lies."""
        return f"/proc/self/fd/{self.number}/{name}"

    def trusts(self, link: socket.socket) -> bool:
        """Whether the process at the other end belongs to the folder's owner, or to root."""
        data = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, user, _ = _CREDENTIALS.unpack(data)
        return user in (self.owner, _ROOT)

    def lock(self, name: str) -> int | None:
        """Return the descriptor of the lock of this name if it is free; it is held until the descriptor is closed.

        Root does not lock what is another user's: that user's nodes could not come in any more.
        """
        if os.geteuid() != self.owner:
            return None
        number = os.open(name, _OPEN_LOCK, 0o600, dir_fd=self.number)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(number)
            return None
        if not self.has(name, os.fstat(number)):
            # It was removed between opening and locking: others lock another file of this name.
            os.close(number)
            return None
        return number

    def bind(self, name: str) -> tuple[socket.socket, os.stat_result]:
        """Return a listening socket of this name, in place of an older one, and what it is. Needs the lock."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.number)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Before the name exists, so that there is no moment in which others may connect.
            os.fchmod(listener.fileno(), 0o600)
            listener.bind(self.address(name))
            listener.listen(128)
            return listener, os.stat(name, dir_fd=self.number, follow_symlinks=False)
        except OSError:
            listener.close()
            raise

    def connect(self, name: str, *, timeout: float) -> socket.socket:
        """Return a connection to the socket of this name, whose listener is trusted; it keeps the timeout."""
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            link.settimeout(timeout)
            link.connect(self.address(name))
            if not self.trusts(link):
                raise PermissionError("the socket of the hub belongs to another user")
        except OSError:
            link.close()
            raise
        return link

    def has(self, name: str, status: os.stat_result) -> bool:
        """Whether this very file has the name still."""
        try:
            return os.path.samestat(os.stat(name, dir_fd=self.number, follow_symlinks=False), status)
        except FileNotFoundError:
            return False


def folder_path(path: object) -> Path:
    """Return the absolute path of a folder, whether it is there or not."""
    if not isinstance(path, (str, os.PathLike)) or not str(path):
        raise InvalidInputError.of(f"a folder is a path, got {shown(path)}", pointer="/folder")
    return Path(path).absolute()


def checked_folder(path: object) -> Path:
    """Return the folder as an absolute path; it is made if it is missing, and must be fit for use."""
    absolute = folder_path(path)
    try:
        with Folder.open(absolute):
            return absolute
    except OSError as error:
        raise InvalidInputError.of(f"{shown(str(path))}: {error.strerror or error}", pointer="/folder") from error


def _what_is_wrong(folder: os.stat_result) -> str:
    user = os.geteuid()
    if user not in (folder.st_uid, _ROOT):
        return "the folder belongs to another user"
    if stat.S_IMODE(folder.st_mode) & 0o077:
        return "others than its owner can enter the folder: chmod 700"
    return ""
