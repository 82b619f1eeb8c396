"""The plugin that runs tests in workers: every test once, crashes reported, fixtures torn down on a signal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
PASSING = """
import os, pytest
@pytest.mark.parametrize("number", range(20))
def test_one(number, tmp_path):
    with open(os.environ["SEEN"], "a") as seen:
        seen.write(f"{number} {os.getpid()} {tmp_path}\\n")
"""
MIXED = """
import os, signal, pytest
def test_passes(): pass
def test_crashes(): os.kill(os.getpid(), signal.SIGKILL)
def test_fails(): assert False
def test_skips(): pytest.skip("a reason")
def test_goes_on(capfd): print("text"); assert capfd.readouterr().out == "text\\n"
"""
ENDLESS = """
import os, time, pytest
@pytest.fixture(scope="session", autouse=True)
def server():
    yield
    with open(os.environ["SEEN"], "a") as seen:
        seen.write("torn down\\n")
@pytest.mark.parametrize("number", range(2))
def test_waits(number):
    with open(os.environ["SEEN"], "a") as seen:
        seen.write("begun\\n")
    time.sleep(600)
"""


def begin(tmp_path, source):
    """Start pytest with two workers on a test file."""
    tmp_path.joinpath("test_it.py").write_text(source)
    tmp_path.joinpath("seen").touch()
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.services.parallel",
        "--workers",
        "2",
        "-p",
        "no:cacheprovider",
    ]
    options = ["-c", os.devnull, "--rootdir", str(tmp_path), "-rA", "test_it.py"]
    environ = os.environ | {
        "PYTHONPATH": str(ROOT),
        "SEEN": str(tmp_path / "seen"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    return subprocess.Popen([*command, *options], cwd=tmp_path, env=environ, stdout=subprocess.PIPE, text=True)


def seen(tmp_path):
    return tmp_path.joinpath("seen").read_text().splitlines()


def test_every_test_runs_once_in_one_of_the_workers(tmp_path):
    """Two workers share the tests, each in temp folders of its own."""
    process = begin(tmp_path, PASSING)
    process.communicate(timeout=120)
    numbers, pids, folders = zip(*(line.split() for line in seen(tmp_path)), strict=True)
    assert process.returncode == 0
    assert sorted(map(int, numbers)) == list(range(20))
    assert len(set(pids)) == 2 and str(process.pid) not in pids and len(set(folders)) == 20


def test_a_crash_fails_its_test_and_the_others_go_on(tmp_path):
    """The report names the signal; the tests behind the crash are run by another worker."""
    process = begin(tmp_path, MIXED)
    out, _ = process.communicate(timeout=120)
    found = {name: word for word, name in re.findall(r"^(PASSED|FAILED) test_it.py::(\w+)", out, re.MULTILINE)}
    assert found == {
        "test_passes": "PASSED",
        "test_crashes": "FAILED",
        "test_fails": "FAILED",
        "test_goes_on": "PASSED",
    }
    assert process.returncode == 1 and "SIGKILL" in out and "a reason" in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_tears_down_fixtures_of_all_workers(tmp_path, number):
    """Ctrl-C, SIGTERM and SIGHUP to the first process end all of them in order."""
    process = begin(tmp_path, ENDLESS)
    deadline = time.monotonic() + 60
    while seen(tmp_path).count("begun") < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert seen(tmp_path).count("torn down") == 2
    assert process.returncode == 2
