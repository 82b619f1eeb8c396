"""Wrong command lines, tokens and nodes: one clear line, the documented status, no data, and nothing changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest

from democrai_sandbox.cli.commands import COMMANDS
from democrai_sandbox.cli.node import Node
from democrai_sandbox.host.scopes import Scope
from tests.cli.goldens import COMMAND, CTRL_C, environment, in_terminal, within
from tests.cli.odd_servers import ANSWERS, DRIPS, EXPORT, Odd, unknown_certificate
from tests.cli.test_entry import configured
from tests.console.serving import until

ID = "01zzzzzzzzzzzzzzzzzzzzzzzz"
ENDLESS = "x" * 1_000_000
NOWHERE = {"DEMOCRAI_URL": "http://127.0.0.1:9", "DEMOCRAI_TOKEN": "dsb_none"}
PATIENCE = 90


def refused(done, status, *said):
    """Expect one line that says what is wrong, at most one more that says what to do, and nothing else."""
    assert (done.status, done.out) == (status, "")
    lines = done.err.splitlines()
    assert 1 <= len(lines) <= 2, done.err[:2000]
    assert all(line.isprintable() and len(line) < 600 for line in lines), done.err[:2000]
    assert "Traceback" not in done.err
    for part in said:
        assert part in done.err
    return done.err


MISUSED = [
    *(((name, "--nonsense"), f"{name} --help") for name in (command.name for command in COMMANDS)),
    *(((name, "list\x1b[31m"), "'list\\x1b[31m'") for name in ("requests", "approvals", "audit")),
    *(((name, ENDLESS), "invalid choice") for name in ("requests", "approvals", "audit")),
    *(((name,), "verb") for name in ("requests", "approvals", "audit")),
    (("requests", "show"), "ID"),
    (("requests", "show", ""), "'' is no id"),
    (("requests", "show", "../status"), "'../status' is no id"),
    (("requests", "show", "\x1b[2J"), "is no id"),
    (("requests", "show", "\udcff"), "is no id"),
    (("requests", "show", ENDLESS), "is no id"),
    (("requests", "show", ID, ID), "unrecognized arguments"),
    (("requests", "approve", ID), "--session --permanent --for"),
    (("requests", "approve", "--session"), "ID"),
    (("requests", "approve", ID, "--session", "--permanent"), "not allowed with"),
    (("requests", "approve", ID, "--permanent", "--for", "2h"), "not allowed with"),
    *(
        (("requests", "approve", ID, "--for", span), "is no length of time; write 30m, 2h, 7d")
        for span in ("", "0h", "2", "h", "2 h", "2h30m", "99999w", "٢h", "\x1b", ENDLESS)
    ),
    (("requests", "approve", ID, f"{ID[:-1]}a", "--for", "2h", "--yes"), "about one request"),
    (("requests", "approve", ID, f"{ID[:-1]}a", "--permanent", "--target", "x", "--yes"), "about one request"),
    (("requests", "approve", *(f"{number:026}" for number in range(501)), "--session"), "at most 500"),
    (("requests", "approve", ID, "--permanent", "--reason", "a\x07b"), "characters nobody sees"),
    (("requests", "deny", ID), "--reason"),
    (("requests", "deny", ID, "--reason", ""), "is empty"),
    (("requests", "deny", ID, "--reason", ENDLESS), "too long"),
    (("requests", "list", "--state", "open"), "invalid choice: 'open'"),
    (("requests", "list", "--stat", "pending"), "--stat"),
    (("requests", "list", "--grouped", "--state", "denied"), "only pending requests are grouped"),
    *(
        (("requests", "list", "--limit", number), "is not a number from 1 to")
        for number in ("0", "many", "1.5", "1e3", "٣", "9" * 5000, "")
    ),
    *(
        (("requests", "list", "--newer-than", moment), "is no")
        for moment in ("yesterday", "2026-13-01", "", "999999999w", "0001-01-01T00:00:00+23:59")
    ),
    (("approvals", "revoke"), "it is not said what to revoke"),
    (("approvals", "revoke", ID, "--subject", "module:a"), "do not go together"),
    (("approvals", "revoke", "a b"), "'a b' is no id"),
    (("approvals", "list", "--scope", "forever"), "invalid choice"),
    (("audit", "tail", "-n", "0"), "is not a number from 1 to"),
    (("audit", "tail", "--action", "nothing"), "invalid choice"),
    (("audit", "export", "--format", "xml"), "invalid choice"),
    (("audit", "export", "--format", "csv", "--json"), "--json is no CSV"),
    (("audit", "verify", "--database", "postgresql://me:secret@db/x"), "a password in a command line"),
    (("audit", "verify", "--database", "--export", "x"), "not allowed with"),
    (("status", "now"), "unrecognized arguments: now"),
    (("status", "--url", "ftp://127.0.0.1"), "is no address of a node"),
    (("status", "--url", "http://"), "is no address of a node"),
    (("status", "--url", "http://127.0.0.1:99999"), "is no address"),
    (("status", "--url", "http://me:secret@127.0.0.1"), "is no address of a node"),
    (("status", "--url", "http://[::1"), "is no address"),
    (("status", "--url", "http://node.example.com"), "is not encrypted"),
    (("status", "--url", "\x1b[31m"), "is no address of a node"),
]


def test_a_wrong_command_line():
    """Whatever is wrong with the arguments of whichever command: 2, and a line that names it."""
    wrong = []
    for arguments, said in MISUSED:
        done = within(arguments, NOWHERE)
        try:
            refused(done, 2, said)
        except AssertionError:
            wrong.append(([argument[:80] for argument in arguments], done.status, done.out[:200], done.err[:800]))
    assert not wrong


def test_no_terminal_and_no_yes(asked):
    """What changes something does nothing without a terminal unless --yes says so."""
    request = asked.wants("https://unasked.example.org/today")
    other = asked.wants("https://unasked.example.org/tomorrow")
    approval = asked.data("requests", "approve", other, "--permanent", "--yes")["items"][0]["decision"]["id"]
    for arguments in (
        ("requests", "approve", request, "--permanent"),
        ("requests", "approve", request, other, "--permanent"),
        ("requests", "deny", request, "--reason", "no"),
        ("approvals", "revoke", approval),
        ("approvals", "revoke", "--subject", "module:wishes"),
    ):
        refused(asked.says(*arguments), 2, "there is no terminal", "add --yes")
    assert asked.data("requests", "show", request)["request"]["state"] == "pending"
    assert approval in {one["id"] for one in asked.data("approvals", "list", "--text", "unasked.example")["items"]}


@pytest.mark.parametrize("name", ANSWERS)
def test_something_else_answers(name):
    """Another program at the address, or a node that dies in the middle of an answer: 3, and whose address it is."""
    with Odd(ANSWERS[name]) as odd:
        done = within(("requests", "list", "--url", odd.url), NOWHERE)
        refused(done, 3, "node_unreachable: ", odd.url, "from --url", "name another one with --url")


def test_nobody_answers_in_time():
    """A server that says nothing is given up."""
    with Odd(None, keeps=True) as odd, mock.patch.object(Node, "patience", 0.3):
        refused(within(("status", "--url", odd.url), NOWHERE), 3, "it takes too long")


@pytest.mark.parametrize("name", DRIPS)
def test_an_answer_that_drips_without_end(name):
    """A word now and then is no answer: it has its time as a whole, and each line of an export has."""
    begins, goes_on = DRIPS[name]
    command = ("audit", "export") if name == "a line" else ("status",)
    with Odd(begins, drips=goes_on) as odd, mock.patch.object(Node, "longest", 0.3):
        done = within((*command, "--url", odd.url), NOWHERE)
        refused(done._replace(out=""), 3, "it takes too long")


def test_a_pipe_in_the_place_of_the_token(tmp_path):
    """Nobody waits for whoever would write into it."""
    (tmp_path / "state").mkdir()
    os.mkfifo(tmp_path / "state" / "cli.token", 0o600)
    file = configured(tmp_path)
    done = within(("status", "--config", file), {"DEMOCRAI_URL": NOWHERE["DEMOCRAI_URL"]})
    refused(done, 1, "cli.token is no plain file")


def test_a_list_without_end():
    """A page that leads to itself, or to more of nothing, is no node's; nor is a redirect that has a page with it."""
    for page, status in (({"items": [], "next": "x"}, b"200 OK"), ({"items": [], "next": ""}, b"302 Found")):
        body = json.dumps(page).encode()
        head = b"HTTP/1.1 %s\r\nX-Request-Id: 1\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        with Odd(head + body) as odd:
            done = within(("approvals", "revoke", "--subject", "module:x", "--yes", "--url", odd.url), NOWHERE)
            refused(done, 3, odd.url)


def test_encryption_that_does_not_fit(tmp_path):
    """HTTP spoken to TLS, TLS spoken to HTTP, and a certificate that nobody vouches for: 3, and no token is sent."""
    with Odd(ANSWERS["html"], context=unknown_certificate(tmp_path)) as odd:
        refused(within(("status", "--url", odd.url), NOWHERE), 3, "does not answer as a node")
        secure = odd.url.replace("http:", "https:")
        refused(within(("status", "--url", secure), NOWHERE), 3, "does not answer as a node", "CERTIFICATE")
        assert not odd.asked.is_set()
    with Odd(ANSWERS["html"]) as odd:
        secure = odd.url.replace("http:", "https:")
        refused(within(("status", "--url", secure), NOWHERE), 3, "does not answer as a node")


def test_nobody_is_there(tmp_path):
    """Where nothing listens it ends with 3 and says from where the address is."""
    refused(within(("status",), NOWHERE), 3, "http://127.0.0.1:9", "Connection refused", "from DEMOCRAI_URL")
    file = configured(tmp_path, server={"port": 9})
    done = within(("status", "--config", file), {"DEMOCRAI_TOKEN": "dsb_none"})
    refused(done, 3, "Connection refused", "from server.host and server.port")
    refused(within(("status", "--url", "https://nowhere.invalid"), NOWHERE), 3, "https://nowhere.invalid")


def test_tokens_that_do_not_do(asked, tmp_path):
    """Expired, revoked, of too narrow a scope, of somebody who may not, unknown, or no token at all."""
    accounts, uma = asked.served.accounts, asked.served.person("uma")
    expired = accounts.create_token(asked.admin.id, "tests", tuple(Scope), timedelta(seconds=1))[1]
    kept, revoked = accounts.create_token(asked.admin.id, "tests", tuple(Scope), None)
    accounts.revoke_token(kept.id, actor="tests")
    until(lambda: asked.says("status", DEMOCRAI_TOKEN=expired).status == 1, "the end of the token")
    for token in (expired, revoked, "dsb_unknown"):
        refused(asked.says("status", DEMOCRAI_TOKEN=token), 1, "the token is not known, or is over")
    narrow = asked.served.token(asked.admin, Scope.REQUESTS_READ)
    refused(asked.says("status", DEMOCRAI_TOKEN=narrow), 1, "scope_missing", "status:read")
    of_another = asked.served.token(uma)
    refused(asked.says("audit", "verify", DEMOCRAI_TOKEN=of_another), 1, "external_access_admin_required")
    for broken in ("with blanks in it", "ünicode", "\x1b[31m", ENDLESS[:5000]):
        refused(asked.says("status", DEMOCRAI_TOKEN=broken), 1, "what is in DEMOCRAI_TOKEN is no token")
    refused(asked.says("status", DEMOCRAI_TOKEN=""), 2, "there is no token to ask the node with")
    file = tmp_path / "token"
    refused(asked.says("status", "--token-file", file), 1, f"there is no token in {file}")
    file.write_text(asked.environ["DEMOCRAI_TOKEN"])
    file.chmod(0o640)
    refused(asked.says("status", "--token-file", file), 1, f"others may read {file}", f"chmod 600 {file}")
    file.chmod(0o600)
    assert asked.says("status", "--token-file", file, DEMOCRAI_TOKEN="").status == 0
    file.write_bytes(b"\x00\xff\xfe")
    refused(asked.says("status", "--token-file", file), 1, f"what is in {file} is no token")
    refused(asked.says("status", "--token-file", tmp_path), 1, f"{tmp_path} cannot be read: Is a directory")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_a_state_folder_of_somebody_else():
    """Another user is told which file cannot be read, and what to use instead."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "state").mkdir(mode=0o700)
        (folder / "state" / "node.url").write_text("http://127.0.0.1:9")
        file = configured(folder)
        file.chmod(0o644)
        # The interpreter may lie where that user cannot read it: everything is imported before.
        program = (
            "import os, sys, encodings.idna; from democrai_sandbox.cli import entry, status, failing, output, signals"
        )
        program += "; from democrai_sandbox.cli import parsing; from democrai_sandbox.cli.arguments import status as _"
        program += "; from democrai_sandbox.host import whereabouts; from democrai_sandbox.host.config import load"
        program += "; load(sys.argv[2]); os.setgroups([]); os.setgid(65534); os.setuid(65534)"
        program += "; sys.exit(entry.main(['status', '--config', *sys.argv[2:]]))"
        for given, said in (
            ({"DEMOCRAI_TOKEN": "dsb_x"}, "node.url"),
            ({"DEMOCRAI_URL": "http://[::1]:9"}, "cli.token"),
        ):
            done = subprocess.run(
                [sys.executable, "-c", program, "-", str(file)],
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                env=environment(given),
            )
            assert (done.returncode, done.stdout) == (1, "")
            assert f"{folder}/state/{said} cannot be read: Permission denied" in done.stderr
            assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize("arguments", [("--help",), ("requests", "list", "--json"), ("audit", "export")], ids=" ".join)
def test_a_pipe_that_nobody_reads(asked, arguments):
    """Whoever has read enough ends it in silence, with 141."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as nobody:
        done = subprocess.run(
            [*COMMAND, *arguments],
            stdout=nobody,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
            env=environment(asked.environ),
        )
    assert (done.returncode, done.stderr) == (141, "")


def test_an_interrupted_export(tmp_path):
    """Ctrl-C in the middle of an export ends it with 130, and leaves no half a file; nor does a node that dies then."""
    file = tmp_path / "audit.jsonl"
    with Odd(EXPORT, keeps=True) as odd:
        arguments = ("audit", "export", "--url", odd.url, "--output", file)
        with in_terminal(arguments, NOWHERE) as (process, screen):
            assert odd.asked.wait(PATIENCE)
            screen.type(CTRL_C)
            screen.read_to_end()
            assert process.wait(PATIENCE) == 130
        assert screen.text.strip() in {"", "^C"}
        assert list(tmp_path.iterdir()) == []
    with Odd(EXPORT) as odd:
        done = within(("audit", "export", "--url", odd.url, "--output", file), NOWHERE)
        refused(done, 3, "it ended in the middle of an answer")
        assert list(tmp_path.iterdir()) == []
    size = 20 * 1024 * 1024
    with Odd(EXPORT + b"%x\r\n" % size + b"x" * size + b"\r\n") as odd:  # one line, and no end of it to be seen
        done = within(("audit", "export", "--url", odd.url, "--output", file), NOWHERE)
        refused(done, 3, "that is not HTTP as a node speaks it")
        assert list(tmp_path.iterdir()) == []


def test_an_interrupted_question(asked):
    """Ctrl-C instead of an answer changes nothing and ends with 130."""
    request = asked.wants("https://interrupted.example.org/today")
    with asked.in_terminal("requests", "approve", request, "--permanent") as (process, screen):
        screen.read_until("[y/N]")
        screen.type(CTRL_C)
        screen.read_to_end()
        assert process.wait(PATIENCE) == 130
    assert "Traceback" not in screen.text
    assert asked.data("requests", "show", request)["request"]["state"] == "pending"


def test_a_full_disk(asked):
    """Output that cannot be written is an error, not a success."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*COMMAND, "requests", "list", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
            env=environment(asked.environ),
        )
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
