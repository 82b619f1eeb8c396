"""Driver's side of the server: started before the workers, and always stopped after them."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.workspace import Workspace

SCRIPT = Path(__file__).with_name("server.py")
PATIENCE = 30.0


class ServerUnavailableError(Exception):
    """The server of the network cases did not start."""


@contextmanager
def serving(ground: Workspace) -> Iterator[None]:
    """Run the server, and store its output for the workers."""
    # Without the package and this process's settings, so that nothing is installed on the other side.
    server = subprocess.Popen(
        [sys.executable, "-I", str(SCRIPT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        ground.server_file.write_bytes(_first_line(server))
        yield
    finally:
        _stop(server)


def _first_line(server: subprocess.Popen[bytes]) -> bytes:
    assert server.stdout is not None
    ready, _, _ = select.select([server.stdout], [], [], PATIENCE)
    line = server.stdout.readline() if ready else b""
    if not line:
        raise ServerUnavailableError("the server of the network cases did not start")
    json.loads(line)
    return line


def _stop(server: subprocess.Popen[bytes]) -> None:
    """Stop it; if this process ends earlier, the closed pipe stops it too."""
    server.kill()
    server.wait()
    for pipe in (server.stdin, server.stdout):
        if pipe is not None:
            pipe.close()
