"""Wrong command lines, tokens and nodes: one clear line, the documented status, no data, and no change."""

from __future__ import annotations

import errno
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
from democrai_sandbox.cli.connection import NodeClient
from democrai_sandbox.host.scopes import Scope
from tests.cli.goldens import CHOICES, COMMAND, CTRL_C, environment, golden, in_terminal, transcript, within
from tests.cli.odd_servers import ANSWERS, DRIPS, EXPORT, Odd, unknown_certificate
from tests.cli.test_entry import configured
from tests.console.serving import until
from tests.services import places

ID = "01zzzzzzzzzzzzzzzzzzzzzzzz"
ENDLESS = "x" * 1_000_000
NOWHERE = {"DEMOCRAI_URL": "http://127.0.0.1:9", "DEMOCRAI_TOKEN": "dsb_none"}
PATIENCE = 90


def refused(done, status, *values):
    """Expect one line with the error, at most one with the fix, and these values in them."""
    assert (done.status, done.out) == (status, "")
    lines = done.err.splitlines()
    assert 1 <= len(lines) <= 2, done.err[:2000]
    assert all(line.isprintable() and len(line) < 600 for line in lines), done.err[:2000]
    assert "Traceback" not in done.err
    for value in values:
        assert value in done.err
    return done.err


VERBS = ("requests", "approvals", "audit")
MISUSED = [
    *(((name, "--nonsense"), f"{name} --help") for name in (command.name for command in COMMANDS)),
    *(((name, "list\x1b[31m"), "'list\\x1b[31m'") for name in VERBS),
    *(((name, ENDLESS), "'xxxx") for name in VERBS),
    *(((name,), "verb") for name in VERBS),
    (("requests", "show"), "ID"),
    (("requests", "show", ""), "argument ID: ''"),
    (("requests", "show", "../status"), "argument ID: '../status'"),
    (("requests", "show", "\x1b[2J"), "argument ID: "),
    (("requests", "show", "\udcff"), "argument ID: "),
    (("requests", "show", ENDLESS), "argument ID: "),
    (("requests", "show", ID, ID), ID),
    (("requests", "approve", ID), "--session --permanent --for"),
    (("requests", "approve", "--session"), "ID"),
    (("requests", "approve", ID, "--session", "--permanent"), "argument --permanent: "),
    (("requests", "approve", ID, "--permanent", "--for", "2h"), "argument --for: "),
    *(
        (("requests", "approve", ID, "--for", span), "argument --for: ")
        for span in ("", "0h", "2", "h", "2 h", "2h30m", "99999w", "٢h", "\x1b", ENDLESS)
    ),
    (("requests", "approve", ID, f"{ID[:-1]}a", "--for", "2h", "--yes"), "command_misused: --for"),
    (("requests", "approve", ID, f"{ID[:-1]}a", "--permanent", "--target", "x", "--yes"), "command_misused: --for"),
    (("requests", "approve", *(f"{number:026}" for number in range(501)), "--session"), "500"),
    (("requests", "approve", ID, "--permanent", "--reason", "a\x07b"), "--reason"),
    (("requests", "deny", ID), "--reason"),
    (("requests", "deny", ID, "--reason", ""), "--reason"),
    (("requests", "deny", ID, "--reason", ENDLESS), "--reason"),
    (("requests", "list", "--state", "open"), "argument --state: invalid choice: 'open'"),
    (("requests", "list", "--stat", "pending"), "--stat"),
    (("requests", "list", "--grouped", "--state", "denied"), "--grouped"),
    *(
        (("requests", "list", "--limit", number), "argument -n/--limit: ")
        for number in ("0", "many", "1.5", "1e3", "٣", "9" * 5000, "")
    ),
    *(
        (("requests", "list", "--newer-than", moment), "argument --newer-than: ")
        for moment in ("yesterday", "2026-13-01", "", "999999999w", "0001-01-01T00:00:00+23:59")
    ),
    (("approvals", "revoke"), "command_misused: "),
    (("approvals", "revoke", ID, "--subject", "module:a"), "command_misused: "),
    (("approvals", "revoke", "a b"), "argument ID: 'a b'"),
    (("approvals", "list", "--scope", "forever"), "argument --scope: invalid choice: 'forever'"),
    (("audit", "tail", "-n", "0"), "argument -n: '0'"),
    (("audit", "tail", "--action", "nothing"), "argument --action: invalid choice: 'nothing'"),
    (("audit", "export", "--format", "xml"), "argument --format: invalid choice: 'xml'"),
    (("audit", "export", "--format", "csv", "--json"), "--json"),
    (("audit", "verify", "--database", "postgresql://me:secret@db/x"), "command_misused: "),
    (("audit", "verify", "--database", "--export", "x"), "argument --export: "),
    (("status", "now"), "now"),
    (("status", "--url", "ftp://127.0.0.1"), "'ftp://127.0.0.1'"),
    (("status", "--url", "http://"), "--url"),
    (("status", "--url", "http://127.0.0.1:99999"), "--url"),
    (("status", "--url", "http://me:secret@127.0.0.1"), "--url"),
    (("status", "--url", "http://[::1"), "--url"),
    (("status", "--url", "http://node.example.com"), "http://node.example.com"),
    (("status", "--url", "\x1b[31m"), "--url"),
]
"""What is typed, and the argument, value or code that the message has."""


def test_a_wrong_command_line():
    """Wrong arguments of any command end with 2 and a line that names them."""
    done = [within(arguments, NOWHERE) for arguments, _ in MISUSED]
    transcript("misused", zip((arguments for arguments, _ in MISUSED), done, strict=True), also=[CHOICES])
    wrong = []
    for one, (arguments, value) in zip(done, MISUSED, strict=True):
        try:
            refused(one, 2, value)
        except AssertionError:
            wrong.append(([argument[:80] for argument in arguments], one.status, one.out[:200], one.err[:800]))
    assert not wrong
    assert "secret" not in "".join(one.err for one in done)


def test_no_terminal_and_no_yes(asked):
    """A command that changes state does nothing without a terminal and --yes."""
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
        refused(asked.says(*arguments), 2, "command_misused: ", "--yes")
    assert asked.data("requests", "show", request)["request"]["state"] == "pending"
    assert approval in {one["id"] for one in asked.data("approvals", "list", "--text", "unasked.example")["items"]}


def test_something_else_answers():
    """Another program, or a node that dies during an answer, ends with 3 and its address."""
    steps = []
    for name, answer in ANSWERS.items():
        with Odd(answer) as odd:
            done = within(("requests", "list", "--url", odd.url), NOWHERE)
        refused(done, 3, "node_unreachable: ", odd.url, "--url")
        steps.append(((name,), done))
    transcript("something-else-answers", steps)


def test_nobody_answers_in_time():
    """A silent or endlessly slow server runs into the timeout of the whole answer."""
    steps = []
    with Odd(None, keeps=True) as odd, mock.patch.object(NodeClient, "patience", 0.3):
        steps.append((("silence",), within(("status", "--url", odd.url), NOWHERE)))
    for name, (begins, goes_on) in DRIPS.items():
        command = ("audit", "export") if name == "a line" else ("status",)
        with Odd(begins, drips=goes_on) as odd, mock.patch.object(NodeClient, "longest", 0.3):
            done = within((*command, "--url", odd.url), NOWHERE)
        steps.append(((name,), done._replace(out="")))
    for _, done in steps:
        refused(done, 3, "node_unreachable: ")
    transcript("nobody-answers-in-time", steps)


def test_a_pipe_in_the_place_of_the_token(tmp_path):
    """The command does not wait for a writer of the pipe."""
    (tmp_path / "state").mkdir()
    os.mkfifo(tmp_path / "state" / "cli.token", 0o600)
    file = configured(tmp_path)
    done = within(("status", "--config", file), {"DEMOCRAI_URL": NOWHERE["DEMOCRAI_URL"]})
    refused(done, 1, "command_refused: ", f"{tmp_path}/state/cli.token")


def test_a_list_without_end():
    """A page that links to itself or to empty pages, or a redirect with a page, is not accepted."""
    for page, status in (({"items": [], "next": "x"}, b"200 OK"), ({"items": [], "next": ""}, b"302 Found")):
        body = json.dumps(page).encode()
        head = b"HTTP/1.1 %s\r\nX-Request-Id: 1\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        with Odd(head + body) as odd:
            done = within(("approvals", "revoke", "--subject", "module:x", "--yes", "--url", odd.url), NOWHERE)
            refused(done, 3, odd.url)


def test_encryption_that_does_not_fit(tmp_path):
    """HTTP to TLS, TLS to HTTP and an untrusted certificate end with 3, and no token is sent."""
    with Odd(ANSWERS["html"], context=unknown_certificate(tmp_path)) as odd:
        refused(within(("status", "--url", odd.url), NOWHERE), 3, "node_unreachable: ", odd.url)
        secure = odd.url.replace("http:", "https:")
        refused(within(("status", "--url", secure), NOWHERE), 3, "node_unreachable: ", secure, "CERTIFICATE")
        assert not odd.asked.is_set()
    with Odd(ANSWERS["html"]) as odd:
        secure = odd.url.replace("http:", "https:")
        refused(within(("status", "--url", secure), NOWHERE), 3, "node_unreachable: ", secure)


def test_nobody_is_there(tmp_path):
    """If nothing listens, the command ends with 3 and names the origin of the address."""
    nobody = os.strerror(errno.ECONNREFUSED)
    refused(within(("status",), NOWHERE), 3, "http://127.0.0.1:9", nobody, "DEMOCRAI_URL")
    file = configured(tmp_path, server={"port": 9})
    done = within(("status", "--config", file), {"DEMOCRAI_TOKEN": "dsb_none"})
    refused(done, 3, nobody, "server.host", "server.port")
    refused(within(("status", "--url", "https://nowhere.invalid"), NOWHERE), 3, "https://nowhere.invalid")


def test_tokens_that_do_not_do(asked, tmp_path):
    """Expired, revoked, unknown or missing tokens, too narrow scopes, and owners without rights."""
    accounts, uma = asked.served.accounts, asked.served.person("uma")
    expired = accounts.create_token(asked.admin.id, "tests", tuple(Scope), timedelta(seconds=1))[1]
    kept, revoked = accounts.create_token(asked.admin.id, "tests", tuple(Scope), None)
    accounts.revoke_token(kept.id, actor="tests")
    until(lambda: asked.says("status", DEMOCRAI_TOKEN=expired).status == 1, "the end of the token")
    unknown = {
        refused(asked.says("status", DEMOCRAI_TOKEN=token), 1, "not_signed_in: ")
        for token in (expired, revoked, "dsb_unknown")
    }
    narrow = asked.served.token(asked.admin, Scope.REQUESTS_READ)
    said = [*unknown, refused(asked.says("status", DEMOCRAI_TOKEN=narrow), 1, "scope_missing: ", "status:read")]
    of_another = asked.served.token(uma)
    refused(asked.says("audit", "verify", DEMOCRAI_TOKEN=of_another), 1, "external_access_admin_required")
    broken = {
        refused(asked.says("status", DEMOCRAI_TOKEN=text), 1, "command_refused: ", "DEMOCRAI_TOKEN")
        for text in ("with blanks in it", "ünicode", "\x1b[31m", ENDLESS[:5000])
    }
    said += [*broken, refused(asked.says("status", DEMOCRAI_TOKEN=""), 2, "command_misused: ")]
    file = tmp_path / "token"
    said.append(refused(asked.says("status", "--token-file", file), 1, "command_refused: ", str(file)))
    file.write_text(asked.environ["DEMOCRAI_TOKEN"])
    file.chmod(0o640)
    said.append(refused(asked.says("status", "--token-file", file), 1, "command_refused: ", f"chmod 600 {file}"))
    file.chmod(0o600)
    assert asked.says("status", "--token-file", file, DEMOCRAI_TOKEN="").status == 0
    file.write_bytes(b"\x00\xff\xfe")
    said.append(refused(asked.says("status", "--token-file", file), 1, "command_refused: ", str(file)))
    directory = os.strerror(errno.EISDIR)
    said.append(refused(asked.says("status", "--token-file", tmp_path), 1, str(tmp_path), directory))
    assert (len(unknown), len(broken), len(set(said))) == (1, 1, 8)
    golden("tokens-refused", "".join(said), folder=tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs to become another user")
def test_a_state_folder_of_somebody_else():
    """Another user gets the name of the unreadable file, and the alternative."""
    with tempfile.TemporaryDirectory(dir=places.SHORT) as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "state").mkdir(mode=0o700)
        (folder / "state" / "node.url").write_text("http://127.0.0.1:9")
        file = configured(folder)
        file.chmod(0o644)
        # The interpreter may lie where that user cannot read it: everything is imported before.
        program = "import os, sys, encodings.idna; from democrai_sandbox.cli import entry, errors, output, explain"
        program += "; from democrai_sandbox.cli import parser; from democrai_sandbox.cli.arguments import host as _"
        program += "; from democrai_sandbox.host import directories; from democrai_sandbox.host.config import load"
        program += "; load(sys.argv[2]); os.setgroups([]); os.setgid(65534); os.setuid(65534)"
        program += "; sys.exit(entry.main(['status', '--config', *sys.argv[2:]]))"
        for given, kept in (
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
            assert f"{folder}/state/{kept} " in done.stderr
            assert os.strerror(errno.EACCES) in done.stderr
            assert len(done.stderr.splitlines()) == 2


@pytest.mark.parametrize("arguments", [("--help",), ("requests", "list", "--json"), ("audit", "export")], ids=" ".join)
def test_a_pipe_that_nobody_reads(asked, arguments):
    """A reader that closes the pipe ends the command silently with 141."""
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
    """Ctrl-C or a dying node during an export leaves no partial file."""
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
        middle = refused(done, 3, "node_unreachable: ", odd.url)
        assert list(tmp_path.iterdir()) == []
    size = 20 * 1024 * 1024
    with Odd(EXPORT + b"%x\r\n" % size + b"x" * size + b"\r\n") as odd:  # one line, and no end of it to be seen
        done = within(("audit", "export", "--url", odd.url, "--output", file), NOWHERE)
        endless = refused(done, 3, "node_unreachable: ", odd.url)
        assert list(tmp_path.iterdir()) == []
    golden("audit-export-cut.piped", middle + endless)


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
    """A failed write is an error."""
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
    assert os.strerror(errno.ENOSPC) in done.stderr
    assert "Traceback" not in done.stderr
