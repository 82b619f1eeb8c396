"""The reviewed differences, ``expected.toml``: each has a reason; one that does not happen is an error."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

FILE = Path(__file__).with_name("expected.toml")
FIELDS = {"program", "mode", "result", "reason", "declare"}
GOOD = ("works", "same")


class Expected:
    """The entries, and which of them happened."""

    def __init__(self, path: Path = FILE) -> None:
        """Read them; refuse an entry that is not complete."""
        self.entries: list[dict[str, Any]] = tomllib.loads(path.read_text()).get("expected", [])
        self._happened: set[int] = set()
        for entry in self.entries:
            if set(entry) - {"access"} != FIELDS or not entry["reason"]:
                raise ValueError(f"{path}: an entry has {', '.join(sorted(FIELDS))}, and may have access: {entry}")

    def find(self, program: str, mode: str, result: str) -> dict[str, Any] | None:
        """Return the entry for a result."""
        for number, entry in enumerate(self.entries):
            if (entry["program"], entry["mode"]) == (program, mode) and fnmatchcase(result, entry["result"]):
                self._happened.add(number)
                return entry
        return None

    def unexplained(self, rows: Iterable[Mapping[str, str]]) -> list[str]:
        """Return the differences that no entry is for, in words."""
        return [
            f"{row['name']}, {mode}: {result}"
            for row in rows
            for mode, result in results_of(row)
            if result not in GOOD and self.find(row["name"], mode, result) is None
        ]

    def happened(self) -> list[dict[str, Any]]:
        """Return the entries that happened."""
        return [self.entries[number] for number in sorted(self._happened)]

    def outdated(self) -> list[str]:
        """Return the entries that did not happen, in words."""
        return [
            f"{entry['program']}, {entry['mode']}: {entry['result']}"
            for number, entry in enumerate(self.entries)
            if number not in self._happened
        ]


def results_of(row: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the modes of a row and their results."""
    yield from ((mode, result) for mode, result in row.items() if mode not in ("name", "version"))
