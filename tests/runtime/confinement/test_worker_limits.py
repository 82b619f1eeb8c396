"""Limits that all processes of a worker share: their number, and their part of the processor; and their name."""

from __future__ import annotations

import errno
import os
import sys

import pytest
import sqlalchemy

from democrai_sandbox.runtime.confinement.confiner import shares_by_session
from tests.guard.harness import PACKAGE, Case
from tests.kernel.appcase import interpreter_for_all, needs_other_user, needs_root, short_folder

LAB = os.path.join(os.path.dirname(__file__), "confined_host.py")
WORKER = {"isolation": {"default": "process"}}
LIMIT = 110
USER = 47_113
"""A user without other processes, because the kernel counts all processes of a user."""
MODULE = """
import ctypes, hashlib, os, threading, time
from democrai_sandbox import sdk

libc = ctypes.CDLL(None, use_errno=True)

@sdk.action("pid")
def pid():
    return os.getpid()

@sdk.action("threads")
def threads():
    ended = threading.Event()
    try:
        for _ in range(500):
            threading.Thread(target=ended.wait, daemon=True).start()
    finally:
        ended.set()

@sdk.action("bomb")
def bomb(apart):
    while True:
        if libc.fork() == 0 and apart:
            libc.setsid()

@sdk.action("programs")
async def programs():
    done = await sdk.tasks.run_subprocess(["/bin/sh", "-c", "bomb() { bomb | bomb & }; bomb; sleep 1; echo end"])
    return [done.returncode, done.text, list(done.unenforced)]

@sdk.action("burn")
def burn(number, seconds):
    until = time.monotonic() + seconds
    def work():
        while time.monotonic() < until:
            hashlib.pbkdf2_hmac("sha256", b"x", b"y", 2000)
    started = [threading.Thread(target=work) for _ in range(number)]
    before = time.process_time()
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return time.process_time() - before
"""
ROOT_LIMIT = 40
ROOT_MODULE = (
    MODULE
    + """
@sdk.action("forks")
def forks(most):
    started, reason = [], 0
    while len(started) < most:
        pid = libc.fork()
        if pid == 0:
            libc.sleep(60)
            libc._exit(0)
        if pid < 0:
            reason = ctypes.get_errno()
            break
        started.append(pid)
    for pid in started:
        libc.kill(pid, 9)
        libc.waitpid(pid, None, 0)
    return [len(started), reason]
"""
)
NATIVE = {"allowed_imports": ["ctypes"]}


def as_user(monkeypatch, body, *args):
    """Run a body in a folder of the other user."""
    packages = os.path.dirname(os.path.dirname(sqlalchemy.__file__))
    with short_folder() as folder:
        for place, _, files in os.walk(folder):
            for path in (place, *(os.path.join(place, name) for name in files)):
                os.chown(path, USER, USER)
        monkeypatch.setattr(sys, "executable", interpreter_for_all())
        return Case(folder).run(body, *args, PYTHONPATH=f"{PACKAGE}:{packages}")


def forks(world):
    """Run fork bombs in one module, as an ordinary user."""
    import asyncio
    import time

    os.setgroups([])
    os.setgid(USER)
    os.setuid(USER)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # the other tests use the other processors
    lab = world.load(LAB)["Lab"](world)
    house = lab.house
    program = {"resource_type": "system_dependency", "operation": "execute", "target": "sh"}
    sleep = {**program, "target": "sleep"}
    house.extension("bad", MODULE, access=[program, sleep], **NATIVE)
    house.extension("good", MODULE, **NATIVE)
    house.extension("late", MODULE, **NATIVE)

    def processes():
        """Return the processes of the user."""
        found = set()
        for entry in os.listdir("/proc"):
            try:
                if entry.isdecimal() and os.stat(f"/proc/{entry}").st_uid == USER:
                    with open(f"/proc/{entry}/stat") as file:
                        if file.read().rpartition(")")[2].split()[0] != "Z":
                            found.add(int(entry))
            except OSError:
                continue
        return found

    async def code_of(action, *, module="bad", **params):
        try:
            return await house.runtime.modules.action(module, action, params, lab.caller())
        except Exception as error:
            return [getattr(error, "code", type(error).__name__), getattr(error, "limit", "")]

    async def beside(running):
        """Use the other module, and start programs of the host, while a call runs."""
        most, others, longest, late = 0, set(), 0.0, None
        while not running.done():
            begin = time.monotonic()
            others.add(await lab.action("good", "pid") == good)
            longest = max(longest, time.monotonic() - begin)
            most = max(most, len(processes()))
            if most > 0.8 * LIMIT and type(late) is not list:
                house.runtime.modules.loaded("late").worker.rest()
                late = await code_of("pid", module="late")
            program = await asyncio.create_subprocess_exec("/bin/true")
            assert await program.wait() == 0
        return {"most": most, "others": list(others), "longest": longest, "late": late}

    good = None

    async def story():
        nonlocal good
        good = await lab.action("good", "pid")
        await lab.action("bad", "pid")
        house.runtime.modules.loaded("late").worker.rest()
        before = processes()
        answers = {"threads": await code_of("threads")}
        running = asyncio.create_task(code_of("bomb", apart=world.args[0]))
        answers |= {**await beside(running), "bomb": await running}
        answers["programs"] = await lab.action("bad", "programs")
        again = await lab.action("bad", "pid")
        end = time.monotonic() + 20
        while len(processes()) > len(before) and time.monotonic() < end:
            await asyncio.sleep(0.02)
        answers["left"] = max(0, len(processes()) - len(before))
        answers["alive"] = [await lab.action("good", "pid") == good, type(again) is int]
        answers["alive"].append(type(await lab.action("late", "pid")) is int)
        answers["counted"] = house.runtime.limits_reached["module:bad", "processes"]
        return answers

    return lab.serve(story, limits={"processes": LIMIT}, call_timeout=3.0, **WORKER)


@needs_other_user
@pytest.mark.parametrize("apart", [False, True])
def test_a_fork_bomb_reaches_its_limit_and_nothing_else(monkeypatch, apart):
    """Threads, native forks and forking programs: one error each, other modules and the host continue.

    Also if each process is in a session of its own, and forks again as soon as another one is killed.
    """
    told = as_user(monkeypatch, forks, apart)
    assert told["threads"] == ["extension_limit_reached", "processes"]
    assert told["bomb"] == ["worker_timeout", ""]
    # A start needs threads. It succeeds if there is room at this moment.
    assert type(told["late"]) is int or told["late"] == ["extension_limit_reached", "processes"]
    assert told["programs"] == [0, "end\n", []]
    assert LIMIT / 2 < told["most"] <= LIMIT  # threads count too
    assert told["others"] == [True]
    assert told["longest"] < 3
    assert (told["left"], told["alive"], told["counted"]) == (0, [True] * 3, 1)


def rooted(world):
    """Reach the limit in one worker of root; nothing is forked before its cgroup was read."""
    lab = world.load(LAB)["Lab"](world, template=world.args[0], **world.args[1])
    lab.house.extension("bad", ROOT_MODULE, limits={"processes": ROOT_LIMIT}, **NATIVE)
    lab.house.extension("good", MODULE, **NATIVE)

    def most_of(pid):
        with open(f"/proc/{pid}/cgroup") as file:
            name = [line.strip().rpartition("/")[2] for line in file if "democrai_pids_" in line][0]
        with open(f"/sys/fs/cgroup/pids/{name}/pids.max") as file:
            return int(file.read())

    async def story():
        confinement = lab.house.runtime.confinement
        answers = {"works": confinement.limits_processes}
        pids = [await lab.action(name, "pid") for name in ("bad", "good")]
        answers["unenforced"] = confinement.unenforced
        if not answers["works"]:
            return answers
        answers["most"] = [most_of(pid) for pid in pids]
        if answers["most"][0] == ROOT_LIMIT:
            try:
                await lab.house.runtime.modules.action("bad", "threads", {}, lab.caller())
            except Exception as error:
                answers["threads"] = [error.code, error.limit]
            answers["forks"] = await lab.action("bad", "forks", most=2 * ROOT_LIMIT)
        answers["alive"] = [await lab.action("good", "threads") is None, await lab.action("bad", "pid") == pids[0]]
        answers["counted"] = lab.house.runtime.limits_reached["module:bad", "processes"]
        return answers

    return lab.serve(story, **WORKER)


@needs_root
@pytest.mark.parametrize("template", [True, False])
def test_a_worker_of_root_has_a_limit_of_its_own(case, template):
    """The same error as for other users; another worker has the default limit, and reaches nothing."""
    told = case.run(rooted, template, {})
    if not told["works"]:
        pytest.skip("needs a writable tree of the pids controller")
    assert told["most"] == [ROOT_LIMIT, 4096]
    assert told["unenforced"] == {"module:bad": [], "module:good": []}
    assert told["threads"] == ["extension_limit_reached", "processes"]
    assert 0 < told["forks"][0] < ROOT_LIMIT
    assert told["forks"][1] == errno.EAGAIN
    assert (told["alive"], told["counted"]) == ([True, True], 1)


@needs_root
def test_without_landlock_root_has_no_default_limit_and_another_is_said(case):
    """The worker could leave its cgroup."""
    told = case.run(rooted, False, {"abi": 0})
    assert not told["works"]
    assert any("root" in text for text in told["unenforced"]["module:bad"])
    assert not any("root" in text for text in told["unenforced"]["module:good"])


def burns(world):
    """Compare two workers on one processor: one with little weight and many threads, one with a single thread."""
    import asyncio

    lab = world.load(LAB)["Lab"](world)
    lab.house.extension("less", MODULE, limits={"cpu_weight": 25}, **NATIVE)
    lab.house.extension("full", MODULE, **NATIVE)
    one = {min(os.sched_getaffinity(0))}

    async def story():
        pids = [await lab.action(name, "pid") for name in ("less", "full")]
        for pid in pids:
            for task in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(task), one)
        used = await asyncio.gather(
            lab.action("less", "burn", number=50, seconds=2.0), lab.action("full", "burn", number=1, seconds=2.0)
        )
        return used, [os.getpriority(os.PRIO_PROCESS, pid) for pid in pids]

    return lab.serve(story, **WORKER)


@pytest.mark.skipif(not shares_by_session(), reason="needs kernel.sched_autogroup_enabled")
def test_the_weight_of_a_worker_counts_for_all_its_threads(case):
    """A quarter of the weight is about a quarter of the time of the other worker, with 50 threads against one."""
    (less, full), nice = case.run(burns)
    assert nice == [6, 0]
    assert 0.1 < less / full < 0.6


def weighed(world):
    """Start several workers at once, as an ordinary user."""
    import asyncio

    os.setgroups([])
    os.setgid(USER)
    os.setuid(USER)
    lab = world.load(LAB)["Lab"](world, template=world.args[0])
    names = [f"m{number}" for number in range(4)]
    for name in names:
        lab.house.extension(name, MODULE, limits={"cpu_weight": 25}, **NATIVE)

    def share(pid):
        with open(f"/proc/{pid}/autogroup") as file:
            return int(file.read().split()[-1])

    async def story():
        pids = [await lab.action(name, "pid") for name in names]
        for _ in range(500):
            if {share(pid) for pid in pids} == {6}:
                break
            await asyncio.sleep(0.02)
        return [share(pid) for pid in pids], [os.getpriority(os.PRIO_PROCESS, pid) for pid in pids]

    return lab.serve(story, **WORKER)


@needs_other_user
@pytest.mark.skipif(not shares_by_session(), reason="needs kernel.sched_autogroup_enabled")
@pytest.mark.parametrize("template", [True, False])
def test_weights_need_no_privileges(monkeypatch, template):
    """The kernel refuses changes that follow each other closely; the spawn server repeats them."""
    told = as_user(monkeypatch, weighed, template)
    assert told == [[6] * 4, [6] * 4]


def named(world):
    lab = world.load(LAB)["Lab"](world, template=world.args[0])
    lab.house.extension("reports-monthly", MODULE, **NATIVE)

    async def story():
        stats = lab.kernel.spawn.stats()
        pids = [await lab.action("reports-monthly", "pid"), stats["pid"], stats["template"]]
        names = []
        for pid in filter(None, pids):
            with open(f"/proc/{pid}/comm") as file:
                names.append(file.read().strip())
        return names

    return lab.serve(story, **WORKER)


@pytest.mark.parametrize("template", [True, False])
def test_processes_show_their_names(case, template):
    """A worker the name of its subject, whether it is forked or started."""
    assert case.run(named, template) == ["dsb:reports-mon", "dsb-spawn", *(["dsb-template"] if template else [])]
