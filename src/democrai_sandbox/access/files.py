"""Files that are there whole or not at all, whatever interrupts whoever writes them."""

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
def whole(place: Path, *, mode: int = OWN, replaces: bool = True) -> Iterator[Path]:
    """Give an empty file beside ``place``, for its owner alone; what was written to it gets that name in the end.

    It is on the disk by then. A file that is there already is replaced, or stays and ``FileExistsError`` is raised. If
    anything fails, nothing has changed.
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
            place.hardlink_to(made)  # unlike a rename, a link never replaces what is there
        _sync(folder)
    finally:
        made.unlink(missing_ok=True)


def _sync(place: Path) -> None:
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
