"""The example that `make run` shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "host.py"


def test_the_example_is_allowed_and_stopped_as_it_says(tmp_path):
    """Six attempts pass, twelve are stopped, each with its error and what to do, and nothing is left behind."""
    ended = subprocess.run(
        [sys.executable, str(EXAMPLE)], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    lines = ended.stdout.splitlines()
    assert [line[9:] for line in lines if line.startswith("allowed ")] == [
        "write its report",
        "read its report again",
        "read the inbox",
        "use a temporary file",
        "fetch the news",
        "fetch what an administrator approved",
    ]
    assert sum(line.startswith("stopped ") for line in lines) == 12
    assert sum("sandbox_" in line for line in lines) == 12
    assert '"operation": ["create", "modify"]' in ended.stdout
    assert '"operation": "send"' in ended.stdout
    assert '"target": "data.example.com:443"' in ended.stdout
    assert list(tmp_path.iterdir()) == []
