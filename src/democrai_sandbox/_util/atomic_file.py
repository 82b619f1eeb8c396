"""Atomic file writes: after an interruption, either the complete file exists or the old state."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkstemp
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

OWN = 0o600
_LONGEST_FRONT = 100


@contextmanager
def atomic_write(place: Path, *, mode: int = OWN, replaces: bool = True) -> Iterator[Path]:
    """Yield an empty private file next to ``place``, and rename it to ``place`` at the end.

    The content is synced to disk first. An existing file is replaced, or kept and ``FileExistsError`` is raised. After
    a failure nothing has changed.
    """
    folder = place.absolute().parent
    number, name = mkstemp(dir=folder, prefix=f".{place.name[:_LONGEST_FRONT]}.")
    os.close(number)
    made = Path(name)
    try:
        yield made
        _sync(made)
        made.chmod(mode)
        if replaces:
            made.replace(place)
        else:
            place.hardlink_to(made)  # unlike a rename, a link never replaces an existing file
        _sync(folder)
    finally:
        made.unlink(missing_ok=True)


def _sync(place: Path) -> None:
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
