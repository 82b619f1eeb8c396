"""The reviewed list of accepted findings, `accepted.toml`: each has a reason; one that matches nothing is an error."""

from __future__ import annotations

import platform
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

FILE = Path(__file__).with_name("accepted.toml")
FIELDS = {"kind", "callable", "call", "object", "reason", "minors", "machines", "test"}


MATCHED = FIELDS - {"reason", "minors", "machines"}


def concerns(entry, minors):
    """Tell whether an entry is about this machine and one of these minor versions."""
    machine = platform.machine()
    return machine in entry.get("machines", [machine]) and bool(set(entry.get("minors", minors)) & minors)


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
            if concerns(entry, {minor}) and all(
                fnmatchcase(found.get(name, ""), entry[name]) for name in MATCHED if name in entry
            ):
                self.used.add(number)
                return entry["reason"]
        return None

    def unused(self, minors):
        """Return the entries for these minor versions that matched nothing."""
        return [
            entry
            for number, entry in enumerate(self.entries)
            if number not in self.used and concerns(entry, set(minors))
        ]
