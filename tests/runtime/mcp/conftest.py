"""Servers in processes of their own, one of each for all tests of a worker, and the private world of a test."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.forks import RuntimeCase as Case

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[2] / "examples" / "extensions" / "mcp" / "server.py"


@contextlib.contextmanager
def served(*command):
    """Start a server, give its origin, and end it."""
    process = subprocess.Popen(
        [sys.executable, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.fixture(scope="session")
def servers():
    """The endpoints of a real MCP server, by transport."""
    with served(EXAMPLE, "streamable_http", 0) as http, served(EXAMPLE, "sse", 0) as sse:
        yield {"streamable_http": f"{http}/mcp", "sse": f"{sse}/sse"}


@pytest.fixture(scope="session")
def odd():
    """The origin of a server that goes wrong in every way."""
    with served(HERE / "odd_server.py") as origin:
        yield origin


@pytest.fixture
def case(tmp_path):
    """A private world in which a body runs in a process of its own."""
    return Case(tmp_path)
