"""Signals in the middle of `make run`, `make bench` and `make test`: everything ends, and nothing is left."""

from __future__ import annotations

import re
import signal
import urllib.request
from pathlib import Path

import pytest

from tests.scripts.runs import STATUS, environ_of, marked

pytestmark = [pytest.mark.once, pytest.mark.slow]
# Ctrl-C is sent to all processes of a terminal; the others are sent to make alone, which passes on only one of them.
ENDINGS = [(signal.SIGINT, "group"), (signal.SIGTERM, "make"), (signal.SIGHUP, "make")]
by_signal = pytest.mark.parametrize(("number", "whom"), ENDINGS, ids=lambda value: getattr(value, "name", value))
# What these need is there, or this test would not run: it is not looked for again.
MAKE = ("make", "--old-file=runtime", "--old-file=setup", "--old-file=servers", "--old-file=lint")


def commands(run):
    """Return the command lines of the processes of a run."""
    found = set()
    for pid in marked(run.mark):
        try:
            found.add(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


def answer(run):
    """Return the status of a page of the console that is served."""
    address = next(word for word in run.said.split() if word.startswith("http://127.0.0.1:"))
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{address}/login", timeout=60) as page:
        return page.status


@by_signal
def test_make_run(start, tmp_path, number, whom):
    """Ended while its server starts, serves, or waits for a decision, it leaves no process and no folder."""
    folder = tmp_path / "demo"
    run = start(*MAKE, "run", f"DEMO={folder}", PYTHONUNBUFFERED=1)
    if number == signal.SIGTERM:
        run.wait_for((folder / "state" / "sandbox.db").exists, "the start of the server")
    else:
        expected = "/requests/" if number == signal.SIGINT else r"http://127\.0\.0\.1:\d+\s"
        run.wait_for(lambda: re.search(expected, run.said), "the story's request, or the address")
        assert answer(run) == 200
    assert run.end(number, whom) == STATUS[number]
    assert run.folders
    assert run.left() == []
    assert not folder.exists()
    assert "removed by force" not in run.said


def test_make_bench(start):
    """Workers and servers of a benchmark end with it."""
    run = start(*MAKE, "bench", "BENCH=--quick --no-reference --only os.stat")
    run.wait_for(lambda: sum("bench.worker" in line for line in commands(run)) >= 3, "workers")
    run.wait_for(lambda: any("server.py" in line for line in commands(run)), "the server")
    assert run.end(signal.SIGTERM, "make") == STATUS[signal.SIGTERM]
    assert run.folders
    assert run.left() == []
    assert "removed by force" not in run.said


def test_make_test(start, tmp_path):
    """A test is interrupted, and what it started, stopped and made is removed; so are static checks beside it."""
    held = tmp_path / "held"
    run = start(*MAKE, "test", "TESTS=tests/scripts/interrupted.py", HELD=held, LINT=1)
    run.wait_for(held.exists, "the test")
    assert run.end(signal.SIGINT, "group") == STATUS[signal.SIGINT]
    assert run.folders
    assert run.left() == []
