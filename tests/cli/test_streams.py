"""Standard streams that are closed, or that nobody reads: no password is lost, and what serves goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import pytest

from tests.cli.test_entry import configured
from tests.console.serving import serving, until

PATIENCE = 90


def names(served):
    return [person.name for person in served.accounts.people()]


@contextlib.contextmanager
def begun(file, redirected, **streams):
    """Start it with streams as a shell leaves them, and end it."""
    command = f'exec "$0" -m democrai_sandbox.cli serve --config "$1" {redirected}'
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DEMOCRAI_")}
    process = subprocess.Popen(["sh", "-c", command, sys.executable, str(file)], env=clean, text=True, **streams)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)


@pytest.mark.parametrize(
    ("redirected", "why"), [(">&-", "it is closed"), (">/dev/full", "No space left on device")], ids=["closed", "full"]
)
def test_a_first_login_that_nobody_reads_is_not_made(tmp_path, redirected, why):
    """The start is refused with one message, and the next one that is read makes the administrator."""
    file = configured(tmp_path)
    with begun(file, redirected, stderr=subprocess.PIPE) as process:
        said = process.communicate(timeout=PATIENCE)[1]
        assert process.returncode == 1
    assert f"host_refused: the first login could not be told on standard output: {why}" in said
    assert "Traceback" not in said
    if why == "it is closed":
        with serving(tmp_path, extensions=False) as served:
            assert served.password
            assert names(served) == ["admin"]


def test_it_serves_without_standard_streams(tmp_path):
    """With all of them closed it serves, once somebody can sign in, and files it opens do not get their numbers."""
    with serving(tmp_path, extensions=False) as served:
        served.stop()
    log = tmp_path / "state" / "sandbox.db-wal"
    with begun(served.file, "<&- >&- 2>&-") as process:
        until(log.exists, "opening the database")
        held = {number: os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(3)}
        assert set(held.values()) == {os.devnull}
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) in {0, -signal.SIGTERM}  # the latter before it has begun to listen for signals


def test_an_address_that_nobody_reads_is_in_the_log(tmp_path):
    """Whoever reads no more than the first line of the output does not end what serves."""
    with serving(tmp_path, extensions=False) as served:
        served.stop()
    reader, writer = os.pipe()
    os.close(reader)
    with begun(served.file, "", stdout=writer, stderr=subprocess.PIPE) as process:
        os.close(writer)
        for line in process.stderr:
            if "democrai-sandbox is ready at http://127.0.0.1" in line:
                break
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=PATIENCE)[1]
        assert process.returncode == 0
        assert "Traceback" not in rest
        assert "Exception ignored" not in rest


def test_the_command_line_is_there_before_the_host(tmp_path):
    """What takes its time is imported when a command runs, where an interrupt ends it without a traceback."""
    program = "import sys, democrai_sandbox.cli.entry; print('democrai_sandbox.host' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "False\n"
