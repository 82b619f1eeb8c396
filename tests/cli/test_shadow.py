"""``democrai-sandbox shadow``: try a candidate, and see what it would change."""

from __future__ import annotations

import json

import pytest

from tests.cli.goldens import golden
from tests.console.serving import until


@pytest.fixture
def candidate(tmp_path):
    """A manifest for module wishes that allows what it is going to ask for."""
    rule = {"resource_type": "network", "operation": "receive", "target": "https://shadowed.example.org/v1"}
    file = tmp_path / "candidate.json"
    file.write_text(json.dumps({"name": "wishes", "access": [rule]}))
    return str(file)


def test_a_candidate_from_start_to_stop(asked, candidate):
    """Started after a question, listed, shown with what would be allowed and the status for it, stopped once."""
    start = ("shadow", "start", "--subject", "module:wishes", "--manifest", candidate)
    assert asked.says(*start).status == 2
    dry = asked.says(*start, "--dry-run")
    assert (dry.status, dry.out, "nothing was started" in dry.err) == (0, "", True)
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
    assert asked.says("shadow", "stop", number, "--dry-run").err == "the shadow run of module:wishes would end\n"
    assert asked.says("shadow", "stop", number).status == 2
    assert asked.data("shadow", "stop", number, "--yes")["is_running"] is False
    assert "had ended before" in asked.says("shadow", "stop", number, "--yes").err
    asked.wants("https://shadowed.example.org/v1/later")
    assert len(asked.data("shadow", "show", number)["would_be_allowed"]) == 1


def test_bad_input(asked, tmp_path):
    """One clear line and the documented status, and nothing is started."""
    wrong = tmp_path / "wrong.json"
    wrong.write_text('{"name": "wishes", "acess": []}')
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for file, status, words in (
        (str(tmp_path / "nothing"), 1, "No such file"),
        (str(tmp_path), 1, "cannot be read"),
        (str(tmp_path / "binary"), 1, "UTF-8"),
        (str(wrong), 1, "unknown key 'acess'"),
    ):
        done = asked.says("shadow", "start", "--subject", "module:wishes", "--manifest", file, "--yes")
        assert (done.status, done.out, words in done.err) == (status, "", True), (file, done)
    assert asked.says("shadow", "show", "nothing").status == 1
    assert asked.says("shadow", "show", "no/id").status == 2
    assert asked.says("shadow").status == 2
