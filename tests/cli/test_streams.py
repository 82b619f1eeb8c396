"""Closed or unread standard streams: no password is lost, and the server keeps running."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cli.goldens import code_of, golden
from tests.cli.test_entry import configured
from tests.console.serving import serving, until
from tests.services.commands import Forked

PATIENCE = 90


def names(served):
    return [person.name for person in served.accounts.people()]


def held_by(process):
    """Return the open files of a process, by number."""
    found = {}
    for path in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found[int(path.name)] = os.readlink(path)
    return found


def clean():
    """Return an environment without settings of the sandbox."""
    return {name: value for name, value in os.environ.items() if not name.startswith("DEMOCRAI_")}


@contextlib.contextmanager
def begun(file, redirected, **streams):
    """Start it with the given streams, and stop it."""
    command = f'exec "$0" -m democrai_sandbox.cli serve --config "$1" {redirected}'
    process = subprocess.Popen(["sh", "-c", command, sys.executable, str(file)], env=clean(), text=True, **streams)
    with ended(process):
        yield process


@contextlib.contextmanager
def forked(file, out, err):
    """Start it with these streams, and stop it."""
    with open(os.devnull) as nothing:
        process = Forked(["serve", "--config", file], environ=clean(), streams=(nothing, out, err))
    with ended(process):
        yield process


@contextlib.contextmanager
def ended(process):
    try:
        yield
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """A state in which the first start was refused twice, and the third created the administrator."""
    folder = tmp_path_factory.mktemp("house")
    file = configured(folder)
    with begun(file, ">&-", stderr=subprocess.PIPE) as process:
        closed = process.communicate(timeout=PATIENCE)[1]
    with open("/dev/full", "w") as nowhere, tempfile.TemporaryFile("w+") as log:
        with forked(file, nowhere, log) as other:
            status = other.wait(PATIENCE)
        log.seek(0)
        full = log.read()
    with serving(folder, extensions=False) as served:
        found = (served.password, names(served))
        served.stop()
    first = SimpleNamespace(closed=closed, full=full, statuses=(process.returncode, status), made=found)
    return SimpleNamespace(file=served.file, folder=folder, first=first)


def test_a_first_login_that_nobody_reads_is_not_made(house):
    """A start with a closed output is refused; the next one creates the administrator."""
    first = house.first
    assert first.statuses == (1, 1)
    assert (code_of(_last(first.closed)), code_of(_last(first.full))) == ("host_refused", "host_refused")
    assert os.strerror(errno.ENOSPC) in first.full
    golden("serve-first-login", f"closed:\n{_last(first.closed)}\nfull:\n{_last(first.full)}\n")
    assert "Traceback" not in first.closed + first.full
    password, people = first.made
    assert (bool(password), people) == (True, ["admin"])


def _last(text):
    """Return the text of the refusal, without the log before it."""
    return text[text.index("host_refused: ") :]


def test_it_serves_without_standard_streams(house):
    """It serves with all streams closed, and other files do not get their numbers."""
    database = str(house.folder / "state" / "sandbox.db")
    with begun(house.file, "<&- >&- 2>&-") as process:
        until(lambda: database in held_by(process).values(), "opening the database")
        held = {number: held_by(process).get(number) for number in range(3)}
        assert set(held.values()) == {os.devnull}
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) in {0, -signal.SIGTERM}  # the latter before it has begun to listen for signals


def test_an_address_that_nobody_reads_is_in_the_log(house, tmp_path):
    """A closed output does not end the server."""
    reader, writer = os.pipe()
    os.close(reader)
    log = tmp_path / "log"
    with open(writer, "wb") as nobody, log.open("wb") as err, forked(house.file, nobody, err) as process:
        address = house.folder / "state" / "node.url"
        until(address.exists, "serving")
        until(lambda: address.read_text().strip() in log.read_text(), "the address")
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    assert "Traceback" not in log.read_text()
    assert "Exception ignored" not in log.read_text()


def test_the_command_line_is_there_before_the_host(tmp_path):
    """Slow modules are imported in the command, where an interrupt prints no traceback."""
    program = "import sys, democrai_sandbox.cli.entry; print('democrai_sandbox.host' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "False\n"
