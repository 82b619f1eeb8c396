"""``democrai-sandbox admin``: people and tokens, without a node and beside one."""

from __future__ import annotations

import os
import re
import stat
from contextlib import closing

import pytest

from democrai_sandbox.access.store import open_store
from tests.cli.goldens import golden, in_terminal
from tests.cli.local import configured, says
from tests.console.serving import serving

PASSWORD = "correct horse battery"
NOBODY = 65534


@pytest.fixture
def config(tmp_path):
    return configured(tmp_path)


def actors(config):
    """Whom the audit names, by what was done."""
    with closing(open_store(f"sqlite:///{config.parent}/state/sandbox.db")) as store:
        return {record.action.value: record.actor for record in store.audit_rows()}


def test_people(config):
    """Added with a password from standard input, listed, given another one, shut out and let in; all in the audit."""
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


@pytest.mark.parametrize(
    ("words", "stdin", "status", "said"),
    [
        (("create", "Ada Lovelace"), PASSWORD, 1, "did you mean 'ada-lovelace'?"),
        (("create", "x" * 100_000), PASSWORD, 1, "expected 1 to 64"),
        (("create", "system"), PASSWORD, 1, "the audit uses this name"),
        (("create", "uma"), "", 2, "no password was given"),
        (("create", "uma"), "short\n", 1, "shorter than 12"),
        (("create", "uma", "--role", "boss"), PASSWORD, 2, "invalid choice"),
        (("create", "ada"), PASSWORD, 4, "there is somebody called ada already"),
        (("create",), PASSWORD, 2, "required"),
        (("passwd", "who\x1b[2J"), PASSWORD, 1, "nobody has this name"),
        (("disable", "ada", "--yes"), "", 4, "is the last administrator"),
        (("token", "create", "--user", "who"), "", 1, "nobody has this name"),
        (("token", "create", "--scope", "requests:red"), "", 1, "did you mean 'requests:read'?"),
        (("token", "create", "--days", "-1"), "", 2, "a number from 0"),
        (("token", "create", "--days", "9" * 30), "", 2, "a number from 0"),
        (("token", "create", "--label", ""), "", 1, "expected a text"),
        (("token", "revoke", "nonsense", "--yes"), "", 1, "there is no such token"),
    ],
)
def test_what_is_refused(house, words, stdin, status, said):
    """One clear line, the documented status, nothing on standard output, nothing changed."""
    before = actors(house)
    found = says("admin", *words, "--config", house, stdin=stdin)
    assert (found.status, found.out) == (status, "")
    assert said in found.err
    assert "\x1b" not in found.err
    assert actors(house) == before


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """A configuration with one administrator, for what changes nothing."""
    config = configured(tmp_path_factory.mktemp("house"))
    says("admin", "create", "ada", "--role", "super", "--config", config, stdin=f"{PASSWORD}\n")
    return config


def test_a_password_is_typed_twice_and_never_shown(config):
    """In a terminal it is asked for; two that differ are refused, and nothing is made."""
    words = ["admin", "create", "ada", "--role", "super", "--config", config]
    status, text = typed(words, PASSWORD, "something else")
    assert (status, "the two are not the same" in text) == (1, True)
    assert not (config.parent / "state" / "sandbox.db").exists()
    status, text = typed(words, PASSWORD, PASSWORD)
    assert (status, PASSWORD in text, text.splitlines()[-1]) == (0, False, "added ada")


def typed(words, first, second):
    """Run a command in a terminal, and type a password at each of its questions."""
    with in_terminal(words) as (process, screen):
        screen.read_until("password for ada: ")
        screen.type(f"{first}\n")
        screen.read_until("the same again: ")
        screen.type(f"{second}\n")
        screen.read_to_end()
        return process.wait(60), screen.text


def test_a_state_folder_of_somebody_else(config):
    """Nothing is made in it, and its owner is named."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    state = config.parent / "state"
    state.mkdir(mode=0o700)
    os.chown(state, NOBODY, NOBODY)
    found = says("admin", "create", "ada", "--config", config, stdin=f"{PASSWORD}\n")
    assert (found.status, found.out, list(state.iterdir())) == (1, "", [])
    assert f"owner {NOBODY}" in found.err


def test_whom_a_token_is_for(config):
    """The only one who may decide, by default; with nobody or several, that is asked for. A dead console is said."""
    where = ("--config", config)
    first = says("admin", "create", "eve", "--generate", *where)
    assert "there is nobody yet who may decide" in first.err
    assert says("admin", "token", "create", *where).status == 1
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
    assert (said.status, "console.enabled is off" in said.err) == (0, True)


def test_beside_a_node(tmp_path):
    """What is made while a node serves is good there at once: people, and a token that the other commands find."""
    with serving(tmp_path, extensions=False) as served:
        where = ("--config", served.file)
        token = says("admin", "token", "create", "--save", *where)
        file = tmp_path / "state" / "cli.token"
        assert token.out == f"a token for admin is in {file}\n"
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
