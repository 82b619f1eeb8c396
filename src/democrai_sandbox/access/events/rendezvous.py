"""Meeting point of the nodes of one host: a private folder with the lock and the socket of the hub."""

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
    """Folder that only its owner can enter. It is held open, so that the checked folder is the one in use."""

    def __init__(self, number: int, owner: int) -> None:
        self.number = number
        self.owner = owner

    @classmethod
    def open(cls, path: Path) -> Folder:
        """Open the folder, creating it if it is missing; raises ``PermissionError`` if others can enter it."""
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
        """Close the folder."""
        os.close(self.number)

    def again(self) -> Folder:
        """Return a second descriptor of the same folder."""
        return Folder(os.dup(self.number), self.owner)

    def address(self, name: str) -> str:
        """Return a socket address in the folder that is short, however deep the folder is."""
        return f"/proc/self/fd/{self.number}/{name}"

    def trusts(self, link: socket.socket) -> bool:
        """Return whether the peer process belongs to the folder's owner or root."""
        data = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, user, _ = _CREDENTIALS.unpack(data)
        return user in (self.owner, _ROOT)

    def lock(self, name: str) -> int | None:
        """Lock the file of this name and return its descriptor, or None if it is taken.

        Closing the descriptor unlocks it.

        Root does not take the lock in another user's folder, because that user's nodes could not connect to its hub.
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
            # The file was removed between opening and locking, so other nodes lock a new file of this name.
            os.close(number)
            return None
        return number

    def bind(self, name: str) -> tuple[socket.socket, os.stat_result]:
        """Return a listening socket of this name, replacing an older one, and its file status. Requires the lock."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.number)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Before the name exists, so that other users can never connect.
            os.fchmod(listener.fileno(), 0o600)
            listener.bind(self.address(name))
            listener.listen(128)
            return listener, os.stat(name, dir_fd=self.number, follow_symlinks=False)
        except OSError:
            listener.close()
            raise

    def connect(self, name: str, *, timeout: float) -> socket.socket:
        """Connect to the socket of this name if its listener is trusted; the timeout stays set."""
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
        """Return whether the name still refers to this file."""
        try:
            return os.path.samestat(os.stat(name, dir_fd=self.number, follow_symlinks=False), status)
        except FileNotFoundError:
            return False


def folder_path(path: object) -> Path:
    """Return the absolute path of a folder, which does not need to exist."""
    if not isinstance(path, (str, os.PathLike)) or not str(path):
        raise InvalidInputError.of(f"expected a path, got {shown(path)}", pointer="/folder")
    return Path(path).absolute()


def checked_folder(path: object) -> Path:
    """Return the absolute path of a folder after creating it if necessary and checking its owner and mode."""
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
        return "other users can enter the folder; run chmod 700 on it"
    return ""
