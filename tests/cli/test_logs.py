"""Log: rate limits and dropped records."""

from __future__ import annotations

import io
import json
import logging

import pytest

from democrai_sandbox.cli import serve


@pytest.fixture
def written(monkeypatch):
    """Captured standard error with the logging of a command."""
    names = ("", "asyncio", "uvicorn.error", *serve._QUIET)
    before = [(log := logging.getLogger(name), log.level, [*log.handlers], [*log.filters]) for name in names]
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    serve.set_up_logging("json")
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    for log, level, handlers, filters in before:
        log.setLevel(level)
        log.handlers[:], log.filters[:] = handlers, filters


def test_complaints_of_the_event_loop_are_bounded(written, monkeypatch):
    """Of thousands of records some are logged, and later the number of the others."""
    now = 100.0
    monkeypatch.setattr(serve, "monotonic", lambda: now)
    for _ in range(5000):
        logging.getLogger("asyncio").error("socket.accept() out of %s", "system resource")
    assert len(written()) == 20
    now = 111.0
    logging.getLogger("asyncio").error("something else")
    assert written()[-1]["message"].startswith("something else (")
    assert "4980" in written()[-1]["message"]
    logging.getLogger("asyncio").error("and again")
    assert written()[-1]["message"] == "and again"


def test_advice_on_websockets_is_left_out(written):
    """Any client could trigger it."""
    log = logging.getLogger("uvicorn.error")
    log.warning("No supported WebSocket library detected. Please use \"pip install 'uvicorn[standard]'\"")
    other = "Invalid HTTP request received."
    log.warning(other)
    assert [line["message"] for line in written()] == [other]


def test_without_standard_error_nothing_fails(monkeypatch, written):
    """A process with a closed standard error logs nothing."""
    monkeypatch.setattr("sys.stderr", None)
    serve.set_up_logging()
    logging.getLogger("democrai_sandbox").error("nobody reads this")
    assert written() == []
