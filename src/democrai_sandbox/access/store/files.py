"""Identity of a SQLite database file: detects that the file was moved or replaced while connections use it."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import IO

_FRONT = b"SQLite format 3\0"


def is_database(file: IO[bytes]) -> bool:
    """Return whether an open file starts like a SQLite database. An empty file counts as one."""
    return file.read(len(_FRONT)) in (b"", _FRONT)


class DatabaseFile:
    """Database file, identified by device and inode.

    Data written to a removed or replaced file is lost when the process ends, so no decision may be stored in it. The
    new file is not opened either, because the old log might still be next to it; that needs a restart.
    """

    def __init__(self, path: str) -> None:
        """Store the identity of the current file."""
        self._path = Path(path)
        self._known = self._identity()

    def check(self) -> None:
        """Raise ``OSError`` unless the path still refers to the same file, which may come back."""
        if self._identity() != self._known:
            raise OSError(errno.ESTALE, "the database file was replaced; restore it or restart", str(self._path))

    def _identity(self) -> tuple[int, int]:
        found = self._path.stat()
        return found.st_dev, found.st_ino
