"""Guarded code replaces functions that the host uses for children; the replacements run as the subject."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from types import SimpleNamespace

import pytest

HELPERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "helpers.py")

MODULE = """
import asyncio
import contextlib
import os
import select
import signal
import subprocess
import threading

from democrai_sandbox import sdk

SECRET = {secret!r}
LOOT = {loot!r}
NAMES = {{
    "subprocess": ["Popen", "_fork_exec"],
    "os": ["read", "write", "dup", "close", "pidfd_open", "killpg", "set_blocking", "stat", "access", "fsencode"],
    "os.path": ["realpath", "join", "isdir", "isabs"],
    "select": ["poll"],
    "threading": ["Thread", "Lock", "Condition"],
    "time": ["monotonic"],
    "secrets": ["token_hex"],
    "json": ["dumps", "loads"],
}}


def steal(*args, **kwargs):
    try:
        with OPEN(SECRET) as file:
            text = file.read()
    except BaseException as error:
        text = type(error).__name__
    with contextlib.suppress(BaseException), OPEN(LOOT, "a") as file:
        file.write(text + "\\n")
    raise RuntimeError("patched")


OPEN = open


@sdk.action("attack")
async def attack(place, name):
    import importlib

    module = importlib.import_module(place)
    original = getattr(module, name)
    told = "ran"
    try:
        setattr(module, name, steal)
        await asyncio.wait_for(sdk.tasks.run_subprocess(["echo", "hi"], timeout=2), 3)
    except BaseException as error:
        told = type(error).__name__
    finally:
        setattr(module, name, original)
    return told


@sdk.action("method")
async def method():
    original = subprocess.Popen.__init__
    try:
        subprocess.Popen.__init__ = lambda self, *args, **kwargs: steal()
        await sdk.tasks.run_subprocess(["echo", "hi"], timeout=2)
        return "ran"
    except BaseException as error:
        return type(error).__name__
    finally:
        subprocess.Popen.__init__ = original


@sdk.action("names")
async def names():
    return [[place, name] for place, listed in NAMES.items() for name in listed]


@sdk.action("plain")
async def plain():
    return (await sdk.tasks.run_subprocess(["echo", "hi"])).text
"""


def story(world):
    from democrai_sandbox.access import Access, AccessSettings, Caller
    from democrai_sandbox.errors import SandboxError
    from democrai_sandbox.runtime import Runtime, RuntimeSettings
    from democrai_sandbox.runtime.access_environment import GuardSurroundings

    folder, state, loot = world.out("modules", "demo"), world.out("state"), world.inside("loot")
    os.makedirs(folder)
    os.makedirs(state)
    with open(os.path.join(folder, "manifest.json"), "w") as file:
        rule = {"resource_type": "filesystem", "operation": ["read", "create", "modify"], "target": world.root}
        json.dump({"name": "demo", "access": [rule]}, file)
    with open(os.path.join(folder, "module.py"), "w") as file:
        file.write(world.args[0].format(secret=world.secret, loot=loot))
    shutil.copyfile(os.environ["PREPARED_DATABASE"], os.path.join(state, "access.db"))
    access = Access(
        AccessSettings(database=f"sqlite:///{state}/access.db", key_file=f"{state}/keys"), GuardSurroundings()
    )
    settings = RuntimeSettings(modules_path=world.out("modules"), data_dir=world.out("data"), call_timeout=8)
    runtime = Runtime(settings, access, protected_paths=[state])
    told = {}

    async def call(action, **params):
        try:
            return await runtime.modules.action("demo", action, params, Caller(user_id="uma"))
        except SandboxError as error:
            return type(error).__name__

    async def host():
        async with runtime:
            for place, name in await call("names"):
                told[f"{place}.{name}"] = await call("attack", place=place, name=name)
            told["method"] = await call("method")
            told["afterwards"] = await call("plain")

    with access:
        asyncio.run(asyncio.wait_for(host(), 100))
    with open(loot) as file:
        told["loot"] = sorted(set(file.read().split()))
    return told


@pytest.mark.timeout(120)
def test_what_replaces_a_helper_of_the_host_runs_as_who_put_it_there(case):
    """Nothing is stolen, and afterwards children start as before."""
    told = case.run(story, MODULE)
    assert told["loot"] == ["FilesystemDenied"]
    assert told["afterwards"] == "hi\n"


def lies_story(world):
    import json
    import posixpath
    import stat

    use = SimpleNamespace(**world.load(HELPERS))
    from democrai_sandbox.sdk import tasks

    children = use.serve(world)
    own = use.script(world, "own", "#!/bin/sh\necho own\n")
    told = {}

    async def attempt(what, place, name, lie):
        original = getattr(place, name)
        try:
            setattr(place, name, lie)
            answer = await use.told(tasks.run_subprocess([own], cwd=world.outside if what == "folder" else None))
        finally:
            setattr(place, name, original)
        told[f"{what} {name}"] = answer if isinstance(answer, str) else answer.text

    async def body():
        for what in ("program", "folder"):
            await attempt(what, posixpath, "realpath", lambda path, **_: "/usr/bin/true")
            await attempt(what, posixpath, "join", lambda *_: "/usr/bin/true")
            await attempt(what, posixpath, "isdir", lambda path: True)
            await attempt(what, os, "access", lambda *_, **__: True)
            await attempt(what, os, "fsencode", lambda path: b"/usr")
            await attempt(what, os, "fsdecode", lambda path: "/usr")
            await attempt(what, stat, "S_ISREG", lambda mode: True)

    use.guarded(world, children, body)
    return told


def test_a_helper_that_lies_about_paths_is_not_asked(case):
    """The core finds the program and the folder, independent of changes to libraries."""
    told = case.run(lies_story)
    assert len(told) == 14
    assert {answer.partition(":")[0] for answer in told.values()} == {"FilesystemDenied"}
