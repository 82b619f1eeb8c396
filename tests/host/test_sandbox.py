"""The whole sandbox: created files, served users, protection from its modules, and its end."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import sqlite3
import stat
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.services.forks import HostCase as Case
from tests.services.golden import sentence
from tests.services.rows import rows

EMBEDDED = os.path.join(os.path.dirname(__file__), "embedded.py")
CURIOUS = """
import os

@sdk.action("who")
async def who():
    return list(sdk.request())

@sdk.action("read")
def read(path):
    with open(path, "rb") as file:
        return len(file.read())

@sdk.action("keep")
def keep(text):
    place = sdk.data_dir() / "kept"
    place.write_text(text)
    return place.read_text()
"""
ASKING = """
@sdk.action("ask")
def ask():
    wanted = {"resource_type": "network", "operation": "receive", "target": "https://api.example.com"}
    return sdk.access.check_external_access(**wanted).request_id
"""


@pytest.fixture
def case(tmp_path):
    """A private folder in which a body runs in a separate process."""
    return Case(tmp_path)


# ---- the life of one sandbox, in one process


@pytest.fixture(scope="module")
def life(tmp_path_factory):
    """Facts from a process that creates a sandbox, starts it, stops it, and tries forbidden operations."""
    return Case(tmp_path_factory.mktemp("life")).run(from_start_to_end)


def from_start_to_end(world):
    import asyncio

    app = world.load(EMBEDDED)["Embedded"](world.base)
    app.module("demo", CURIOUS)
    app.module("broken", "raise RuntimeError('no')")
    told = {"half": half_of_its_people(app)}

    async def story(app):
        served = await what_it_serves(app)
        second = refusal_of(app, state_dir=str(app.base / "other"))
        again = await second_start(app)
        kept = await app.action("demo", "keep", text="still mine")
        await app.sandbox.stop()
        await app.sandbox.stop()
        return served | {
            "second": second,
            "second made": (app.base / "other").exists(),
            "started while it runs": again,
            "kept after that": kept,
            "started after two stops": app.sandbox.is_started,
        }

    told |= app.play(story)
    told["ended"] = [app.sandbox.is_started, app.sandbox.closing.is_set()]
    told["started when it was stopped"] = asyncio.run(second_start(app))
    return told


async def what_it_serves(app):
    sandbox, state = app.sandbox, app.base / "state"
    return {
        "who": await app.action("demo", "who"),
        "kept": await app.action("demo", "keep", text="mine"),
        "broken": [found.name for found in sandbox.runtime.extensions if found.is_broken],
        "kernel": {control.name: control.state for control in sandbox.kernel.status().controls},
        "accounts": sandbox.accounts,
        "stranger": app.caller("nobody"),
        "started": sandbox.is_started,
        "shut": {
            name: (await app.action("demo", "read", path=str(state / name)))[0]
            for name in ("sandbox.db", "sandbox.db-wal", "sandbox.db.lock", "keys")
        },
        "modes": [oct(stat.S_IMODE(os.stat(state / name).st_mode)) for name in (".", "data", "sandbox.db", "keys")],
    }


def refusal_of(app, authenticator=None, **config):
    from democrai_sandbox.host import Sandbox
    from democrai_sandbox.policy import SandboxError

    try:
        Sandbox.from_config(config, environ={}, authenticator=authenticator)
    except SandboxError as error:
        return parts_of(error)


def half_of_its_people(app):
    state = app.base / "half"
    return {**refusal_of(app, authenticator=app, state_dir=str(state)), "made": state.exists()}


async def second_start(app):
    from democrai_sandbox.errors import HostRefused

    try:
        await app.sandbox.start()
    except HostRefused as error:
        return parts_of(error)


def parts_of(error):
    return {"type": type(error).__name__, "code": error.code, "what": error.what, "fix": error.fix}


def test_a_sandbox_of_defaults_serves_and_ends(life):
    """From a folder alone: modules run for the application's users, and cannot access the host's files."""
    assert life["who"] == ["uma", "north", "monday", "", "", ""]
    assert life["kept"] == "mine"
    assert life["broken"] == ["broken"]
    assert {name for name, state in life["kernel"].items() if state != "off"} == {"spawn_server"}
    assert life["kernel"]["spawn_server"] == "active"
    assert life["accounts"] is None
    assert life["stranger"] is None
    assert life["started"] is True
    assert set(life["shut"].values()) == {"FilesystemDenied"}
    assert life["modes"] == ["0o700", "0o700", "0o600", "0o600"]
    assert life["ended"] == [False, True]


def test_half_of_the_applications_own_people_is_refused(life):
    """An authenticator without a role lookup is an error before anything is created."""
    assert (life["half"]["code"], life["half"]["made"]) == ("host_refused", False)
    sentence("half of the people", f"{life['half']['what']}\n{life['half']['fix']}")


def test_one_sandbox_per_process(life):
    """A second one is refused with a reason; the first continues, and may be stopped twice."""
    assert life["second"]["type"] == "HostRefused"
    assert life["second made"] is False
    assert life["kept after that"] == "still mine"
    assert life["started after two stops"] is False
    sentence("second sandbox", f"{life['second']['what']}\n{life['second']['fix']}")


def test_a_sandbox_starts_once(life):
    """A second start, of a running or stopped one, is refused, and changes nothing."""
    running, stopped = life["started while it runs"], life["started when it was stopped"]
    assert running["code"] == stopped["code"] == "host_refused"
    assert running["what"] != stopped["what"]
    sentence("started again", "\n".join(f"{one['what']}; {one['fix']}" for one in (running, stopped)))


# ---- others


class Other:
    """A separate process, which creates a sandbox on command."""

    def __init__(self, state):
        self._order, give = os.pipe()
        take, self._answer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(give)
            os.read(self._order, 1)
            answer = refusal_of(None, state_dir=state)
            os.write(self._answer, json.dumps(answer).encode())
            os._exit(0)
        os.close(self._order)
        os.close(self._answer)
        self._give, self._take = give, take

    def answer(self):
        """Return the refusal; None without one."""
        os.write(self._give, b"x")
        os.close(self._give)
        with open(self._take) as answer:
            found = json.load(answer)
        os.waitpid(self._pid, 0)
        return found


def start_twice(world):
    first, second = (Other(os.path.join(world.base, "app", "state")) for _ in range(2))
    app = world.load(EMBEDDED)["Embedded"](world.base)
    app.make()
    taken = first.answer()
    app.sandbox.close()
    app.sandbox.close()
    return {"pid": os.getpid(), "taken": taken, "free": second.answer()}


def test_sqlite_is_served_by_one_process(case):
    """A second one is refused and gets the owner's process id; it starts after the first has released the lock."""
    told = case.run(start_twice)
    assert told["taken"]["code"] == "host_state_unusable"
    assert f" {told['pid']} (" in told["taken"]["what"]
    text = f"{told['taken']['what']}\n{told['taken']['fix']}"
    sentence("served by another process", text, folder=case.base, also=[(r"\b\d+ \(.*\)", "1 (program)")])
    assert told["free"] is None


def test_a_session_that_ends_takes_its_approvals_along(case):
    """With accounts in the database, ending a user's session ends its approvals."""
    told = case.run(sessions)
    assert told == {"before": 1, "after": 0}


def sessions(world):
    import asyncio

    from democrai_sandbox.host import Sandbox, Visit
    from democrai_sandbox.runtime.access_environment import serving

    app = world.load(EMBEDDED)["Embedded"](world.base)
    app.module("demo", ASKING)
    state = os.path.join(world.base, "state")
    sandbox = Sandbox.from_config({"state_dir": state, "modules_path": str(app.modules)}, environ={})
    accounts, administration = sandbox.accounts, sandbox.access.administration

    def sign_in():
        first = accounts.first_administrator()
        signed = accounts.sign_in(first.name, first.password, Visit({}, {}, "127.0.0.1", "/login"))
        cookies = {accounts.cookie_name: signed.token}
        return signed.session.id, sandbox.caller(accounts.identify(Visit({}, cookies, "127.0.0.1", "/")))

    async def story():
        async with sandbox:
            session, caller = await asyncio.to_thread(sign_in)
            request = await sandbox.runtime.modules.action("demo", "ask", {}, caller)
            with serving(caller):
                administration.approve_for_session(request)
                before = len(administration.approvals().items)
                await asyncio.to_thread(accounts.end_session, session, actor="tests")
                return {"before": before, "after": len(administration.approvals().items)}

    return asyncio.run(story())


# ---- refused starts


@pytest.fixture(scope="module")
def starts(tmp_path_factory, prepared_file):
    """Folders in which a start is refused, with the message of each, all in one process."""
    base = tmp_path_factory.mktemp("starts")
    folders = {name: base / name for name in PREPARED if not (name == "owned" and os.geteuid() != 0)}
    files = []
    for name, folder in folders.items():
        folder.mkdir()
        config = PREPARED[name](folder / "state", prepared_file) or f"state_dir: {folder}/state\n"
        (folder / "config.yaml").write_text(config)
        (folder / "config.yaml").chmod(0o600)
        files.append(str(folder / "config.yaml"))
    told = Case(base).run(told_at_the_start, files)
    return {name: Start(folder / "state", **one) for (name, folder), one in zip(folders.items(), told, strict=True)}


@dataclass
class Start:
    """Refused start."""

    state: Path
    code: str
    text: str

    @property
    def database(self):
        return self.state / "sandbox.db"

    def says(self, name):
        """Compare one clear message, without a traceback, with the golden entry."""
        sentence(name, self.text, folder=self.state.parent, also=[(r"\b0\d{3}\b(?!\))", "(the latest)")])


def told_at_the_start(world):
    from democrai_sandbox.errors import SandboxError
    from democrai_sandbox.host import Sandbox

    told = []
    for file in world.args[0]:
        try:
            Sandbox.from_config(file)
        except SandboxError as error:
            told.append({"code": error.code, "text": error.diagnostics()})
    return told


def a_file(state, prepared):
    state.write_text("mine")


def owned(state, prepared):
    state.mkdir()
    state.chmod(0o755)
    os.chown(state, 12345, 12345)


def open_to_all(state, prepared):
    state.mkdir()
    state.chmod(0o777)


def impossible(state, prepared):
    return "state_dir: /proc/nothing\n"


def newer_database(state, prepared):
    no_database(state, prepared)
    shutil.copy(prepared, state / "sandbox.db")
    with sqlite3.connect(state / "sandbox.db") as database:
        database.execute("UPDATE access_schema SET version_num = '9999'")
    database.close()
    shutil.copy(state / "sandbox.db", state.parent / "before.db")


def no_database(state, prepared):
    state.mkdir(mode=0o700)
    (state / "sandbox.db").write_text("not a database " * 100)


def absent_server(state, prepared):
    return f"state_dir: {state}\ndatabase: {{url: 'postgresql://app:hunter2@127.0.0.1:9/sandbox'}}\n"


def keys(held, mode=0o600):
    def prepare(state, prepared):
        state.mkdir(mode=0o700)
        (state / "keys").write_text(held)
        (state / "keys").chmod(mode)

    return prepare


PREPARED = {
    "file": a_file,
    "owned": owned,
    "open": open_to_all,
    "impossible": impossible,
    "newer": newer_database,
    "none": no_database,
    "absent": absent_server,
    "readable keys": keys("", 0o644),
    "empty keys": keys(""),
    "wrong keys": keys("nonsense"),
}


def test_a_file_where_the_folder_should_be(starts):
    """It is named, and left unchanged."""
    start = starts["file"]
    assert start.code == "host_state_unusable"
    assert str(start.state) in start.text
    assert start.state.read_text() == "mine"
    start.says("file in place of the folder")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's folder")
def test_a_folder_of_somebody_else(starts):
    """A state folder that another user may write to is refused, with the command that fixes it."""
    start = starts["owned"]
    assert start.code == "host_state_unusable"
    assert "12345" in start.text
    assert f"chown 0 {start.state} && chmod 700" in start.text
    assert list(start.state.iterdir()) == []
    start.says("folder of somebody else")


def test_a_folder_that_everybody_may_write_to(starts):
    """So is one that is open to all."""
    assert starts["open"].code == "host_state_unusable"
    assert " 0777" in starts["open"].text
    assert str(starts["open"].state) in starts["open"].text


def test_a_folder_that_cannot_be_made(starts):
    """A folder below a file system without folders gives the reason."""
    start = starts["impossible"]
    assert start.code == "host_state_unusable"
    assert "/proc/nothing" in start.text
    assert os.strerror(errno.ENOENT) in start.text
    assert f"({os.geteuid()})" in start.text


def test_a_database_of_a_newer_version(starts):
    """It is named with the fix, and its content stays unchanged."""
    start = starts["newer"]
    assert start.code == "external_access_schema_outdated"
    assert " 9999" in start.text
    assert start.database.read_bytes() == (start.state.parent / "before.db").read_bytes()
    start.says("newer database")


def test_a_database_that_is_none(starts):
    """A file that is not a database is named and left unchanged."""
    start = starts["none"]
    assert start.code == "host_state_unusable"
    assert str(start.database) in start.text
    assert start.database.read_text() == "not a database " * 100
    start.says("no database")


def test_a_database_server_that_is_not_there(starts):
    """It is named without its password."""
    assert starts["absent"].code == "host_database_unreachable"
    assert "postgresql://app:***@127.0.0.1:9/sandbox" in starts["absent"].text
    assert "hunter2" not in starts["absent"].text


def test_a_key_file_that_others_may_read(starts):
    """It is refused with the mode it should have."""
    start = starts["readable keys"]
    assert start.code == "host_state_unusable"
    assert str(start.state / "keys") in start.text
    assert re.findall(r"\b0\d{3}\b", start.text) == ["0644", "0600"]


@rows(("name", "held"), [("empty keys", ""), ("wrong keys", "nonsense")])
def test_a_key_file_that_is_none(starts, name, held):
    """It is named with the fix, and not overwritten."""
    start = starts[name]
    assert start.code == "host_state_unusable"
    assert str(start.state / "keys") in start.text
    assert (start.state / "keys").read_text() == held
    start.says(name)
