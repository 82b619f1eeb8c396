"""Servers in separate processes, one of each kind for all tests of a pytest worker, and the private world of a test."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests.runtime.cases import PreparedCase

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[2] / "examples" / "extensions" / "mcp" / "server.py"


@contextlib.contextmanager
def started(*command):
    """Start a server that prints its ports, and ends with its input."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen([sys.executable, *map(str, command)], **pipes) as process:
        yield process


class Servers:
    """The real MCP servers, each started on first use."""

    def __init__(self, process):
        self._process = process
        self.start = cache(self._start)

    def __getitem__(self, transport):
        """Return the endpoint of a transport."""
        return f"http://127.0.0.1:{self.start(transport)}/{'sse' if transport == 'sse' else 'mcp'}"

    def _start(self, transport, *certificate):
        """Start a server; return its port."""
        print(transport, 0, *certificate, sep="\t", file=self._process.stdin, flush=True)
        return int(self._process.stdout.readline())


@pytest.fixture(scope="session")
def servers():
    """Return the endpoints of a real MCP server, by transport."""
    with started(HERE / "serving.py", EXAMPLE) as process:
        yield Servers(process)


@pytest.fixture(scope="session")
def odd():
    """Return the origin of a server that misbehaves in every way."""
    with started(HERE / "odd_server.py") as process:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"


@pytest.fixture
def case(mcp_case):
    """Make a private world whose body has the library loaded."""
    return mcp_case


@pytest.fixture
def bare_case(tmp_path, prepared_file):
    """Make a private world in which the library is loaded on first use."""
    return PreparedCase(tmp_path, prepared_file)
