"""Modules that misbehave in confined workers: their callers get one error, and no other module is affected."""

from __future__ import annotations

import os
import signal

import pytest

from tests.kernel.appcase import needs_root

LAB = os.path.join(os.path.dirname(__file__), "confined_host.py")
CALL_SECONDS = 2.0
GOOD = """
import os
from democrai_sandbox import sdk

@sdk.action("pid")
def pid():
    return os.getpid()
"""
START = "import ctypes, os, sys, time\nfrom democrai_sandbox import sdk\nlibc = ctypes.CDLL(None)\n"
STARTS = {
    "endless": "while True: pass",
    "stuck": "libc.sigfillset(mask := ctypes.create_string_buffer(128)); libc.sigprocmask(0, mask, None); libc.pause()",
    "crashes": "ctypes.string_at(0)",
    "exits": "libc._exit(3)",
    "leaves": "sys.exit(3)",
    "raises": "raise ValueError('no')",
    "eats": "held = bytearray(10**12)",
    "closes": "libc.close_range(3, 1000, 0); time.sleep(60)",
    "floods": "while True: libc.write(1, b'x' * 1000, 1000)",
}
CALLS = """

@sdk.action("daemons")
def daemons():
    for _ in range(5):
        if libc.fork() == 0:
            libc.setsid()
            if libc.fork() == 0:
                libc.prctl(15, b"the-daemon", 0, 0, 0)
                while True:
                    libc.pause()
            libc._exit(0)
    return os.getpid()

@sdk.action("chatter")
def chatter():
    while True:
        libc.write(1, b"x" * 1000, 1000)

@sdk.action("lines")
def lines():
    while True:
        print("x" * 100)

@sdk.action("deaf")
def deaf():
    for number in range(1, 65):
        libc.signal(number, ctypes.c_void_p(1))
    mask = ctypes.create_string_buffer(b"\\xff" * 128)
    libc.pthread_sigmask(0, mask, None)
    while True:
        libc.pause()

@sdk.action("spins")
def spins():
    while True:
        pass

@sdk.action("eats")
def eats():
    held = []
    while True:
        held.append(bytearray(10 << 20))

@sdk.action("native")
def native():
    libc.malloc.restype = ctypes.c_void_p
    while place := libc.malloc(1 << 20):
        libc.memset(ctypes.c_void_p(place), 1, 1 << 20)
    return "full"

@sdk.action("stops")
def stops():
    libc.kill(os.getpid(), 19)
    time.sleep(60)

@sdk.action("closes")
def closes():
    libc.close_range(3, 1000, 0)
    time.sleep(60)

@sdk.action("pid")
def pid():
    return os.getpid()
"""
NATIVE = {"allowed_imports": ["ctypes"]}


def bad_starts(world):
    """Load modules that misbehave while they are imported, beside a good one."""
    import asyncio
    import time

    lab = world.load(LAB)["Lab"](world)
    for name, code in STARTS.items():
        lab.house.extension(name, START + code, **NATIVE)
    lab.house.extension("good", GOOD)
    lab.house.problems = dict  # they are what this is about

    async def code_of(name):
        try:
            await lab.house.runtime.modules.action(name, "pid", {}, lab.caller())
        except Exception as error:
            return getattr(error, "code", type(error).__name__)

    async def story():
        begin = time.monotonic()
        good = await lab.action("good", "pid")
        took = time.monotonic() - begin
        codes = dict(zip(STARTS, await asyncio.gather(*map(code_of, STARTS)), strict=True))
        problems = {
            one.name: str(one.problems[0]).partition(":")[0] for one in lab.house.runtime.extensions if one.is_broken
        }
        counted = {label for label, event in lab.house.runtime.worker_events if event == "failed"}
        return codes, problems, took, good == await lab.action("good", "pid"), sorted(counted)

    return lab.serve(story, load_timeout=3.0, isolation={"default": "process"})


def test_modules_that_do_not_start(case):
    """They are listed with the reason, calls of them fail, and the others answer at once."""
    codes, problems, took, same, counted = case.run(bad_starts)
    assert set(codes.values()) == {"extension_broken"}
    late, failed, ended = ("endless", "stuck", "floods"), ("leaves", "raises"), ("crashes", "exits", "closes")
    assert problems == {
        **dict.fromkeys(late, "worker_timeout"),
        **dict.fromkeys(failed, "extension_failed"),
        **dict.fromkeys(ended, "worker_crashed"),
        "eats": "extension_limit_reached",
    }
    assert took < 2
    assert same
    assert counted == sorted(f"module:{name}" for name in STARTS)


def daemons():
    """Return the processes that the action of this name has started."""
    found = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/comm") as file:
                if file.read().strip() == "the-daemon":
                    found.append(int(entry))
        except OSError:
            continue
    return found


def bad_calls(world):
    """Make calls that misbehave, each in a worker of its own, beside a good one."""
    import asyncio
    import time

    lab = world.load(LAB)["Lab"](world)
    names = world.args[0]
    for name in names:
        lab.house.extension(name, START + CALLS, limits={"memory_mb": 200}, **NATIVE)
    lab.house.extension("good", GOOD)
    told = {"late": 0.0, "memory": 0}

    def memory():
        with open("/proc/self/status") as file:
            return int(next(line for line in file if line.startswith("VmRSS")).split()[1])

    async def outcome(name):
        try:
            return await lab.house.runtime.modules.action(name, name, {}, lab.caller())
        except Exception as error:
            return [getattr(error, "code", type(error).__name__), getattr(error, "limit", "")]

    async def story():
        good = await lab.action("good", "pid")
        begin, before = time.monotonic(), memory()
        running = asyncio.gather(*map(outcome, names))
        same = set()
        while not running.done():
            started = time.monotonic()
            same.add(await lab.action("good", "pid") == good)
            told["late"] = max(told["late"], time.monotonic() - started)
            told["memory"] = max(told["memory"], memory() - before)
            await asyncio.sleep(0.01)
        told["outcomes"] = dict(zip(names, await running, strict=True))
        told["took"] = time.monotonic() - begin
        told["same"] = list(same)
        told["daemons"] = len(daemons())
        told["next"] = sorted(
            type(one).__name__ for one in await asyncio.gather(*(lab.action(name, "pid") for name in names))
        )
        for module in lab.house.runtime.modules.all_loaded():
            module.worker.rest()
        end = time.monotonic() + 20
        while daemons() and time.monotonic() < end:
            await asyncio.sleep(0.02)
        told["left"] = len(daemons())
        events = lab.house.runtime.worker_events
        told["events"] = [
            sum(events.get((f"module:{name}", event), 0) for name in names)
            for event in ("started", "crashed", "restarted", "stopped_idle")
        ]
        return told

    return lab.serve(story, call_timeout=CALL_SECONDS, isolation={"default": "process"})


def test_calls_that_misbehave(case):
    """Each has a result or one error in time; what a call leaves ends with its worker, at the latest."""
    late = ["chatter", "lines", "deaf", "spins", "stops"]
    told = case.run(bad_calls, ["daemons", "eats", "native", "closes", *late])
    outcomes = told["outcomes"]
    assert [outcomes[name] for name in late] == [["worker_timeout", ""]] * len(late)
    assert type(outcomes["daemons"]) is int
    assert outcomes["eats"] == ["extension_limit_reached", "memory_mb"]
    assert outcomes["native"] == "full"
    assert outcomes["closes"] == ["worker_crashed", ""]
    assert told["took"] < 3 * CALL_SECONDS + 4
    assert set(told["next"]) == {"int"}
    assert (told["same"], told["late"] < 1) == ([True], True)
    assert told["memory"] < 50_000
    assert (told["daemons"], told["left"]) == (5, 0)
    ended = len(late) + 1  # the one that closes its connection, too
    assert told["events"] == [9 + ended, ended, ended, 9]


def orphans(world):
    """Kill the spawn server while daemons of a worker run."""
    import asyncio
    import time

    lab = world.load(LAB)["Lab"](world)
    lab.house.extension("bad", START + CALLS, **NATIVE)

    async def story():
        await lab.action("bad", "daemons")
        end = time.monotonic() + 20
        while len(daemons()) < 5 and time.monotonic() < end:
            await asyncio.sleep(0.02)
        before = len(daemons())
        os.kill(lab.kernel.spawn.pid, signal.SIGKILL)
        while daemons() and time.monotonic() < end:
            await asyncio.sleep(0.02)
        return before, len(daemons()), type(await lab.action("bad", "pid")).__name__

    return lab.serve(story, isolation={"default": "process"})


def test_daemons_end_with_the_spawn_server(case):
    """Its successor finds them, although they are in sessions of their own and their parents have ended."""
    assert case.run(orphans) == [5, 0, "int"]


FILLS = """
import os, tempfile
from democrai_sandbox import sdk

@sdk.action("fills")
def fills():
    with open(os.path.join(tempfile.gettempdir(), "file"), "wb", 0) as file:
        while True:
            file.write(bytes(65536))

@sdk.action("pid")
def pid():
    return os.getpid()
"""


def full_disk(world):
    """Fill the disk with a temp folder."""
    import asyncio
    import subprocess

    from democrai_sandbox.runtime import modules

    modules._TIDY_SECONDS, modules._LEAST_IDLE_SECONDS = 0.2, 0.5
    data = f"{world.base}/data"
    os.mkdir(data)
    command = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", data]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        return None
    try:
        lab = world.load(LAB)["Lab"](world)
        lab.house.extension("bad", FILLS)
        lab.house.extension("good", GOOD)

        def room():
            found = os.statvfs(data)
            return found.f_bavail / found.f_blocks

        async def story():
            good = await lab.action("good", "pid")
            told = {"outcome": (await lab.action("bad", "fills"))[0], "room": room()}
            told["good"] = await lab.action("good", "pid") == good
            while room() < 0.5:
                await asyncio.sleep(0.05)
            told["again"] = type(await lab.action("bad", "pid")).__name__
            return told

        return lab.serve(story, isolation={"default": "process"})
    finally:
        subprocess.run(["umount", "--lazy", data], check=True)


@needs_root
def test_a_full_temp_folder_is_an_error_and_is_removed(case):
    """Idle workers are stopped on a full disk, and their temp folders removed."""
    told = case.run(full_disk)
    if told is None:
        pytest.skip("no file system can be mounted here")
    assert told == {"outcome": "OSError", "room": 0, "good": True, "again": "int"}
