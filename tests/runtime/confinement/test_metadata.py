"""Native code in a worker changes mode, owner and times only of files that its subject may modify."""

from __future__ import annotations

import os
import sys

import sqlalchemy

from tests.guard.harness import PACKAGE, Case
from tests.kernel.appcase import interpreter_for_all, needs_other_user, short_folder

LAB = os.path.join(os.path.dirname(__file__), "confined_host.py")
MODULE = """
import ctypes, errno, os, shutil, tempfile
from democrai_sandbox import sdk

libc = ctypes.CDLL(None, use_errno=True)

def failed(result):
    return "ok" if result >= 0 else errno.errorcode[ctypes.get_errno()]

@sdk.action("modes")
def modes(path):
    text, number = path.encode(), libc.open(path.encode(), 3)
    named, relative = f"/proc/self/fd/{number}".encode(), os.path.basename(path).encode()
    libc.chdir(os.path.dirname(path).encode())
    return [
        failed(libc.chmod(text, 0o604)), failed(libc.chmod(relative, 0o604)), failed(libc.chmod(named, 0o604)),
        failed(libc.fchmod(number, 0o604)), failed(libc.chown(text, os.getuid(), -1)),
        failed(libc.utimes(text, None)), failed(libc.futimens(number, None)),
    ]

@sdk.action("own")
async def own():
    made = sdk.data_dir() / "own"
    made.write_text("mine")
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copy2(made, folder)
        os.chmod(copy, 0o640)
        done = await sdk.tasks.run_subprocess(["sh", "-c", f"chmod 604 {made} && stat -c %a {made}"])
        return [libc.chmod(str(made).encode(), 0o600), oct(os.stat(copy).st_mode), done.returncode, done.text]

@sdk.action("listeners")
def listeners():
    found = []
    for number in range(256):
        place = ctypes.create_string_buffer(256)
        if libc.readlink(f"/proc/self/fd/{number}".encode(), place, 255) >= 0:
            found.append(place.value.decode())
    return [one for one in found if "seccomp" in one]

@sdk.action("pid")
def pid(): return os.getpid()
"""


def modes_of(world):
    from pathlib import Path

    lab = (parts := world.load(LAB))["Lab"](world)
    house, entry = lab.house, parts["entry"]
    open_, key = house.file("open/file"), house.file("secret/key")
    os.chmod(key, 0o600)
    rules = [entry("modify", os.path.dirname(open_)), entry("read", os.path.dirname(key))]
    house.extension("writer", MODULE, access=rules, allowed_imports=["ctypes"])
    house.extension("reader", MODULE, access=rules[1:], allowed_imports=["ctypes"])

    async def story():
        told = {
            f"{name} {os.path.basename(path)}": sorted(set(await lab.action(name, "modes", path=path)))
            for name in ("writer", "reader")
            for path in (open_, key)
        }
        told["own"] = [await lab.action(name, "own") for name in ("writer", "reader")]
        told["listeners"] = [await lab.action(name, "listeners") for name in ("writer", "reader")]
        processes = (await lab.action("writer", "pid"), lab.kernel.spawn.stats()["template"])
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in processes]
        told["forked"] = commands[0] == commands[1]
        return told, oct(os.stat(key).st_mode)

    return lab.serve(story, isolation={f"module:{name}": "process" for name in ("writer", "reader")})


EXPECTED = {
    "writer file": ["ok"],
    "writer key": ["EPERM"],
    "reader file": ["EPERM"],
    "reader key": ["EPERM"],
    "own": [[0, "0o100640", 0, "604\n"]] * 2,
    "listeners": [[], []],
    "forked": True,
}


def test_a_forked_worker_changes_files_that_it_may_modify_and_no_others(case):
    told, key = case.run(modes_of)
    assert told == EXPECTED
    assert key == "0o100600"


def nobody(world):
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    return modes_of(world)


@needs_other_user
def test_the_same_holds_in_an_application_that_is_not_root(monkeypatch):
    packages = os.path.dirname(os.path.dirname(sqlalchemy.__file__))
    with short_folder() as folder:
        case = Case(folder)
        for place, _, files in os.walk(folder):
            for path in (place, *(os.path.join(place, name) for name in files)):
                os.chown(path, 65534, 65534)
        monkeypatch.setattr(sys, "executable", interpreter_for_all())
        told, key = case.run(nobody, PYTHONPATH=f"{PACKAGE}:{packages}")
    assert told == EXPECTED
    assert key == "0o100600"


def decided(world):
    import asyncio

    lab = world.load(LAB)["Lab"](world)
    house = lab.house
    wanted = house.file("wanted/file")
    house.extension("demo", MODULE, allowed_imports=["ctypes"])

    async def successor(before):
        for _ in range(600):
            if (now := await lab.action("demo", "pid")) != before:
                return now
            await asyncio.sleep(0.05)
        return before

    async def story():
        first = await lab.action("demo", "pid")
        told = [set(await lab.action("demo", "modes", path=wanted))]
        house.decide("approval", "module:demo", "filesystem", "modify", os.path.dirname(wanted))
        second = await successor(first)
        told.append(set(await lab.action("demo", "modes", path=wanted)))
        house.admin("revoke", house.admin("approvals").items[0].id)
        await successor(second)
        told.append(set(await lab.action("demo", "modes", path=wanted)))
        return [sorted(one) for one in told]

    return lab.serve(story, isolation={"module:demo": "process"})


def test_a_decision_reaches_the_supervisor_with_the_successor_of_a_worker(case):
    assert case.run(decided) == [["EPERM"], ["ok"], ["EPERM"]]
