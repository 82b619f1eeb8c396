"""The README's example, run as a reader would run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).resolve().parents[1] / "README.md").read_text()


def blocks(language):
    """The fenced blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def test_first_example_prints_what_the_readme_says(tmp_path):
    """The example runs as it stands, prints the lines shown below it, and then a hint with the missing entry."""
    (example,) = blocks("python")
    (expected,) = blocks("text")
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    (home / "first.py").write_text(example)
    finished = subprocess.run(
        [sys.executable, "first.py"],
        cwd=home,
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.stderr == ""
    assert finished.returncode == 0
    assert finished.stdout.startswith(expected)
    hint = finished.stdout.removeprefix(expected)
    assert "/etc/passwd" in hint
    assert "read" in hint
    assert (home / "notes" / "today.txt").read_text() == "water the plants"
