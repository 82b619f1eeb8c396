"""The kernel confines worker processes to the rules of their subject, even if the guard in them fails."""

from __future__ import annotations

import os
import sys

import pytest
import sqlalchemy

from tests.guard.harness import PACKAGE, Case
from tests.kernel.appcase import interpreter_for_all, needs_other_user, short_folder

LAB = os.path.join(os.path.dirname(__file__), "confined_host.py")

# The guard does not see native code: these are the calls that it would make.
NATIVE = """
import ctypes, errno, os, socket, struct
from democrai_sandbox import sdk

libc = ctypes.CDLL(None, use_errno=True)

def failed(result):
    return "ok" if result >= 0 else errno.errorcode[ctypes.get_errno()]

def opens(path, flags=0):
    descriptor = libc.open(path.encode(), flags, 0o600)
    text = failed(descriptor)
    if descriptor >= 0:
        libc.close(descriptor)
    return text

def connects(port):
    number = libc.socket(socket.AF_INET, socket.SOCK_STREAM, 0)
    if number < 0:
        return failed(number)
    address = struct.pack("=HHI8x", socket.AF_INET, socket.htons(port), socket.htonl(0x7F000001))
    try:
        return failed(libc.connect(number, address, len(address)))
    finally:
        libc.close(number)

def executes(path):
    libc.execve(path.encode(), (ctypes.c_char_p * 2)(path.encode(), None), (ctypes.c_char_p * 1)(None))
    return errno.errorcode[ctypes.get_errno()]
"""
MODULE = (
    NATIVE
    + """
@sdk.action("opens")
def opens_(path, flags=0): return opens(path, flags)

@sdk.action("connects")
def connects_(port): return connects(port)

@sdk.action("executes")
def executes_(path): return executes(path)

@sdk.action("read")
def read(path): return open(path).read()

@sdk.action("write")
async def write():
    path = sdk.data_dir() / "own"
    path.write_text("mine")
    return path.read_text()

@sdk.action("pid")
def pid(): return os.getpid()

@sdk.action("slow")
async def slow():
    import asyncio
    (sdk.data_dir() / "begun").write_text("")
    while not (sdk.data_dir() / "over").exists():
        await asyncio.sleep(0.02)
    return os.getpid()

@sdk.action("child")
async def child(script):
    done = await sdk.tasks.run_subprocess(["sh", "-c", script])
    return [done.returncode, done.text]

@sdk.action("plain")
def plain():
    import json, sqlite3, ssl, tempfile, threading, decimal
    with tempfile.TemporaryFile() as file:
        file.write(b"x")
    base = sqlite3.connect(":memory:")
    thread = threading.Thread(target=lambda: None)
    thread.start(); thread.join()
    return [base.execute("select 1").fetchone()[0], open("/proc/self/status").read()[:5]]
"""
)


def isolated(world):
    import socket

    lab = (parts := world.load(LAB))["Lab"](world, on=world.args[0])
    house, entry = lab.house, parts["entry"]
    secret, readable = house.file("secret/file"), house.file("open/file")
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    open_port, shut_port = (listener.getsockname()[1] for listener in listeners)
    rules = [entry("read", os.path.dirname(readable)), entry("connect", f"127.0.0.1:{open_port}")]
    house.extension("demo", MODULE, access=rules, allowed_imports=["ctypes"])

    async def story():
        told = {
            "readable": await lab.action("demo", "opens", path=readable),
            "secret": await lab.action("demo", "opens", path=secret),
            "written": await lab.action("demo", "opens", path=readable, flags=os.O_WRONLY),
            "keys": await lab.action("demo", "opens", path=f"{house.state}/keys"),
            "open port": await lab.action("demo", "connects", port=open_port),
            "shut port": await lab.action("demo", "connects", port=shut_port),
            "write": await lab.action("demo", "write"),
            "plain": await lab.action("demo", "plain"),
            "child": await lab.action("demo", "child", script=f"cat {readable}; cat {secret} || echo no"),
            "guard": (await lab.action("demo", "read", path=secret))[0],
        }
        died = await lab.action("demo", "executes", path="/bin/true")
        told["again"] = await lab.action("demo", "opens", path=readable)
        if lab.kernel is None:
            return told, died, None
        lab.kernel.spawn.stop()
        return told, died, [await lab.action("demo", "opens", path=readable) for _ in range(2)][-1]

    return lab.serve(story, isolation={"module:demo": "process"})


@pytest.fixture(scope="module")
def native(shared_case):
    """Return the outcome of native code in a worker, its end, and the state after the spawn server's end."""
    return shared_case.run(isolated, True)


def test_native_code_in_a_worker_reaches_no_more_than_the_rules_say(native):
    """Files, ports and the host's own keys stay closed; it cannot start programs, and ordinary work continues."""
    told, died, _ = native
    assert told == {
        "readable": "ok",
        "secret": "EACCES",
        "written": "EACCES",
        "keys": "EACCES",
        "open port": "ok",
        "shut port": "EACCES",
        "write": "mine",
        "plain": [1, "Name:"],
        "child": [0, "foundno\n"],
        "guard": "FilesystemDenied",
        "again": "ok",
    }
    assert died[0] == "WorkerCrashed"
    assert "SIGSYS" in died[1]


def test_workers_end_with_the_spawn_server_and_that_is_a_failure_and_no_denial(native):
    """None is started in another way."""
    told, _, after = native
    assert told["again"] == "ok"
    assert after[0] in ("SpawnFailed", "WorkerBroken")
    assert "os_sandbox_spawn_failed" in after[1]


def nobody(world):
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    return isolated(world)


@needs_other_user
def test_the_same_holds_in_an_application_that_is_not_root(monkeypatch):
    """It needs no privileges; an error that root does not see would show here."""
    packages = os.path.dirname(os.path.dirname(sqlalchemy.__file__))
    with short_folder() as folder:
        case = Case(folder)
        for place, _, files in os.walk(folder):
            for path in (place, *(os.path.join(place, name) for name in files)):
                os.chown(path, 65534, 65534)
        monkeypatch.setattr(sys, "executable", interpreter_for_all())
        told, died, _ = case.run(nobody, True, PYTHONPATH=f"{PACKAGE}:{packages}")
    shut = [told[name] for name in ("secret", "written", "keys", "shut port")]
    assert (told["readable"], shut) == ("ok", ["EACCES"] * 4)
    assert told["child"] == [0, "foundno\n"]
    assert "SIGSYS" in died[1]


def test_without_the_kernel_layer_native_code_reaches_everything(case):
    """It shows why the layer exists: the same attempts, without the kernel."""
    told, died, _ = case.run(isolated, False)
    assert [told[name] for name in ("secret", "written", "keys", "shut port")] == ["ok"] * 4
    assert died[0] == "WorkerCrashed"
    assert "SIGSYS" not in died[1]


LISTENING = """
import asyncio, socket
from democrai_sandbox import sdk
from democrai_sandbox.errors import SandboxDenied

def refused(error):
    return [error.code, error.target, error.operations[0]]

@sdk.action("listens")
def listens(port):
    try:
        with socket.socket() as server:
            server.bind(("127.0.0.1", port))
            server.listen()
            return "ok"
    except SandboxDenied as error:
        return refused(error)

@sdk.action("serves")
async def serves():
    try:
        (await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)).close()
        return "ok"
    except SandboxDenied as error:
        return refused(error)
"""


def listening(world):
    import socket

    lab = (parts := world.load(LAB))["Lab"](world)
    house, entry = lab.house, parts["entry"]
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        declared, other = one.getsockname()[1], two.getsockname()[1]
    house.extension("apart", LISTENING)
    house.extension("listed", LISTENING, access=[entry("receive", f"127.0.0.1:{declared}")])

    async def story():
        return {
            "apart": [await lab.action("apart", "listens", port=0), await lab.action("apart", "serves")],
            "declared": await lab.action("listed", "listens", port=declared),
            "other": await lab.action("listed", "listens", port=other),
            "number": other,
        }

    return lab.serve(story, isolation={"module:apart": "process", "module:listed": "process"})


def test_a_listener_on_loopback_is_declared_or_refused_with_the_fix(fresh_case):
    """The kernel permits only declared ports; its refusal is a denial that names the declaration."""
    told = fresh_case.run(listening)
    no_sockets = ["sandbox_network_denied", "socket:kernel", "receive"]
    assert told["apart"] == [no_sockets, no_sockets]
    assert told["declared"] == "ok"
    assert told["other"] == ["sandbox_network_denied", f"127.0.0.1:{told['number']}", "receive"]


LIBRARIES = """
from democrai_sandbox import sdk

@sdk.action("uses")
def uses():
    import numpy
    return numpy.arange(3).ctypes.data > 0

@sdk.action("pools")
def pools():
    from multiprocessing.pool import ThreadPool
    with ThreadPool(2) as pool:
        return pool.map(abs, [-1, -2])
"""


def installed(world):
    lab = (parts := world.load(LAB))["Lab"](world, on=world.args[0])
    house, entry = lab.house, parts["entry"]
    house.extension("apart", LIBRARIES)
    house.extension("connected", LIBRARIES, access=[entry("connect", "127.0.0.1:9")])

    async def story():
        used = [await lab.action(name, "uses") for name in ("apart", "connected")]
        return [used, await lab.action("apart", "pools")]

    return lab.serve(story, isolation={"module:apart": "process", "module:connected": "process"})


def test_an_installed_package_uses_ctypes_in_a_worker_that_the_kernel_holds(fresh_case):
    """Without the egress allowlist, only in a worker that cannot create sockets."""
    (apart, connected), pooled = fresh_case.run(installed, True)
    assert apart is True
    assert connected[0] == "ModuleDenied"
    assert pooled == [1, 2]


def test_an_installed_package_does_not_use_ctypes_in_a_worker_without_the_kernel_layer(fresh_case):
    (apart, _), pooled = fresh_case.run(installed, False)
    assert apart[0] == "ModuleDenied"
    assert pooled == [1, 2]


def decided(world):
    import asyncio

    lab = world.load(LAB)["Lab"](world)
    house = lab.house
    wanted = house.file("wanted/file")
    folder, data = os.path.dirname(wanted), f"{house.base}/data/modules/demo"
    house.extension("demo", MODULE, allowed_imports=["ctypes"])

    async def changed(before):
        for _ in range(600):
            now = await lab.action("demo", "pid")
            if now != before:
                return now
            await asyncio.sleep(0.05)
        return before

    async def story():
        first = await lab.action("demo", "pid")
        told = [await lab.action("demo", "opens", path=wanted)]
        busy = asyncio.create_task(lab.action("demo", "slow"))
        while not os.path.exists(f"{data}/begun"):
            await asyncio.sleep(0.01)
        house.decide("approval", "module:demo", "filesystem", "read", folder)
        told.append(await lab.action("demo", "pid") == first)
        open(f"{data}/over", "w").close()
        told.append(await busy == first)
        second = await changed(first)
        told += [second != first, await lab.action("demo", "opens", path=wanted)]
        found = house.admin("approvals").items
        house.admin("revoke", found[0].id)
        third = await changed(second)
        told += [third != second, await lab.action("demo", "opens", path=wanted)]
        house.decide("approval", "module:other", "filesystem", "read", folder)
        await asyncio.sleep(0.3)  # in which nothing happens
        told.append(await lab.action("demo", "pid") == third)
        house.decide("approval", "module:demo", "filesystem", "read", folder)
        told.append(await lab.action("demo", "opens", path=wanted))  # immediately, before any notification
        return told

    return lab.serve(story, isolation={"module:demo": "process"})


def test_a_decision_about_a_subject_starts_a_successor_of_its_worker(case):
    """The kernel cannot change a running process: running calls end in the old one, new calls use the successor."""
    assert case.run(decided) == ["EACCES", False, True, True, "ok", True, "EACCES", True, "ok"]


ENGINE = (
    NATIVE
    + """
@sdk.method("opens")
def opens_(path, flags=0): return opens(path, flags)

@sdk.method("executes")
def executes_(path): return executes(path)

@sdk.method("sleeps")
def sleeps(seconds):
    import time
    time.sleep(seconds)

@sdk.method("limits")
def limits():
    import resource
    return [resource.getrlimit(number)[1] for number in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS)]

@sdk.method("eats")
def eats():
    bytearray(900 << 20)
"""
)


def engines(world):
    lab = (parts := world.load(LAB))["Lab"](world)
    house, told = lab.house, parts["told"]
    secret = house.file("secret/file")
    limits = {"open_files": 99, "address_space_mb": 800, "wall_seconds": 2}
    runtime = {"allowed_imports": ["ctypes"], "limits": limits}
    house.extension("demo", ENGINE, kind="engine", runtime=runtime)

    async def story():
        engine = house.runtime.engines
        await engine.install("demo")

        async def call(method, **params):
            return await told(engine.call("demo", method, params, timeout=20))

        return {
            "secret": await call("opens", path=secret),
            "etc": await call("opens", path="/etc/hostname"),
            "environment": await call(
                "opens", path=house.runtime.engines.status("demo").environment + "/new", flags=0o101
            ),
            "limits": await call("limits"),
            "memory": (await call("eats"))[0],
            "time": (await call("sleeps", seconds=15))[0],
            "executes": (await call("executes", path="/bin/true"))[0],
        }

    return lab.serve(story, limits={"open_files": 120})


def test_an_engine_is_held_to_its_runtime_section_and_its_limits(case):
    """It cannot write its environment; its limit bounds the timeout of a call, independent of the caller."""
    assert case.run(engines) == {
        "secret": "EACCES",
        "etc": "ok",
        "environment": "EACCES",
        "limits": [99, 800 << 20],
        "memory": "MemoryError",
        "time": "WorkerTimeout",
        "executes": "WorkerCrashed",
    }


OUTAGE = """
import os, time
from democrai_sandbox import sdk

@sdk.action("pid")
def pid(): return os.getpid()

@sdk.action("wait")
def wait():
    (sdk.data_dir() / "begun").write_text(str(os.getpid()))
    while not (sdk.data_dir() / "over").exists():
        time.sleep(0.01)
    return os.getpid()
"""


def outages(world):
    import asyncio
    import signal
    import time
    from pathlib import Path

    from democrai_sandbox.runtime.confinement.confiner import ConfinedStarter, Confiner

    lab = world.load(LAB)["Lab"](world)
    names = ("first", "second")
    for name in names:
        lab.house.extension(name, OUTAGE)
    spawn = lab.kernel.spawn

    async def begun(name):
        while not (found := [*Path(world.base).glob(f"**/{name}/begun")]):
            await asyncio.sleep(0.01)
        return found[0]

    async def story():
        told = {}
        waiting = {name: asyncio.ensure_future(lab.action(name, "wait")) for name in ("first", "second")}
        files = {name: await begun(name) for name in waiting}
        while not (number := files["first"].read_text()):
            await asyncio.sleep(0.01)
        os.kill(int(number), signal.SIGKILL)
        told["killed"] = (await waiting["first"])[0]
        told["undisturbed"] = not waiting["second"].done()
        (files["second"].parent / "over").touch()
        told["other"] = await waiting["second"] == int(files["second"].read_text())
        told["again"] = type(await lab.action("first", "pid")).__name__

        spawn.stats()
        for pid in (spawn.standby, spawn.pid):
            os.kill(pid, signal.SIGSTOP)
        starter = ConfinedStarter(Confiner(spawn, lab.kernel.abi, lab.kernel.flow, lab.kernel.egress), lambda: None)
        start = asyncio.ensure_future(starter.start(["/bin/true"], env={}, pass_fds=(), cwd="/"))
        ticks, begin = 0, time.monotonic()
        while time.monotonic() - begin < 0.5:
            await asyncio.sleep(0.005)
            ticks += 1
        told["loop turns while the server is stopped"] = ticks >= 10
        told["ready while it is stopped"] = await asyncio.to_thread(spawn.answers, 0.2)
        told["warm worker meanwhile"] = type(await lab.action("second", "pid")).__name__
        told["waits meanwhile"] = not start.done()
        for pid in (spawn.standby, spawn.pid):
            os.kill(pid, signal.SIGCONT)
        process = await start
        told["started after it"] = await process.wait()
        process.close()

        os.kill(spawn.pid, signal.SIGKILL)
        while not await asyncio.to_thread(spawn.answers, 1):
            await asyncio.sleep(0.01)
        # Their workers ended with the server: a call before that was noticed gets an error.
        for name in names:
            while type(await lab.action(name, "pid")) is not int:
                await asyncio.sleep(0.01)
        told["after a kill"] = [type(await lab.action(name, "pid")).__name__ for name in names]
        return told

    return lab.serve(story, isolation={f"module:{name}": "process" for name in names})


def test_outages_of_workers_and_of_the_spawn_server_are_one_error_and_pass(case):
    """A killed worker fails only its own call; a stopped server blocks no loop; a killed one is replaced."""
    assert case.run(outages) == {
        "killed": "WorkerCrashed",
        "undisturbed": True,
        "other": True,
        "again": "int",
        "loop turns while the server is stopped": True,
        "ready while it is stopped": False,
        "warm worker meanwhile": "int",
        "waits meanwhile": True,
        "started after it": 0,
        "after a kill": ["int", "int"],
    }
