"""Check free disk space in the host's folders by reserving some."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from .places import database_file

if TYPE_CHECKING:
    from .settings import HostSettings

_ROOM = 1024 * 1024
"""Bytes to reserve: the needs of the database under load."""


def full_folders(settings: HostSettings) -> tuple[str, ...]:
    """Return the host's folders on a full disk or quota."""
    database = database_file(settings)
    folders = (settings.state_dir, settings.data_dir, *((str(Path(database).parent),) if database else ()))
    return tuple(folder for folder in dict.fromkeys(folders) if not _has_room(folder))


def _has_room(folder: str) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, _ROOM)
    except OSError:
        return False
    return True
