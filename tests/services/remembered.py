"""Keys of checks that passed in an earlier run, kept in pytest's cache: an unchanged check is not repeated."""

from __future__ import annotations

from pathlib import Path

import pytest


class Remembered:
    """A set of keys in a file. Workers append lines to the same file."""

    def __init__(self, file: Path, *, fresh: bool) -> None:
        self._file = file
        self._keys = set() if fresh or not file.exists() else set(file.read_text().split())

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, key: str) -> None:
        """Keep a key for later runs."""
        self._keys.add(key)
        with self._file.open("a") as file:
            file.write(f"{key}\n")


def remembered(config: pytest.Config, folder: str, name: str) -> Remembered:
    """Return the keys of one kind of check; ``--fresh`` starts without any."""
    return Remembered(config.cache.mkdir(folder) / name, fresh=config.getoption("--fresh"))
