"""Workers, their template and the spawn server are killed or stopped under load: calls end, and everything restarts."""

from __future__ import annotations

import os
import signal

import pytest

LAB = os.path.join(os.path.dirname(__file__), "confined_host.py")
NAMES = ["m0", "m1", "m2", "m3"]
CALL_SECONDS = 1.5
DEADLINE = 12.0
"""Seconds for a call, with its timeout, the end of its process, and the start of the next one."""
MODULE = """
import os, tempfile, time
from democrai_sandbox import sdk

@sdk.action("pid")
def pid():
    with open(os.path.join(tempfile.gettempdir(), "file"), "w") as file:
        file.write("x")
    time.sleep(0.02)
    return os.getpid()
"""


def outage(world):
    """Send a signal to some processes under load; return the outcomes of all calls, and what is left afterwards."""
    import asyncio
    import time
    from collections import Counter

    from democrai_sandbox.kernel import _native
    from democrai_sandbox.kernel.application import Supervisor
    from democrai_sandbox.policy import SandboxError

    [victims] = world.args
    _native.set_subreaper()  # for the processes of a killed server
    lab = world.load(LAB)["Lab"](world)
    for name in NAMES:
        lab.house.extension(name, MODULE)
    spawn = lab.kernel.spawn
    supervisor = Supervisor(spawn, None)
    temps = f"{lab.house.base}/data/temp"
    told = {"codes": Counter(), "answers": Counter(), "longest": 0.0, "lag": 0.0}

    async def call(name):
        """Make one call; count its answer or its code."""
        begin = time.monotonic()
        try:
            found = await lab.house.runtime.modules.action(name, "pid", {}, lab.caller())
            told["answers"][type(found).__name__] += 1
        except SandboxError as error:
            told["codes"][error.code] += 1
            await asyncio.sleep(0.05)
            found = None
        told["longest"] = max(told["longest"], time.monotonic() - begin)
        return found

    async def load(name, ending):
        while not ending.is_set():
            await call(name)
            await asyncio.sleep(0.01)

    async def pulse(ending):
        """Measure the longest time in which the event loop did nothing else."""
        while not ending.is_set():
            begin = time.monotonic()
            await asyncio.sleep(0.01)
            told["lag"] = max(told["lag"], time.monotonic() - begin)

    def descendants():
        """Return the running processes below this one."""
        parents = {}
        for entry in filter(str.isdecimal, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/stat") as file:
                    state, parent = file.read().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state != "Z":
                parents[int(entry)] = int(parent)
        found, new = set(), {os.getpid()}
        while new:
            new = {pid for pid, parent in parents.items() if parent in new} - found
            found |= new
        return found

    def pids():
        workers = [module.worker.pid for module in lab.house.runtime.modules.all_loaded()]
        stats = spawn.stats()
        names = ("template", "standby")
        return {
            "workers": workers[:2],
            "others": workers[2:],
            "server": [stats["pid"]],
            **{name: [stats[name]] for name in names},
        }

    async def all_answer():
        """Wait until every module answers again."""
        until = time.monotonic() + 20
        while time.monotonic() < until:
            if all(await asyncio.gather(*map(call, NAMES))):
                return True
        return False

    async def story():
        assert await all_answer()
        spawn.stats()  # each request leaves a socket pair for the next one, except two at the same moment
        before, open_before = descendants(), len(os.listdir("/proc/self/fd"))
        ending = asyncio.Event()
        loads = [asyncio.create_task(load(name, ending)) for name in NAMES for _ in range(3)]
        loads.append(asyncio.create_task(pulse(ending)))
        await asyncio.sleep(0.2)
        known = pids()
        for victim, number in victims.items():
            for pid in known[victim]:
                os.kill(pid, number)
        begin = time.monotonic()
        await asyncio.sleep(0.5)
        told["again"] = await all_answer()
        told["after"] = time.monotonic() - begin
        ending.set()
        _, running = await asyncio.wait(loads, timeout=DEADLINE)
        told["hanging"] = len(running)
        until = time.monotonic() + 10
        while (len(descendants()), len(os.listdir("/proc/self/fd"))) != (len(before), open_before):
            if time.monotonic() > until:
                break
            await asyncio.sleep(0.05)
        told["processes"] = len(descendants()) - len(before)
        told["descriptors"] = len(os.listdir("/proc/self/fd")) - open_before
        told["temps"] = sorted(name for host in os.scandir(temps) for name in os.listdir(host.path))
        told["events"] = Counter()
        for (_, event), count in lab.house.runtime.worker_events.items():
            told["events"][event] += count
        return told

    supervisor.start()
    try:
        found = lab.serve(story, isolation={"default": "process"}, call_timeout=CALL_SECONDS)
    finally:
        supervisor.stop()
    found["left"] = len(descendants())
    found["left temps"] = [name for host in os.scandir(temps) for name in os.listdir(host.path)]
    return found


KILLED, STOPPED = int(signal.SIGKILL), int(signal.SIGSTOP)
ENDED = {"worker_crashed", "worker_timeout", "os_sandbox_spawn_failed"}


@pytest.mark.parametrize(
    "victims",
    [
        {"template": KILLED, "workers": KILLED, "others": KILLED},
        {"template": STOPPED, "workers": STOPPED, "others": KILLED},
        {"server": KILLED},
        {"server": STOPPED, "standby": STOPPED, "workers": KILLED},
    ],
    ids=lambda victims: " ".join(f"{name}-{number}" for name, number in victims.items()),
)
def test_calls_end_and_everything_restarts(case, victims):
    """Each call has a result or one typed error in time, the event loop goes on, and nothing is left."""
    told = case.run(outage, victims)
    assert set(told["answers"]) == {"int"}
    assert set(told["codes"]) <= ENDED
    assert told["codes"]["worker_crashed"] > 0
    assert told["longest"] < DEADLINE
    assert told["lag"] < 1
    assert (told["again"], told["hanging"]) == (True, 0)
    assert (told["processes"], told["descriptors"]) == (0, 0)
    assert told["temps"] == [f"module-{name}" for name in NAMES]
    events = told["events"]
    ended = 4 if {"server", "others"} & set(victims) and "standby" not in victims else 2
    assert (events["started"], events["crashed"], events["restarted"]) == (4 + ended, ended, ended)
    assert (told["left"], told["left temps"]) == (0, [])


def boot(world):
    """Start the host while the spawn server and its standby are stopped, and continue them later."""
    import asyncio

    lab = world.load(LAB)["Lab"](world)
    for name in NAMES:
        lab.house.extension(name, MODULE)
    spawn = lab.kernel.spawn
    stats = spawn.stats()
    pids = (stats["pid"], stats["standby"])
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    spawn.stalled = True

    async def story():
        modules = lab.house.runtime.modules
        first = await lab.action("m0", "pid")
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        spawn.stalled = False
        await asyncio.wait_for(modules.all_started(), 20)
        return first[0], [type(await lab.action(name, "pid")).__name__ for name in NAMES], lab.house.problems()

    return lab.serve(story, isolation={"default": "process"})


def test_modules_start_when_the_spawn_server_is_back(case):
    """One that could not start with the host is not broken."""
    assert case.run(boot) == ["SpawnFailed", ["int"] * 4, {}]
