"""Nodes as processes, with their commands."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import threading
import time
from concurrent.futures import Future
from pathlib import Path

from democrai_sandbox import errors
from tests.access.forked_programs import Started

PATIENCE = 30.0
SCALE = float(os.environ.get("PROOF_SCALE", "1"))
"""Factor for the number of attempts."""
PROGRAM = Path(__file__).with_name("node_program.py")


class Gone(Exception):
    """The process ended before it answered."""


class Failed(Exception):
    """Error result of a node; ``args`` are its class and text."""


class NodeProcess:
    """Node process; thread-safe."""

    def __init__(self, settings):
        self._temporary = tempfile.mkdtemp(prefix="node-")
        # Its temporary files are elsewhere, because a subject may read the default folder.
        self._process = Started(PROGRAM, json.dumps(settings), environ={"TMPDIR": self._temporary}, hears_errors=True)
        self.told: list[dict] = []
        self.errors = ""
        self._started: Future = Future()
        self._answers: dict[int, Future] = {}
        self._number = 0
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        self._readers = [threading.Thread(target=one, daemon=True) for one in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def wait_until_started(self):
        self._started.result(PATIENCE)
        return self

    def begin(self, name, *, wait_for=None, **arguments):
        """Send a command and return its future result. ``wait_for``: the report that it has started."""
        answer: Future = Future()
        with self._lock:
            self._number += 1
            number = self._number
            self._answers[number] = answer
            try:
                self._process.stdin.write(json.dumps({"number": number, "do": name, **arguments}) + "\n")
                self._process.stdin.flush()
            except OSError as error:
                raise Gone from error
        if wait_for is not None:
            with self._changed:
                self._changed.wait_for(lambda: answer.done() or wait_for in self.told_of("watching"), PATIENCE)
            assert not answer.done(), answer.result()
        return answer

    def do(self, name, **arguments):
        """Send a command and return its result."""
        return self.begin(name, **arguments).result(PATIENCE)

    def told_of(self, what):
        return [one[what] for one in list(self.told) if what in one]

    def kill(self):
        """Kill it with SIGKILL; its earlier reports are still read."""
        self._process.kill()
        self._close()

    def stop(self):
        """Stop it cleanly and return its exit code."""
        if self._process.poll() is None:
            try:
                self.do("stop")
            except Gone:
                pass
        return self._close()

    def _close(self):
        code = self._process.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            try:
                stream.close()
            except BrokenPipeError:
                pass
        shutil.rmtree(self._temporary, ignore_errors=True)
        return code

    def _read(self):
        for line in self._process.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                continue  # half of a line that was being written when it was killed
            if "number" in said:
                with self._changed:
                    self._settle(self._answers.pop(said["number"]), said)
                    self._changed.notify_all()
            elif "started" in said:
                self._started.set_result(said["started"])
            else:
                with self._changed:
                    self.told.append(said)
                    self._changed.notify_all()
        for answer in [self._started, *self._answers.values()]:
            if not answer.done():
                answer.set_exception(Gone(self.errors[-2000:]))

    def _settle(self, answer, said):
        if "error" in said:
            answer.set_exception(Failed(said["error"], said["text"]))
        else:
            answer.set_result(said["answer"])

    def _read_errors(self):
        for line in self._process.stderr:
            self.errors += line


def eventually(true, within=PATIENCE, pause=0.02):
    """Return whether a condition becomes true in time; an error counts as not yet true."""
    deadline = time.monotonic() + within
    while True:
        try:
            if true():
                return True
        except (Failed, errors.ExternalAccessCheckFailed):
            pass
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)


def percentile(values, part):
    """Return the value that this part of all values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]
