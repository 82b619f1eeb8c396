"""``democrai-sandbox admin``: users and tokens, without a node and beside one."""

from __future__ import annotations

import os
import re
import stat
from contextlib import closing

import pytest

from democrai_sandbox.access.store import open_store
from tests.cli.goldens import CHOICES, code_of, golden, in_terminal, transcript
from tests.cli.local import configured, says
from tests.console.serving import CHEAP, serving

PASSWORD = "correct horse battery"
NOBODY = 65534


@pytest.fixture(autouse=True)
def cheap(monkeypatch):
    """Make password hashing cheap in this process; commands in a separate process pay the full price."""
    monkeypatch.setattr("democrai_sandbox.host.accounts.passwords.Cost", lambda: CHEAP)


@pytest.fixture
def config(tmp_path):
    return configured(tmp_path)


def actors(config):
    """The users in the audit log, by action."""
    with closing(open_store(f"sqlite:///{config.parent}/state/sandbox.db")) as store:
        return {record.action.value: record.actor for record in store.audit_rows()}


def test_people(config):
    """A user is added, listed, gets a new password, is disabled and enabled; the audit log has all steps."""
    where = ("--config", config)
    assert says("admin", "list", *where).status == 1
    added = says("admin", "create", "ada", "--role", "super", *where, stdin=f"{PASSWORD}\n")
    assert (added.status, added.out, added.err) == (0, "added ada\n", "")
    made = says("admin", "create", "bob", "--generate", *where)
    assert (made.status, made.err, len(made.out)) == (0, "added bob\n", 24)
    golden("admin-list.piped", _without_days(says("admin", "list", *where).out))
    assert says("admin", "passwd", "bob", *where, stdin=f"{PASSWORD}\n").status == 0
    assert says("admin", "disable", "bob", *where).status == 2
    assert says("admin", "disable", "bob", "--yes", *where).status == 0
    data = says("admin", "list", "--json", *where).data
    assert [(each["name"], each["may_decide"], each["disabled"]) for each in data["people"]] == [
        ("ada", True, False),
        ("bob", False, True),
    ]
    assert says("admin", "enable", "bob", "--json", *where).data["person"]["disabled"] is False
    found = actors(config)
    assert {"account_added", "account_changed", "account_password_changed"} <= set(found)
    assert all(actor.startswith("cli:") for actor in found.values())


def _without_days(text):
    return re.sub(r"20\d\d-\d\d-\d\d", "2026-01-02", text)


REFUSED = [
    (("create", "Ada Lovelace"), PASSWORD, 1, "ada-lovelace"),
    (("create", "x" * 100_000), PASSWORD, 1, "64"),
    (("create", "system"), PASSWORD, 1, "/name: "),
    (("create", "uma"), "", 2, "command_misused: "),
    (("create", "uma"), "short\n", 1, "12"),
    (("create", "uma", "--role", "boss"), PASSWORD, 2, "'boss'"),
    (("create", "ada"), PASSWORD, 4, "ada"),
    (("create",), PASSWORD, 2, "NAME"),
    (("passwd", "who\x1b[2J"), PASSWORD, 1, "account_unknown: "),
    (("disable", "ada", "--yes"), "", 4, "ada"),
    (("token", "create", "--user", "who"), "", 1, "account_unknown: "),
    (("token", "create", "--scope", "requests:red"), "", 1, "'requests:read'"),
    (("token", "create", "--days", "-1"), "", 2, "--days"),
    (("token", "create", "--days", "9" * 30), "", 2, "--days"),
    (("token", "create", "--label", ""), "", 1, "/label: "),
    (("token", "revoke", "nonsense", "--yes"), "", 1, "command_refused: "),
]
"""What is typed, the password, the status, and a value that the message has."""


def test_what_is_refused(config):
    """Wrong input gives one clear line and the documented status, and changes nothing."""
    says("admin", "create", "ada", "--role", "super", "--config", config, stdin=f"{PASSWORD}\n")
    before = actors(config)
    done = [says("admin", *words, "--config", config, stdin=stdin) for words, stdin, *_ in REFUSED]
    transcript("admin-refused", zip((words for words, *_ in REFUSED), done, strict=True), config.parent, also=[CHOICES])
    assert [one.status for one in done] == [status for *_, status, _ in REFUSED]
    assert {one.out for one in done} == {""}
    assert [value for one, (*_, value) in zip(done, REFUSED, strict=True) if value not in one.err] == []
    assert "\x1b" not in "".join(one.err for one in done)
    assert actors(config) == before


def test_a_password_is_typed_twice_and_never_shown(config):
    """A terminal asks twice; different passwords are refused, and no user is created."""
    words = ["admin", "create", "ada", "--role", "super", "--config", config]
    status, text = typed(words, PASSWORD, "something else")
    golden("admin-create-differ.terminal", text)
    assert (status, code_of(text.splitlines()[-1])) == (1, "command_refused")
    assert not (config.parent / "state" / "sandbox.db").exists()
    status, text = typed(words, PASSWORD, PASSWORD)
    assert (status, PASSWORD in text, text.splitlines()[-1]) == (0, False, "added ada")


def typed(words, first, second):
    """Run a command in a terminal, and type a password at each question."""
    with in_terminal(words) as (process, screen):
        screen.read_until("password for ada: ")
        screen.type(f"{first}\n")
        screen.read_until("repeat the password: ")
        screen.type(f"{second}\n")
        screen.read_to_end()
        return process.wait(60), screen.text


def test_a_state_folder_of_somebody_else(config):
    """Nothing is created in it, and the error names its owner."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    state = config.parent / "state"
    state.mkdir(mode=0o700)
    os.chown(state, NOBODY, NOBODY)
    found = says("admin", "create", "ada", "--config", config, stdin=f"{PASSWORD}\n")
    assert (found.status, found.out, list(state.iterdir())) == (1, "", [])
    assert f"owner {NOBODY}" in found.err


def test_whom_a_token_is_for(config):
    """The default owner is the only user who may decide; with none or several, --user is required."""
    where = ("--config", config)
    first = says("admin", "create", "eve", "--generate", *where)
    nobody = says("admin", "token", "create", *where)
    assert (first.status, nobody.status) == (0, 1)
    for name in ("ada", "bob"):
        says("admin", "create", name, "--role", "super", "--generate", *where)
    several = says("admin", "token", "create", *where)
    assert (several.status, "ada, bob" in several.err) == (2, True)
    made = says("admin", "token", "create", "--user", "bob", "--days", "0", "--scope", "status:read", "--json", *where)
    assert (made.data["token"]["user"], made.data["token"]["expires_at"]) == ("bob", None)
    assert made.data["token"]["scopes"] == ["status:read"]
    assert made.data["secret"].startswith("dsb_")
    off = configured(config.parent, console={"enabled": False})
    said = says("admin", "create", "uma", "--generate", "--config", off)
    assert (said.status, "console.enabled" in said.err) == (0, True)
    golden("admin-hints.piped", first.err + nobody.err + several.err + said.err, folder=config.parent)


def test_beside_a_node(tmp_path):
    """Users and tokens created while a node runs are valid there at once."""
    with serving(tmp_path, extensions=False) as served:
        where = ("--config", served.file)
        token = says("admin", "token", "create", "--save", *where)
        file = tmp_path / "state" / "cli.token"
        golden("admin-token-saved.piped", token.out, folder=tmp_path)
        assert "admin" in token.out and str(file) in token.out
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert says("status", *where).status == 0
        assert says("admin", "create", "uma", *where, stdin=f"{PASSWORD}\n").status == 0
        assert [person.id for person in served.accounts.people()] == ["admin", "uma"]
        listed = says("admin", "token", "list", "--json", *where).data["tokens"]
        assert [(each["user"], each["revoked"], each["last_used"] is None) for each in listed] == [
            ("admin", False, False)
        ]
        assert says("admin", "token", "revoke", listed[0]["id"], *where).status == 2
        assert says("admin", "token", "revoke", listed[0]["id"], "--yes", *where).status == 0
        assert says("status", *where).status == 1
