"""The sandbox as a whole: what it makes, whom it serves, what it keeps from its modules, and how it ends."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import textwrap

import pytest

from tests.services.forks import HostCase as Case

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
    """A private world in which a body runs in a process of its own."""
    return Case(tmp_path)


def whole(world):
    app = world.load(EMBEDDED)["Embedded"](world.base)
    app.module("demo", CURIOUS)
    app.module("broken", "raise RuntimeError('no')")
    state = app.base / "state"

    async def story(app):
        sandbox = app.sandbox
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

    told = app.play(story)
    told["ended"] = [app.sandbox.is_started, app.sandbox.closing.is_set()]
    return told


def test_a_sandbox_of_defaults_serves_and_ends(case):
    """From a folder alone: modules run for the application's people, and the host's files are kept from them."""
    told = case.run(whole)
    assert told["who"] == ["uma", "north", "monday", "", "", ""]
    assert told["kept"] == "mine"
    assert told["broken"] == ["broken"]
    assert set(told["kernel"].values()) == {"off"}
    assert told["accounts"] is None
    assert told["stranger"] is None
    assert told["started"] is True
    assert set(told["shut"].values()) == {"FilesystemDenied"}
    assert told["modes"] == ["0o700", "0o700", "0o600", "0o600"]
    assert told["ended"] == [False, True]


def start_twice(world):
    app = world.load(EMBEDDED)["Embedded"](world.base)
    app.make()

    program = (
        "import sys\nfrom democrai_sandbox.host import Sandbox\nfrom democrai_sandbox.errors import StateUnusable\n"
        "try:\n    Sandbox.from_config({'state_dir': sys.argv[1]}, environ={})\n"
        "except StateUnusable as error:\n    print(error.diagnostics())\nelse:\n    print('it started')"
    )
    command = [sys.executable, "-c", program, str(app.base / "state")]
    taken = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    app.sandbox.close()
    app.sandbox.close()
    free = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {"pid": os.getpid(), "taken": taken, "free": free}


def test_sqlite_is_served_by_one_process(case):
    """A second one is refused and told who has it; when the first has let go, it gets in."""
    told = case.run(start_twice)
    assert f"is being served by process {told['pid']} (" in told["taken"]
    assert "to fix it: stop that one" in told["taken"]
    assert told["free"] == "it started\n"


def test_half_of_the_applications_own_people_is_refused(case):
    """An authenticator without a role lookup is an error before anything is made."""
    told = case.run(half)
    assert told == ["an authenticator and a role lookup belong together", False]


def test_one_sandbox_per_process(case):
    """A second one is refused with a reason; the first goes on, and may be stopped twice."""
    told = case.run(second)
    assert told["refused"][0] == "HostRefused"
    assert "there is a sandbox in this process already" in told["refused"][1]
    assert told["made"] is False
    assert told["kept"] == "mine"
    assert told["ready"] is False


def second(world):
    from democrai_sandbox.host import Sandbox
    from democrai_sandbox.policy import SandboxError

    app = world.load(EMBEDDED)["Embedded"](world.base)
    app.module("demo", CURIOUS)

    async def story(app):
        try:
            Sandbox.from_config({"state_dir": str(app.base / "other")}, environ={})
        except SandboxError as error:
            refused = [type(error).__name__, str(error)]
        else:
            refused = ["", ""]
        kept = await app.action("demo", "keep", text="mine")
        await app.sandbox.stop()
        await app.sandbox.stop()
        made = (app.base / "other").exists()
        return {"refused": refused, "made": made, "kept": kept, "ready": app.sandbox.is_started}

    return app.play(story)


def test_a_sandbox_starts_once(case):
    """A second start, of one that runs or of one that was stopped, is refused, and changes nothing."""
    told = case.run(again)
    assert told == [
        "this sandbox is started already; share the one that runs",
        "mine",
        "this sandbox was stopped, and does not start again; start another process",
    ]


def again(world):
    import asyncio

    from democrai_sandbox.errors import HostRefused

    app = world.load(EMBEDDED)["Embedded"](world.base)
    app.module("demo", CURIOUS)

    async def start():
        try:
            await app.sandbox.start()
        except HostRefused as error:
            return f"{error.what}; {error.fix}"

    async def story(app):
        return [await start(), await app.action("demo", "keep", text="mine")]

    return [*app.play(story), asyncio.run(start())]


def half(world):
    from democrai_sandbox.errors import HostRefused
    from democrai_sandbox.host import Sandbox

    app = world.load(EMBEDDED)["Embedded"](world.base)
    state = app.base / "state"
    try:
        Sandbox.from_config({"state_dir": str(state)}, environ={}, authenticator=app)
    except HostRefused as error:
        return [error.what, state.exists()]


def test_a_session_that_ends_takes_its_approvals_along(case):
    """With accounts in the database, ending somebody's session ends what was approved for it."""
    told = case.run(sessions)
    assert told == {"before": 1, "after": 0}


def sessions(world):
    import asyncio

    from democrai_sandbox.host import Sandbox, Visit
    from democrai_sandbox.runtime.surroundings import serving

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


# ---- what is refused at the start


def refused(folder, config=""):
    """Start with a configuration; return what is said about it, one clear message and no traceback."""
    file = folder / "config.yaml"
    file.write_text(textwrap.dedent(config) or f"state_dir: {folder}/state\n")
    file.chmod(0o600)
    return Case(folder).run(told_at_the_start, str(file))


def told_at_the_start(world):
    from democrai_sandbox.errors import SandboxError
    from democrai_sandbox.host import Sandbox

    try:
        Sandbox.from_config(world.args[0])
    except SandboxError as error:
        return error.diagnostics()
    return ""


def test_a_file_where_the_folder_should_be(tmp_path):
    """It is named, and left as it is."""
    (tmp_path / "state").write_text("mine")
    said = refused(tmp_path)
    assert f"state_dir: {tmp_path}/state is not a folder" in said
    assert (tmp_path / "state").read_text() == "mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's folder")
def test_a_folder_of_somebody_else(tmp_path):
    """A state folder that another user may write to is refused, with the command that mends it."""
    (tmp_path / "state").mkdir()
    os.chown(tmp_path / "state", 12345, 12345)
    said = refused(tmp_path)
    assert f"others may write to {tmp_path}/state (owner 12345" in said
    assert f"chown 0 {tmp_path}/state && chmod 700" in said
    assert list((tmp_path / "state").iterdir()) == []


def test_a_folder_that_everybody_may_write_to(tmp_path):
    """So is one that is open to all."""
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o777)
    assert "mode 0777" in refused(tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path):
    """One below a file system that takes none says why."""
    said = refused(tmp_path, "state_dir: /proc/nothing\n")
    assert "state_dir: /proc/nothing cannot be made: No such file or directory" in said


def test_a_database_of_a_newer_version(tmp_path):
    """It is named with what to do, and nothing in it is changed."""
    import sqlite3

    refused(tmp_path)
    with sqlite3.connect(tmp_path / "state" / "sandbox.db") as database:
        database.execute("UPDATE access_schema SET version_num = '9999'")
    database.close()
    before = (tmp_path / "state" / "sandbox.db").read_bytes()
    said = refused(tmp_path)
    assert "has the schema 9999" in said
    assert "install a newer one" in said
    assert (tmp_path / "state" / "sandbox.db").read_bytes() == before


def test_a_database_that_is_none(tmp_path):
    """A file that is no database is named; it is left alone."""
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "sandbox.db").write_text("not a database " * 100)
    said = refused(tmp_path)
    assert "sandbox.db cannot be used: " in said
    assert "it is no SQLite database" in said
    assert (tmp_path / "state" / "sandbox.db").read_text() == "not a database " * 100


def test_a_database_server_that_is_not_there(tmp_path):
    """It is named without its password."""
    config = f"state_dir: {tmp_path}/state\ndatabase: {{url: 'postgresql://app:hunter2@127.0.0.1:9/sandbox'}}\n"
    said = refused(tmp_path, config)
    assert "the database postgresql://app:***@127.0.0.1:9/sandbox cannot be used: " in said
    assert "hunter2" not in said


def test_a_key_file_that_others_may_read(tmp_path):
    """It is refused with the mode it should have."""
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "keys").write_text("")
    (tmp_path / "state" / "keys").chmod(0o644)
    assert "keys: others may use it (mode 0644); expected 0600" in refused(tmp_path)


@pytest.mark.parametrize(
    ("held", "why"), [("", "there is no key in it"), ("nonsense", "line 1: expected id:base64")], ids=["empty", "wrong"]
)
def test_a_key_file_that_is_none(tmp_path, held, why):
    """It is named with what to do, and not written over."""
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "keys").write_text(held)
    (tmp_path / "state" / "keys").chmod(0o600)
    said = refused(tmp_path)
    assert said.startswith("host_state_unusable: the key file cannot be used: ")
    assert f"{tmp_path}/state/keys" in said
    assert why in said
    assert (tmp_path / "state" / "keys").read_text() == held
