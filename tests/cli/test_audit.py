"""``democrai-sandbox audit``: following it, writing it out, and checking its chain."""

from __future__ import annotations

import json
import sqlite3

import pytest

from tests.cli.goldens import CTRL_C, golden, in_terminal
from tests.cli.odd_servers import Relay
from tests.cli.test_approvals import approved


def test_the_tail(asked):
    """The last records, the newest last, the same in a terminal and in a pipe; --json has one on each line."""
    request = asked.wants("https://tail.example.org/today")
    asked.data("requests", "deny", request, "--reason", "nobody knows that server", "--yes")
    arguments = ("audit", "tail", "--request", request)
    numbers = ((r"(?m)^ +\d+", "     7"),)
    golden("audit-tail.terminal", asked.terminal(*arguments).text, also=numbers)
    golden("audit-tail.piped", asked.says(*arguments).out, also=numbers)
    records = [json.loads(line) for line in asked.says(*arguments, "-n", "1", "--json").out.splitlines()]
    assert [(one["schema"], one["action"]) for one in records] == [("democrai-sandbox/audit.tail/1", "denied")]
    assert asked.says(*arguments, "--action", "revoked").err == "no record was found\n"
    assert "person " in asked.says("audit", "tail", "--action", "account_token_made").out


def test_following(asked):
    """What happens shows up by itself; Ctrl-C ends it with 130, and says nothing."""
    first = asked.wants("https://followed.example.org/first")
    with asked.in_terminal("audit", "tail", "-n", "3", "--follow", "--subject", "module:wishes") as (process, screen):
        screen.read_until(first)
        second = asked.wants("https://followed.example.org/second")
        screen.read_until(f"request {second}")
        screen.type(CTRL_C)
        screen.read_to_end()
        assert process.wait(60) == 130
    assert screen.text.count(first) == 1
    assert "Traceback" not in screen.text
    assert screen.text.rstrip().endswith("^C")


@pytest.mark.parametrize("cuts", [0, 1500])
def test_following_goes_on_when_the_node_is_back(asked, cuts):
    """It is said once that it is away, and that it answers again; what happened meanwhile is shown, once."""
    seen = asked.wants(f"https://followed.example.org/{cuts}/seen")
    arguments = ("audit", "tail", "-n", "1", "--follow", "--subject", "module:wishes")
    with Relay(asked.served.url) as relay:
        environ = asked.environ | {"DEMOCRAI_URL": relay.url}
        with in_terminal(arguments, environ, columns=300) as (process, screen):
            screen.read_until(seen)
            relay.cuts = cuts
            missed = asked.wants(f"https://followed.example.org/{cuts}/missed")
            screen.read_until("trying again until it answers")
            relay.cut.clear()
            assert relay.cut.wait(60)
            relay.cuts = None
            screen.read_until(missed)
            later = asked.wants(f"https://followed.example.org/{cuts}/later")
            screen.read_until(later)
            screen.type(CTRL_C)
            screen.read_to_end()
            assert process.wait(60) == 130
    assert [screen.text.count(text) for text in (seen, missed, later, "trying again", "answers again")] == [1] * 5


def test_an_export_can_be_verified(asked, tmp_path):
    """Whole files, for their owner alone; the chain in them is checked without a node, and a change is found."""
    asked.wants("https://exported.example.org/today")
    file = tmp_path / "audit.jsonl"
    found = asked.data("audit", "export", "--output", file)
    lines = file.read_text().splitlines()
    assert (found["schema"], found["records"]) == ("democrai-sandbox/audit.export/1", len(lines))
    assert found["last_hash"] == json.loads(lines[-1])["hash"]
    assert file.stat().st_mode & 0o777 == 0o600
    assert asked.data("audit", "verify", "--export", file)["ok"] is True
    piped = asked.piped("audit", "export")
    assert piped.out.splitlines()[: len(lines)] == lines
    lines[2] = lines[2].replace('"actor":"', '"actor":"x')
    file.write_text("\n".join(lines))
    broken = asked.says("audit", "verify", "--export", file)
    assert broken.status == 1
    assert broken.out.startswith("the chain breaks at record 3: ")
    assert [path.name for path in tmp_path.iterdir()] == ["audit.jsonl"]


def test_an_export_replaces_a_file_only_when_told(asked, tmp_path):
    """A file that is there stays, without a terminal and without --yes; the CSV has a head and a line per record."""
    file = tmp_path / "audit.csv"
    file.write_text("mine")
    refused = asked.says("audit", "export", "--format", "csv", "--output", file)
    assert (refused.status, file.read_text()) == (2, "mine")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    refused = asked.says("audit", "export", "--output", tmp_path / "link", "--yes")
    assert (refused.status, (tmp_path / "link").is_symlink(), (tmp_path / "elsewhere").exists()) == (1, True, False)
    done = asked.says("audit", "export", "--format", "csv", "--output", file, "--action", "requested", "--yes")
    head, *records = file.read_text().splitlines()
    assert head.startswith("sequence,at,action,")
    assert done.err == f"{len(records)} records are in {file}\n"


def test_verifying(asked, tmp_path):
    """A node checks its chain; straight at a database a copy is checked, and one that somebody changed is found out."""
    approved(asked, "https://verified.example.org/today")
    found = asked.data("audit", "verify")
    assert (found["schema"], found["ok"]) == ("democrai-sandbox/audit.verify/1", True)
    assert asked.says("audit", "verify", "--database").status == 0
    copy = tmp_path / "copy.db"
    with sqlite3.connect(asked.served.folder / "state" / "sandbox.db") as source, sqlite3.connect(copy) as target:
        source.backup(target)
        for (guard,) in target.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            target.execute(f"DROP TRIGGER {guard}")
        target.execute("UPDATE access_audit SET actor = 'nobody' WHERE sequence = 2")
    source.close()
    target.close()
    broken = asked.says("audit", "verify", "--database", f"sqlite:///{copy}")
    assert (broken.status, broken.out.partition(":")[0]) == (1, "the chain breaks at record 2")
    other = tmp_path / "notes"
    other.write_text("mine")
    other.chmod(0o644)
    refused = asked.says("audit", "verify", "--database", f"sqlite:///{other}")
    assert (refused.status, refused.out) == (1, "")
    assert f"{other} is no SQLite database" in refused.err
    assert other.stat().st_mode & 0o777 == 0o644
