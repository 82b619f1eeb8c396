"""Programs of tests in forks of a process that has imported what nodes need, one such process for a worker.

Importing is most of what a fresh node spends: a second of a processor.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from tests.services.commands import Forked, Prepared

REPOSITORY = Path(__file__).resolve().parents[2]


class Started(Forked):
    """A program that runs in a fork: as much of a ``subprocess.Popen`` with three pipes for text as is of use."""

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
        """Wait for its end, close what is left of its streams, and return the exit status."""
        try:
            return self.wait(timeout)
        finally:
            for stream in (self.stdin, self.stdout, self.stderr):
                if stream is not None:
                    stream.close()


def _pipe(theirs, *, writes=False, is_text=True):
    """Make a pipe; return the end for the other process, which is closed here with the stack, and ours, opened."""
    reader, writer = os.pipe()
    mine, other = (writer, reader) if writes else (reader, writer)
    theirs.callback(os.close, other)
    return other, open(mine, "w" if writes else "r") if is_text else open(mine, "rb", 0)


@cache
def _prepared():
    """Return the process that has imported what nodes need."""
    return Prepared(("-m", "tests.access.preparing"), folder=REPOSITORY)
