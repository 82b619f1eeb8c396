"""Outcomes of unittest tests, written to shared memory as lines that outlive the process that runs the tests."""

from __future__ import annotations

import json
import mmap
import unittest

SHARED = 1 << 24


class Lines:
    """Lines in memory that one process writes and another reads: a fork, or one that maps the same file."""

    def __init__(self, number=-1):
        self.memory = mmap.mmap(number, SHARED)

    def clear(self):
        self.memory[0:8] = bytes(8)

    def add(self, *fields):
        text = json.dumps(fields, default=repr).encode() + b"\n"
        at = int.from_bytes(self.memory[0:8], "little")
        if 8 + at + len(text) < SHARED:
            self.memory[8 + at : 8 + at + len(text)] = text
            self.memory[0:8] = (at + len(text)).to_bytes(8, "little")

    def read(self):
        at = int.from_bytes(self.memory[0:8], "little")
        return self.memory[8 : 8 + at].decode().splitlines()


class Recorder:
    """Adds each refusal to the lines, also one that a library swallows; one that only repeats the last says nothing."""

    def __init__(self, lines):
        self.lines = lines
        self.last = ()

    def record(self, denial, *rest):
        facts = (denial.code, str(denial.operation), str(denial.target))
        if facts != self.last:
            self.lines.add("denied", *facts)
            self.last = facts


class Result(unittest.TestResult):
    """Tells the outcome of each test."""

    def __init__(self, lines, window=0):
        super().__init__()
        self.lines = lines
        self.window = window

    def startTest(self, test):
        super().startTest(test)
        self.window += 1
        self.outcome = "ok", ""
        self.lines.add("test", self.window, test.id())

    def stopTest(self, test):
        self.lines.add("outcome", self.window, test.id(), *self.outcome)
        super().stopTest(test)

    def note(self, word, error):
        self.outcome = word, f"{error[0].__name__}: {str(error[1])[:300]}"

    def addError(self, test, error):
        self.note("failed", error)
        if not isinstance(test, unittest.TestCase):  # setUpClass, setUpModule
            self.lines.add("outcome", self.window, test.id(), *self.outcome)

    def addFailure(self, test, error):
        self.note("failed", error)

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.note("failed", error)

    def addSkip(self, test, reason):
        self.outcome = "skipped", reason
        if not isinstance(test, unittest.TestCase):
            self.lines.add("outcome", self.window, test.id(), *self.outcome)

    def addExpectedFailure(self, test, error):
        self.outcome = "skipped", "expected failure"

    def addUnexpectedSuccess(self, test):
        self.outcome = "failed", "unexpected success"
