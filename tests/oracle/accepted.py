"""The reviewed list of accepted findings, `accepted.toml`: each has a reason; one that matches nothing is an error."""

from __future__ import annotations

import platform
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

FILE = Path(__file__).with_name("accepted.toml")
MATCHED = frozenset({"kind", "callable", "call", "object", "test"})
NEEDED = frozenset({"kind", "reason"})
OPTIONAL = frozenset({"minors", "machines", "declare"})


def concerns(entry, minors):
    """Tell whether an entry is about this machine and one of these minor versions."""
    machine = platform.machine()
    return machine in entry.get("machines", [machine]) and bool(set(entry.get("minors", minors)) & minors)


class Accepted:
    """The entries, and which of them matched something.

    ``matched`` are the fields whose patterns have to match a finding; ``needed`` are those that no entry lacks.
    """

    def __init__(self, path=FILE, matched=MATCHED, needed=NEEDED):
        self.entries = tomllib.loads(Path(path).read_text())["accept"]
        self.matched = matched
        self.used = set()
        for entry in self.entries:
            unknown = set(entry) - matched - needed - OPTIONAL
            lacking = [name for name in sorted(needed) if not entry.get(name)]
            if unknown or lacking:
                raise ValueError(f"{path}: an entry lacks {lacking} and must not have {sorted(unknown)}: {entry}")

    def reason(self, minor, **found):
        """Return the reason for which a finding is accepted, or None."""
        entry = self.entry(minor, **found)
        return None if entry is None else entry["reason"]

    def entry(self, minor, **found):
        """Return the entry that accepts a finding, or None."""
        for number, entry in enumerate(self.entries):
            if concerns(entry, {minor}) and all(
                fnmatchcase(found.get(name, ""), entry[name]) for name in self.matched if name in entry
            ):
                self.used.add(number)
                return entry
        return None

    def unused(self, minors):
        """Return the entries for these minor versions that matched nothing."""
        return [
            entry
            for number, entry in enumerate(self.entries)
            if number not in self.used and concerns(entry, set(minors))
        ]
