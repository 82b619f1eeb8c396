"""Remove files of applications that were killed together with their helpers."""

from __future__ import annotations

import os
import re
import socket
from contextlib import suppress
from pathlib import Path

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
        return True
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
