"""Open the configuration file, which decides what is enforced, so only its owner may write it."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from shlex import quote

LARGEST_FILE = 1024 * 1024
"""Maximum size of a configuration in bytes."""

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_BOM = "\ufeff"


class FileRefusedError(Exception):
    """Unusable file; the text contains the reason, ``line`` the line."""

    def __init__(self, why: str, line: int = 0) -> None:
        super().__init__(why)
        self.line = line


def read_file(path: str) -> str:
    """Return the text of a configuration file; raise if it is unusable."""
    try:
        # Non-blocking: a pipe at this path would block the start.
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            _check(os.fstat(number), path)
            with os.fdopen(number, "rb", closefd=False) as file:
                data = file.read(LARGEST_FILE + 1)
        finally:
            os.close(number)
    except FileNotFoundError:
        raise FileRefusedError("the file does not exist") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "the file name is invalid"
        raise FileRefusedError(f"the file cannot be read: {why}") from None
    if len(data) > LARGEST_FILE:
        raise FileRefusedError(f"the file is larger than {LARGEST_FILE:,} bytes")
    return _decoded(data)


def _check(status: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise FileRefusedError("this is a folder; a file is needed")
    if not stat.S_ISREG(status.st_mode):
        raise FileRefusedError("this is not a regular file")
    if status.st_mode & _WRITABLE_BY_OTHERS:
        command = f"chmod go-w {quote(str(Path(path)))}"
        raise FileRefusedError(f"other users can write the file; to fix it: {command}")


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8").removeprefix(_BOM)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FileRefusedError(f"the text is not UTF-8 (byte 0x{data[error.start]:02x})", line) from None
