"""Comparison of a suite's outcomes in each mode with those of the plain run, and the reviewed reasons."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from compat.running_suites import GRANTED, Outcomes, Run, Suite
from tests.oracle.accepted import Accepted

if TYPE_CHECKING:
    from collections.abc import Callable

FILE = Path(__file__).with_name("differences.toml")
MATCHED = frozenset({"suite", "test", "after", "text", "denied"})
NEEDED = frozenset({"test", "reason"})
ABSENT = ("absent", "")


class Reviewed(Accepted):
    """The reviewed differences of `differences.toml`."""

    def __init__(self, path: Path = FILE) -> None:
        super().__init__(path, MATCHED, NEEDED)


class Comparison:
    """One suite in all modes."""

    def __init__(self, suite: Suite, minor: str, reviewed: Reviewed, run: Callable[..., Any] = Run) -> None:
        self.suite = suite
        self.minor = minor
        self.reviewed = reviewed
        self.run = run
        self.runs = {mode: run(suite, mode).outcomes for mode in ("plain", *suite.modes)}
        self.reasons: dict[tuple[str, str, str], list[str]] = {}
        self.unexplained: list[tuple[str, str]] = []
        for mode in suite.modes:
            self._compare(mode)
        counts = self.runs["plain"].counts()
        if counts["failed"] * 2 > counts["ran"]:
            self.unexplained.append(("plain", "most of the suite"))

    def _compare(self, mode: str) -> None:
        """Sort the differences of a mode into explained and unexplained ones; the latter happen twice."""
        left = [test for test in self._differing(mode, self.runs["plain"]) if not self._explain(mode, test)]
        if not left:
            return
        again = {name: self.run(self.suite, name, left).outcomes for name in ("plain", mode)}
        for test in left:
            before, after = (again[name].words.get(test, ABSENT) for name in ("plain", mode))
            if before[0] != after[0] or before == ABSENT:
                self.unexplained.append((mode, test))
            else:
                self.runs[mode].words[test] = self.runs["plain"].words[test] = after

    def _differing(self, mode: str, plain: Outcomes) -> list[str]:
        words = self.runs[mode].words
        return [
            test
            for test in sorted({*plain.words, *words})
            if plain.words.get(test, ABSENT)[0] != words.get(test, ABSENT)[0]
        ]

    def _explain(self, mode: str, test: str) -> bool:
        """Find the reviewed reason of a difference. An idle guard has none."""
        if mode != "guarded":
            return False
        entry = self.reviewed.entry(self.minor, **self._found(mode, test))
        if entry is None:
            return False
        self.reasons.setdefault((mode, entry["reason"], entry.get("declare", "")), []).append(test)
        return True

    def _found(self, mode: str, test: str) -> dict[str, str]:
        after, text = self.runs[mode].words.get(test, ABSENT)
        denied = "\n".join(self.runs[mode].denied.get(test, []))
        text, denied = (GRANTED.sub("GRANTED", part) for part in (text, denied))
        return {"suite": self.suite.name, "test": test, "after": after, "text": text, "denied": denied}

    def line(self) -> str:
        """Return the suite's counts in one line."""
        plain, same = self.runs["plain"], []
        for mode in self.suite.modes:
            words = self.runs[mode].words
            number = sum(words.get(test, ABSENT)[0] == word for test, (word, _) in plain.words.items())
            same.append(f"{mode} {number}")
        explained = sum(len(tests) for tests in self.reasons.values())
        counts = plain.counts()
        return (
            f"{self.suite.name:34}{self.suite.version:9}{counts['ran']:6} tests, {counts['failed']} fail plain; "
            f"same: {', '.join(same)}; explained {explained}, open {len(self.unexplained)}"
        )

    def unexplained_lines(self) -> list[str]:
        """Return one line for each difference without a reason."""
        found = []
        for mode, test in self.unexplained:
            before = self.runs["plain"].words.get(test, ABSENT)[0]
            facts = self._found(mode, test)
            denied = f" [{facts['denied'].splitlines()[-1]}]" if facts["denied"] else ""
            found.append(f"{mode}: {test}: {before} -> {facts['after']}: {facts['text'][:200]!r}{denied}")
        return found

    def result(self) -> dict[str, Any]:
        """Return the suite's part of a file in `compat/results`."""
        differences = [
            {"mode": mode, "tests": sorted(tests), "reason": reason, "declare": declare}
            for (mode, reason, declare), tests in sorted(self.reasons.items())
        ]
        for mode, test in self.unexplained:
            differences.append({"mode": mode, "tests": [test], "reason": "not explained", "declare": ""})
        counts = {mode: outcomes.counts() for mode, outcomes in self.runs.items()}
        return {
            "name": self.suite.name,
            "version": self.suite.version,
            "counts": counts,
            "differences": differences,
        }
