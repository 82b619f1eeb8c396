"""Nodes for the tests: recorded events, and nodes in separate processes."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

from tests.access.forked_programs import Started

PROGRAM = Path(__file__).with_name("node_process.py")
PATIENCE = 30.0
"""Timeout in seconds for an expected event."""


class Heard:
    """Events that a bus delivered to its node, with times."""

    def __init__(self):
        self.told = []
        self._changed = threading.Condition()

    def __call__(self, generation):
        with self._changed:
            self.told.append((generation, time.monotonic()))
            self._changed.notify_all()

    @property
    def generations(self):
        return [generation for generation, _ in self.told if generation is not None]

    @property
    def gaps(self):
        return sum(1 for generation, _ in self.told if generation is None)

    def reaches(self, generation, within=PATIENCE):
        """Return whether a generation at least this high is delivered in time."""
        return self.until(lambda: any(told >= generation for told in self.generations), within)

    def learns(self, generation, *, gaps, within=PATIENCE):
        """Return whether it is delivered, or another gap: both make the node read the store."""
        return self.until(lambda: generation in self.generations or self.gaps > gaps, within)

    def has_gaps(self, number, within=PATIENCE):
        return self.until(lambda: self.gaps >= number, within)

    def until(self, true, within=PATIENCE):
        with self._changed:
            return self._changed.wait_for(true, timeout=within)


def eventually(true, within=PATIENCE):
    """Return whether a condition becomes true in time."""
    deadline = time.monotonic() + within
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


class NodeProcess:
    """Node in a separate process that prints its events and runs commands."""

    def __init__(self, kind, settings):
        self.process = Started(PROGRAM, kind, json.dumps(settings))
        self.heard = Heard()
        self.answers = {}
        self._answered = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ask(self, question, *arguments):
        """Return the result of a command of node_process.py."""
        self.process.stdin.write(json.dumps([question, *arguments]) + "\n")
        self.process.stdin.flush()
        with self._answered:
            assert self._answered.wait_for(lambda: question in self.answers, timeout=PATIENCE), question
            return self.answers.pop(question)

    def is_stopped(self):
        """Return whether a SIGSTOP has arrived."""
        return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    def kill(self):
        self.process.kill()
        self._close()

    def end(self):
        """Let the node stop its bus and exit; return its exit code."""
        if self.process.poll() is None:
            self.process.stdin.close()
        return self._close()

    def _close(self):
        code = self.process.wait(timeout=PATIENCE)
        self._reader.join(timeout=PATIENCE)
        self.process.stdin.close()
        self.process.stdout.close()
        return code

    def _read(self):
        for line in self.process.stdout:
            kind, value = json.loads(line)
            if kind == "heard":
                self.heard(value)
            else:
                with self._answered:
                    self.answers[kind] = value
                    self._answered.notify_all()
