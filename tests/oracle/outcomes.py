"""Outcomes of unittest tests, written to shared memory as lines that outlive the process that runs the tests."""

from __future__ import annotations

import json
import mmap
import unittest

SHARED = 1 << 24


def line(fields):
    return json.dumps(fields, default=repr).encode() + b"\n"


class Lines:
    """Lines in memory that one process writes and another reads: a fork, or one that maps the same file."""

    def __init__(self, number=-1):
        self.memory = mmap.mmap(number, SHARED)

    def clear(self):
        self.memory[0:8] = bytes(8)

    def size(self):
        return int.from_bytes(self.memory[0:8], "little")

    def add(self, *fields):
        text, at = line(fields), self.size()
        if 8 + at + len(text) < SHARED:
            self.memory[8 + at : 8 + at + len(text)] = text
            self.memory[0:8] = (at + len(text)).to_bytes(8, "little")

    def add_once(self, *fields):
        """Add a line, unless it repeats the last one: what only repeats itself counts as silent."""
        text, end = line(fields), 8 + self.size()
        if self.memory[max(0, end - len(text)) : end] != text:
            self.add(*fields)

    def read(self):
        return self.memory[8 : 8 + self.size()].decode().splitlines()


class Recorder:
    """Adds each refusal to the lines, also one that a library swallows."""

    def __init__(self, lines):
        self.lines = lines

    def record(self, denial, *rest):
        self.lines.add_once("denied", denial.code, str(denial.operation), str(denial.target))


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
