"""``democrai-sandbox status``, and the discovery of the local node."""

from __future__ import annotations

import json

from tests.cli.goldens import code_of, golden, within
from tests.cli.test_entry import configured
from tests.console.serving import serving, until

CHANGING = (
    (r"node \S+ at", "node here at"),
    (r"version \S+, process \d+", "version 1.0, process 7"),
    (r"\d+ guarded functions", "180 guarded functions"),
    (r"schema \d+, answered in [\d.]+ ms", "schema 0004, answered in 1.0 ms"),
    (r"generation \d+, read [\d.]+ s ago", "generation 1, read 0.1 s ago"),
    (r"\d module loaded, \d worker process(es)?, \d confined", "1 module loaded, 1 worker process, 1 confined"),
    (r"in force: process \d+, \d running", "in force: process 7, 1 running"),
)


def test_every_layer_on_one_screen(asked):
    """Each layer has its state and fix, by area; a terminal shows the same with colors."""
    asked.wants("https://status.example.org")  # has the module loaded, whichever test came before
    until(lambda: _resuming(asked) == 0, "what other tests have approved to go on")
    piped = asked.says("status")
    assert (piped.status, piped.err) == (0, "")
    golden("status.piped", piped.out, also=CHANGING)
    golden("status.terminal", asked.terminal("status").text, also=CHANGING)
    found = asked.data("status")
    assert found["schema"] == "democrai-sandbox/status.show/1"
    assert {line["area"] for line in found["lines"]} == {"guard", "decisions", "kernel", "runtime"}


def _resuming(asked):
    """Return the number of unfinished resume actions."""
    (line,) = [line for line in asked.data("status")["lines"] if line["name"] == "resumes"]
    return line["details"]["unfinished"]


def test_a_layer_that_is_not_well(tmp_path):
    """An enabled control that fails ends with 1, with the fix, in text and as data."""
    broken = tmp_path / "modules" / "broken"
    broken.mkdir(parents=True)
    (broken / "manifest.json").write_text('{"name": "broken", "acess": []}')
    with serving(tmp_path, {"modules_path": str(broken.parent)}, extensions=False) as served:
        environ = {"DEMOCRAI_TOKEN": served.token(served.administrator())}
        arguments = ("status", "--config", served.file)
        done = within(arguments, environ)
        assert (done.status, done.err) == (1, "")
        lines = done.out.splitlines()
        place = next(number for number, line in enumerate(lines) if " Extensions " in line)
        golden("status-degraded.piped", "\n".join([*lines[place : place + 2], lines[-1]]), folder=tmp_path)
        data = within((*arguments, "--json"), environ)
        (line,) = [one for one in json.loads(data.out)["lines"] if one["wanted"] and one["state"] == "degraded"]
        assert (data.status, line["name"], "module:broken" in line["fix"]) == (1, "extensions", True)

        address = tmp_path / "state" / "node.url"
        assert address.read_text() == f"{served.url}\n"
        served.stop()
        assert not address.exists()


def test_a_node_that_was_killed(tmp_path):
    """Its old address file is detected: no token is sent, and the error has the reason."""
    file = configured(tmp_path, state_dir=str(tmp_path))
    (tmp_path / "node.url").write_text("http://127.0.0.1:9\n")
    gone = within(("status", "--config", file), {"DEMOCRAI_TOKEN": "dsb_x"})
    assert (gone.status, gone.out, code_of(gone.err)) == (3, "", "node_unreachable")
    assert f"{tmp_path}/node.url" in gone.err
    golden("status-gone.piped", gone.err, folder=tmp_path)


def test_a_node_that_does_not_answer_comes_before_a_missing_token(tmp_path):
    """The unreachable node is the error, with status 3."""
    options = ("--config", configured(tmp_path), "--url", "http://127.0.0.1:9")
    done = within(("status", *options), {"DEMOCRAI_TOKEN": ""})
    assert (done.status, done.out, code_of(done.err)) == (3, "", "node_unreachable")
    assert "http://127.0.0.1:9" in done.err


def test_a_node_that_never_ran(tmp_path):
    """Without a node and a known port the command ends with 3 and the fix."""
    done = within(("status", "--config", configured(tmp_path)), {"DEMOCRAI_TOKEN": "dsb_x"})
    assert (done.status, done.out, code_of(done.err)) == (3, "", "node_unreachable")
    assert "democrai-sandbox serve" in done.err
    golden("status-never-ran.piped", done.err, folder=tmp_path)
