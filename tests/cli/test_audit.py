"""``democrai-sandbox audit``: follow, export and verify."""

from __future__ import annotations

import json
import sqlite3

import pytest

from tests.cli.goldens import CTRL_C, golden, in_terminal
from tests.cli.odd_servers import Relay
from tests.cli.test_approvals import approved


def test_the_tail(asked):
    """The last records, newest last, are the same in a terminal and a pipe; --json prints one per line."""
    request = asked.wants("https://tail.example.org/today")
    asked.data("requests", "deny", request, "--reason", "nobody knows that server", "--yes")
    arguments = ("audit", "tail", "--request", request)
    numbers = ((r"(?m)^ +\d+", "     7"),)
    golden("audit-tail.terminal", asked.terminal(*arguments).text, also=numbers)
    golden("audit-tail.piped", asked.says(*arguments).out, also=numbers)
    records = [json.loads(line) for line in asked.says(*arguments, "-n", "1", "--json").out.splitlines()]
    assert [(one["schema"], one["action"]) for one in records] == [("democrai-sandbox/audit.tail/1", "denied")]
    none = asked.says(*arguments, "--action", "revoked")
    golden("audit-tail-none.piped", none.err)
    assert (none.status, none.out) == (0, "")
    assert "user " in asked.says("audit", "tail", "--action", "account_token_made").out


def test_following(asked):
    """New records appear; Ctrl-C ends the command silently with 130."""
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
    """An outage is reported once, and so is its end; missed records are shown once."""
    seen = asked.wants(f"https://followed.example.org/{cuts}/seen")
    arguments = ("audit", "tail", "-n", "1", "--follow", "--subject", "module:wishes")
    with Relay(asked.served.url) as relay:
        environ = asked.environ | {"DEMOCRAI_URL": relay.url}
        with in_terminal(arguments, environ, columns=300) as (process, screen):
            screen.read_until(seen)
            relay.cuts = cuts
            missed = asked.wants(f"https://followed.example.org/{cuts}/missed")
            screen.read_until(relay.url)
            relay.cut.clear()
            assert relay.cut.wait(60)
            relay.cuts = None
            screen.read_until(missed)
            later = asked.wants(f"https://followed.example.org/{cuts}/later")
            screen.read_until(later)
            screen.type(CTRL_C)
            screen.read_to_end()
            assert process.wait(60) == 130
    assert [screen.text.count(text) for text in (seen, missed, later)] == [1] * 3
    told = [line for line in screen.text.splitlines() if relay.url in line]
    golden(f"audit-tail-away-{cuts}.terminal", "\n".join(told), also=[(r"(?<=as a node: ).*?(?= \()", "...")])
    assert len(told) == 2  # it is away, and it is back


def test_an_export_can_be_verified(asked, tmp_path):
    """The file is complete and readable by its owner only; a change in it is detected without a node."""
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
    golden("audit-verify-broken.piped", broken.out)
    data = json.loads(asked.says("audit", "verify", "--export", file, "--json").out)
    assert (broken.status, data["ok"], data["first_bad"]) == (1, False, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["audit.jsonl"]


def test_an_export_replaces_a_file_only_when_told(asked, tmp_path):
    """An existing file stays without --yes; the CSV has a header and a line per record."""
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
    assert str(len(records)) in done.err and str(file) in done.err


def test_verifying(asked, tmp_path):
    """A node verifies its hash chain; a changed copy of a database is detected."""
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
    data = json.loads(asked.says("audit", "verify", "--database", f"sqlite:///{copy}", "--json").out)
    assert (broken.status, data["ok"], data["first_bad"]) == (1, False, 2)
    assert "record 2" in broken.out
    other = tmp_path / "notes"
    other.write_text("mine")
    other.chmod(0o644)
    refused = asked.says("audit", "verify", "--database", f"sqlite:///{other}")
    assert (refused.status, refused.out, str(other) in refused.err) == (1, "", True)
    golden("audit-verify-no-database.piped", refused.err, folder=tmp_path)
    assert other.stat().st_mode & 0o777 == 0o644
