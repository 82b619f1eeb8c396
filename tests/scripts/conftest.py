"""Commands that end with their test."""

from __future__ import annotations

import pytest

from tests.scripts.runs import SUPERVISE, Started


@pytest.fixture
def start(tmp_path):
    """Start commands whose processes do not outlive the test."""
    started = []

    def begin(*command, **environ):
        started.append(Started([str(word) for word in command], tmp_path, **environ))
        return started[-1]

    yield begin
    for each in started:
        each.kill()


@pytest.fixture
def supervised(start):
    """Start a line of shell under the supervisor."""
    return lambda line, **environ: start(SUPERVISE, "sh", "-c", line, **environ)
