"""Test programs in forks of a process that has already imported the modules of a node; one per test worker.

Importing takes most of the time of a new node: one second of processor time.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from tests.services.commands import Forked, Prepared

REPOSITORY = Path(__file__).resolve().parents[2]


class Started(Forked):
    """Program in a fork, with the needed part of the interface of a ``subprocess.Popen`` with three text pipes."""

    def __init__(self, program, *arguments, environ=None, hears_errors=False):
        order = {
            "arguments": [str(program), *map(str, arguments)],
            "environ": {**os.environ, **(environ or {})},
            "folder": str(Path(program).parent),
            "terminal": False,
        }
        self.returncode = None
        with ExitStack() as theirs:
            given, self.stdin = _pipe(theirs, writes=True)
            told, self.stdout = _pipe(theirs)
            complained, self.stderr = _pipe(theirs) if hears_errors else (2, None)
            report, self._report = _pipe(theirs, is_text=False)
            _prepared().send(order, [given, told, complained], report)
        self.pid = int(self._report.readline() or self._lost())

    def finish(self, timeout):
        """Wait for its end, close its streams, and return the exit status."""
        try:
            return self.wait(timeout)
        finally:
            for stream in (self.stdin, self.stdout, self.stderr):
                if stream is not None:
                    stream.close()


def _pipe(theirs, *, writes=False, is_text=True):
    """Create a pipe; return the other process's end, which the stack closes, and our end, opened."""
    reader, writer = os.pipe()
    mine, other = (writer, reader) if writes else (reader, writer)
    theirs.callback(os.close, other)
    return other, open(mine, "w" if writes else "r") if is_text else open(mine, "rb", 0)


@cache
def _prepared():
    """Return the process that has imported the modules of a node."""
    return Prepared(("-m", "tests.access.fork_server"), folder=REPOSITORY)
