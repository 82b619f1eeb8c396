"""``democrai-sandbox shadow``: start, show and stop shadow runs."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from tests.cli.goldens import golden, transcript
from tests.console.serving import until


@pytest.fixture
def candidate(tmp_path):
    """A manifest for module wishes that allows its later requests."""
    rule = {"resource_type": "network", "operation": "receive", "target": "https://shadowed.example.org/v1"}
    file = tmp_path / "candidate.json"
    file.write_text(json.dumps({"name": "wishes", "access": [rule]}))
    return str(file)


def test_a_candidate_from_start_to_stop(asked, candidate):
    """Started after a question, listed, shown with its findings and status, stopped once."""
    start = ("shadow", "start", "--subject", "module:wishes", "--manifest", candidate)
    assert asked.says(*start).status == 2
    dry = asked.says(*start, "--dry-run")
    assert (dry.status, dry.out, asked.data("shadow", "list")["items"]) == (0, "", [])
    started = asked.says(*start, "--yes")
    assert started.status == 0
    number = started.out.strip()
    assert asked.says(*start, "--yes").status == 4
    asked.wants("https://shadowed.example.org/v1/today")
    until(lambda: asked.data("shadow", "show", number)["would_be_allowed"], "a finding")
    golden("shadow-show.piped", asked.says("shadow", "show", number).out)
    golden("shadow-list.piped", asked.says("shadow", "list").out)
    found = asked.data("shadow", "list")
    assert (found["schema"], found["items"][0]["id"]) == ("democrai-sandbox/shadow.list/1", number)
    would = asked.says("shadow", "stop", number, "--dry-run")
    assert (would.status, asked.data("shadow", "show", number)["is_running"]) == (0, True)
    assert asked.says("shadow", "stop", number).status == 2
    assert asked.data("shadow", "stop", number, "--yes")["is_running"] is False
    again = asked.says("shadow", "stop", number, "--yes")
    steps = zip((("start", "--dry-run"), ("stop", "--dry-run"), ("stop",)), (dry, would, again), strict=True)
    transcript("shadow-steps", steps, folder=Path(candidate).parent)
    asked.wants("https://shadowed.example.org/v1/later")
    assert len(asked.data("shadow", "show", number)["would_be_allowed"]) == 1


def test_bad_input(asked, tmp_path):
    """One clear line and the documented status, and nothing is started."""
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"name": "wishes", "acess": []}')
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    steps = []
    for file, value in (
        (tmp_path / "nothing", os.strerror(errno.ENOENT)),
        (tmp_path, os.strerror(errno.EISDIR)),
        (tmp_path / "binary", "UTF-8"),
        (wrong, "'acess'"),
    ):
        done = asked.says("shadow", "start", "--subject", "module:wishes", "--manifest", file, "--yes")
        assert (done.status, done.out, value in done.err) == (1, "", True), (file, done)
        steps.append((("shadow", "start", "--manifest", file), done))
    transcript("shadow-refused", steps, folder=tmp_path)
    assert asked.says("shadow", "show", "nothing").status == 1
    assert asked.says("shadow", "show", "no/id").status == 2
    assert asked.says("shadow").status == 2
