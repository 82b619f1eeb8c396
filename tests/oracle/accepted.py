"""The reviewed list of accepted findings, `accepted.toml`: each has a reason; one that matches nothing is an error."""

from __future__ import annotations

import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

FILE = Path(__file__).with_name("accepted.toml")
FIELDS = {"kind", "callable", "call", "object", "reason", "minors", "test"}


class Accepted:
    """The entries, and which of them matched something."""

    def __init__(self, path=FILE):
        self.entries = tomllib.loads(Path(path).read_text())["accept"]
        self.used = set()
        for entry in self.entries:
            unknown = set(entry) - FIELDS
            if unknown or not entry.get("reason") or not entry.get("kind"):
                raise ValueError(f"{path}: an entry needs kind and reason, and has no {sorted(unknown)}: {entry}")

    def reason(self, minor, **found):
        """Return the reason for which a finding is accepted, or None."""
        for number, entry in enumerate(self.entries):
            if minor in entry.get("minors", [minor]) and all(
                fnmatchcase(found.get(name, ""), entry[name]) for name in FIELDS - {"reason", "minors"} if name in entry
            ):
                self.used.add(number)
                return entry["reason"]
        return None

    def unused(self, minors):
        """Return the entries for these minor versions that matched nothing."""
        return [
            entry
            for number, entry in enumerate(self.entries)
            if number not in self.used and set(entry.get("minors", minors)) & set(minors)
        ]
