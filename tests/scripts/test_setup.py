"""The setup: what it says when it cannot go on, what it counts, and how it goes on after an interruption."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scripts.runs import ROOT
from tests.services.rows import rows

sys.path.insert(0, str(ROOT / "scripts"))
from environment import SETS, requirements
from installing import Failure, count, is_complete, mend

sys.path.remove(str(ROOT / "scripts"))
pytestmark = pytest.mark.once
REFUSED = "HTTPConnection(host='mirror.example', port=81): Failed to establish a new connection: [Errno 111]"


@rows(
    ("said", "named"),
    [
        (REFUSED, ("mirror.example:81", "PIP_INDEX_URL")),
        ("ERROR: Could not install: [Errno 28] No space left on device", ("disk", "MB")),
        ("OSError: [Errno 30] Read-only file system: 'x'", ("Read-only file system",)),
        ("ERROR: No matching distribution found for idna==3.20", ("idna==3.20", "PIP_INDEX_URL")),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM", ("index",)),
        ("error: something new", ("something new",)),
    ],
)
def test_failures_are_one_line(said, named):
    """The reason and the fix are in one line, found in what pip or the system said."""
    failure = Failure.of(said, "pip failed")
    told = f"{failure.what}; {failure.fix}"
    assert "\n" not in told
    assert [word for word in named if word not in told] == []


def test_an_index_that_is_not_there(tmp_path):
    """A dead package index ends the setup with one line that names it, and with a status."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environ |= {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_CONFIG_FILE": os.devnull}
    environ |= {"PIP_NO_CACHE_DIR": "1", "PIP_RETRIES": "0"}
    command = [ROOT / "scripts" / "setup", tmp_path / "venv", sys.executable, "runtime"]
    done = subprocess.run(command, capture_output=True, text=True, env=environ)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("setup: [")]
    assert (done.returncode, done.stdout, len(lines)) == (1, "", 1), done.stderr
    assert "127.0.0.1:9" in lines[0]
    assert "PIP_INDEX_URL" in lines[0]


def test_sets_grow():
    """What `make run` needs is a part of what the tests need elsewhere, and that of what is needed for development."""
    runtime, tests, development = (set(SETS[name]) for name in ("runtime", "tests", "development"))
    assert runtime < tests < development
    assert development == {path.stem for path in (ROOT / "requirements").glob("*.txt")}
    assert 0 < count([requirements(name) for name in runtime]) < count([requirements(name) for name in development])


def test_packages_left_incomplete_are_forgotten(tmp_path):
    """A package without its list of files, or without one of them, is installed again; others stay."""
    place = tmp_path / "lib" / "python3.11" / "site-packages"
    for name, files in {"whole": "whole.py,,\n", "torn": None, "lacking": "gone.py,,\n"}.items():
        (place / f"{name}-1.dist-info").mkdir(parents=True)
        if files:
            (place / f"{name}-1.dist-info" / "RECORD").write_text(files)
    (place / "whole.py").touch()
    assert is_complete(place / "whole-1.dist-info")
    mend(tmp_path)
    assert [Path(found).name for found in place.glob("*.dist-info")] == ["whole-1.dist-info"]
