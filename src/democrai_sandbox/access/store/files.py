"""The file of a SQLite database: a connection goes on with it wherever it was moved, and this is what notices."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import IO

_FRONT = b"SQLite format 3\0"


def is_database(file: IO[bytes]) -> bool:
    """Whether an open file begins like a SQLite database. One in which nothing is yet is one too."""
    return file.read(len(_FRONT)) in (b"", _FRONT)


class DatabaseFile:
    """One file, known by more than its name.

    What is written to a file that was removed or replaced is gone with the process: no decision may be made in it. Nor
    is another one opened in its place, whose log might still be the old one's: that is for the next start.
    """

    def __init__(self, path: str) -> None:
        """Remember the file that is there now."""
        self._path = Path(path)
        self._known = self._identity()

    def check(self) -> None:
        """Raise ``OSError`` unless the same file is there. It may come back."""
        if self._identity() != self._known:
            raise OSError(errno.ESTALE, "the database was replaced: put it back, or start again", str(self._path))

    def _identity(self) -> tuple[int, int]:
        found = self._path.stat()
        return found.st_dev, found.st_ino
