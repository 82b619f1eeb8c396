"""``democrai-sandbox serve`` before PostgreSQL is up: it waits, reports that it is not ready, or gives up."""

from __future__ import annotations

import json
import socket
import subprocess
from contextlib import contextmanager

import httpx
import pytest

from democrai_sandbox.cli.output import Exit
from tests.cli.local import configured
from tests.console.serving import PLAIN, until
from tests.services.commands import COMMAND
from tests.services.ports import port
from tests.services.postgres import PostgresServer, find_programs

pytestmark = pytest.mark.skipif(find_programs() is None, reason="PostgreSQL is not installed")


@pytest.fixture(scope="module")
def server():
    """A PostgreSQL server with an empty database, started by the test."""
    found = PostgresServer(find_programs())
    found.start()
    found.waiting = found.new_database()
    found.stop()
    yield found
    found.remove()


@contextmanager
def started(folder, url, *, number=0, seconds=60, environ=None):
    """Start serving, with the log in a file; return the process."""
    file = configured(folder, database={"url": url, "wait_seconds": seconds}, server={"port": number})
    with (folder / "log").open("wb") as log:
        command = [*COMMAND, "serve", "--config", file, "--log-format", "json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environ)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def health(number, name="ready"):
    """Status and content of a health check; 0 without an answer."""
    try:
        answer = httpx.get(f"http://127.0.0.1:{number}/health/{name}", **PLAIN, timeout=10)
    except httpx.HTTPError:
        return 0, {}
    return answer.status_code, answer.json()


def test_a_database_that_comes_later(tmp_path, server):
    """Until the database answers, the process is live and not ready; then it serves and logs the wait."""
    with port() as number, started(tmp_path, server.waiting, number=number) as process:
        status, content = until(lambda: (found := health(number))[0] and found, "an answer")
        assert (status, content["ready"], content["checks"]["store"]) == (503, False, "failed")
        assert health(number, "live") == (200, {"live": True})
        server.start()
        try:
            until(lambda: health(number)[0] == 200, "serving")
        finally:
            server.stop()
        assert process.poll() is None
    logged = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert any(line["level"] == "warning" and line["logger"].endswith("host.database") for line in logged)


@pytest.mark.parametrize("seconds", [0, 1])
def test_a_database_that_does_not_come(tmp_path, server, seconds):
    """After the configured time it ends with the status for unreachable services, without keys."""
    with started(tmp_path, server.waiting, seconds=seconds) as process:
        assert process.wait(60) == Exit.UNREACHABLE
    last = (tmp_path / "log").read_text().splitlines()[-2:]
    assert last[0].startswith("host_database_unreachable: ")
    assert not (tmp_path / "state" / "keys").exists()


def test_the_service_manager_is_told(tmp_path, server):
    """The service manager gets the reason and a longer start timeout."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        environ = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "PATH": "/usr/bin:/bin"}
        with started(tmp_path, server.waiting, environ=environ):
            told = dict(line.split("=", 1) for line in manager.recv(500).decode().splitlines())
    assert set(told) == {"STATUS", "EXTEND_TIMEOUT_USEC"}
