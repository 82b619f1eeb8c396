"""Files that a recorded run created, moved aside during its repetitions, so that each creates them again.

Only files that did not exist before the run are touched. The files of the first run are restored at the end.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Self

from democrai_sandbox.errors import CommandRefused

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType


class Aside:
    """Context manager that moves files and folders aside."""

    def __init__(self, made: Iterable[str]) -> None:
        """Take the paths that did not exist before the first run."""
        paths = sorted(set(map(Path, made)))
        self._places = [path for path in paths if not any(parent in paths for parent in path.parents)]
        self._kept: dict[Path, Path] = {}

    @property
    def are_there(self) -> bool:
        """Whether the first run created any."""
        return bool(self._kept)

    def __enter__(self) -> Self:
        """Move the files of the first run aside."""
        try:
            for place in filter(os.path.lexists, self._places):
                kept = place.with_name(f".{place.name[:200]}.record-{os.getpid()}")
                os.rename(place, kept)  # noqa: PTH104 - what is there is moved, not what a link points to
                self._kept[place] = kept
        except OSError as error:
            self._put_back()
            raise CommandRefused(
                f"what the run made cannot be moved aside to repeat it: {error}", fix="record without --check"
            ) from None
        return self

    def clear(self) -> None:
        """Remove the files of a repetition."""
        for place in filter(os.path.lexists, self._places):
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
            else:
                place.unlink()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the files of the first run."""
        try:
            self.clear()
        finally:
            self._put_back()

    def _put_back(self) -> None:
        for place, kept in self._kept.items():
            os.rename(kept, place)  # noqa: PTH104 - likewise
