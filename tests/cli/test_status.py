"""``democrai-sandbox status``, and how it finds the node that runs here."""

from __future__ import annotations

from tests.cli.goldens import golden, within
from tests.cli.test_entry import configured
from tests.console.serving import serving, until

CHANGING = (
    (r"node \S+ at", "node here at"),
    (r"version \S+, process \d+", "version 1.0, process 7"),
    (r"\d+ entry points", "180 entry points"),
    (r"schema \d+, answered in [\d.]+ ms", "schema 0004, answered in 1.0 ms"),
    (r"generation \d+, read [\d.]+ s ago", "generation 1, read 0.1 s ago"),
    (r"\d module loaded", "1 module loaded"),
)


def test_every_layer_on_one_screen(asked):
    """Each layer with its state and what to do about it, by area; the same in a terminal, with colours."""
    asked.wants("https://status.example.org")  # has the module loaded, whichever test came before
    until(lambda: "none is waiting" in asked.says("status").out, "what other tests have approved to go on")
    piped = asked.says("status")
    assert (piped.status, piped.err) == (0, "")
    golden("status.piped", piped.out, also=CHANGING)
    golden("status.terminal", asked.terminal("status").text, also=CHANGING)
    found = asked.data("status")
    assert found["schema"] == "democrai-sandbox/status.show/1"
    assert {line["area"] for line in found["lines"]} == {"guard", "decisions", "kernel", "runtime"}


def test_a_layer_that_is_not_well(tmp_path):
    """Something wanted that is not well makes it end with 1, in text and as data, with the fix beside it."""
    broken = tmp_path / "modules" / "broken"
    broken.mkdir(parents=True)
    (broken / "manifest.json").write_text('{"name": "broken", "acess": []}')
    with serving(tmp_path, {"modules_path": str(broken.parent)}, extensions=False) as served:
        environ = {"DEMOCRAI_TOKEN": served.token(served.administrator())}
        arguments = ("status", "--config", served.file)
        done = within(arguments, environ)
        assert (done.status, done.err) == (1, "")
        assert "degraded     Extensions" in done.out
        assert "fix: see what is wrong with module:broken" in done.out
        assert done.out.endswith("not as it should be: Extensions\n")
        assert within((*arguments, "--json"), environ).status == 1

        address = tmp_path / "state" / "node.url"
        assert address.read_text() == f"{served.url}\n"
        served.stop()
        assert not address.exists()


def test_a_node_that_was_killed(tmp_path):
    """The address that it left behind misleads nobody: no token is sent there, and it is said why."""
    file = configured(tmp_path, state_dir=str(tmp_path))
    (tmp_path / "node.url").write_text("http://127.0.0.1:9\n")
    gone = within(("status", "--config", file), {"DEMOCRAI_TOKEN": "dsb_x"})
    assert (gone.status, gone.out) == (3, "")
    assert f"node_unreachable: the node that wrote {tmp_path}/node.url has gone without removing it" in gone.err


def test_a_node_that_does_not_answer_comes_before_a_missing_token(tmp_path):
    """No token helps there: it ends with 3."""
    options = ("--config", configured(tmp_path), "--url", "http://127.0.0.1:9")
    done = within(("status", *options), {"DEMOCRAI_TOKEN": ""})
    assert (done.status, done.out) == (3, "")
    assert "http://127.0.0.1:9 does not answer as a node" in done.err


def test_a_node_that_never_ran(tmp_path):
    """Without a node and without a port to expect it at, it ends with 3 and says what to do."""
    done = within(("status", "--config", configured(tmp_path)), {"DEMOCRAI_TOKEN": "dsb_x"})
    assert (done.status, done.out) == (3, "")
    assert "no node runs on" in done.err
    assert "start one with democrai-sandbox serve" in done.err
