"""The examples that `make tour` shows."""

from __future__ import annotations

import re
from pathlib import Path

from tests.services.commands import printed
from tests.services.golden import sentence

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(example, folder):
    """Run an example in a folder, and return what it prints."""
    status, out, err = printed(EXAMPLES / example, folder=folder)
    assert status == 0, err
    return out


def test_the_example_is_allowed_and_stopped_as_it_says(tmp_path):
    """Six attempts pass, twelve are stopped, each with its error and what to do, and nothing is left behind."""
    printed = run("host.py", tmp_path)
    lines = printed.splitlines()
    assert sum(line.startswith("allowed ") for line in lines) == 6
    assert sum(line.startswith("stopped ") for line in lines) == 12
    sentence("attempts", "\n".join(line for line in lines if line.startswith(("allowed ", "stopped "))))
    assert sum("sandbox_" in line for line in lines) == 12
    assert '"operation": ["create", "modify"]' in printed
    assert '"operation": "send"' in printed
    assert '"target": "data.example.com:443"' in printed
    assert list(tmp_path.iterdir()) == []


def test_the_story_of_an_approval_goes_as_it_says(tmp_path):
    """Stopped, approved, allowed in that session only and until it ends; the audit holds every act of it."""
    lines = run("approval_story.py", tmp_path).splitlines()
    fetched = [line.partition(":")[0] for line in lines if line.startswith(("allowed", "stopped"))]
    assert fetched == [
        "stopped  in session monday",
        "allowed  in session monday",
        "stopped  in session tuesday",
        "stopped  in session monday",
    ]
    assert [line.split()[1:] for line in lines if line.startswith("  ")][-5:] == [
        ["requested", "subject:module:reports"],
        ["approved_for_session", "ada"],
        ["requested", "subject:module:reports"],
        ["session_ended", "system"],
        ["requested", "subject:module:reports"],
    ]
    sentence("chain", lines[-1])
    assert list(tmp_path.iterdir()) == []


def test_the_tour_of_the_extensions_goes_as_it_says(tmp_path):
    """Every surface does what it may, nothing that an extension tries beyond that works, and the broken one is told."""
    printed = run("runtime_story.py", tmp_path)
    lines = printed.splitlines()
    allowed = [line.partition(" ->")[0][9:] for line in lines if line.startswith("allowed ")]
    assert [line.partition(":")[0] for line in allowed] == [
        *("reports", "reports", "reports", "digest", "converter", "converter", "gallery", "gallery"),
        *("assistant", "plaintext", "calculator"),
    ]
    sentence("allowed", "\n".join(allowed))
    assert "(it worked)" not in printed
    assert re.findall(r"\d+", lines[-1]) == ["11", "37"]
    (broken,) = [line for line in lines if line.startswith("broken")]
    sentence("broken", broken)
    (told,) = {line.strip() for line in lines if "manifest.json of extractor plaintext" in line}
    assert '"runtime"' in told
    assert list(tmp_path.iterdir()) == []
