"""Workers are forked from the template process: confined, equal to started ones, and independent of its fate."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

LAB = os.path.join(os.path.dirname(__file__), "confined_host.py")
SECRET = "secret-of-the-host-4711"
MODULE = """
import gc, locale, os, random, signal, site, sys, sysconfig, tempfile, threading
from pathlib import Path
from democrai_sandbox import sdk

@sdk.action("state")
def state():
    return {
        "flags": list(sys.flags), "path": sys.path, "prefixes": [sys.prefix, sys.exec_prefix, sys.base_prefix],
        "executable": sys.executable, "argv": sys.argv, "site": site.PREFIXES, "temp": tempfile.gettempdir(),
        "packages": sysconfig.get_paths()["purelib"], "environment": sorted(os.environ.items()), "folder": os.getcwd(),
        "locale": locale.setlocale(locale.LC_CTYPE), "threads": sorted(one.name for one in threading.enumerate()),
        "streams": [sys.stdout.encoding, sys.stdout.line_buffering, sys.stdin.fileno()], "collects": gc.isenabled(),
        "signals": [str(signal.getsignal(one)) for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)],
        "leader": os.getsid(0) == os.getpid() == os.getpgid(0), "parent": os.getppid(),
    }

@sdk.action("about")
def about():
    folder = Path("/proc/self")
    lines = (folder / "status").read_text().splitlines()
    return {
        "pid": os.getpid(), "random": random.random(), "imported": "colorsys" in sys.modules,
        "status": [line for line in lines if line.startswith(("NoNewPrivs", "Seccomp:", "CapEff"))],
    }
"""


def state(world):
    """Return the state of a worker, and the process id of its host's spawn server."""
    for entry in os.scandir(world.base):  # of the run before
        if entry.name in ("state", "data", "modules", "engines", "extractors"):
            shutil.rmtree(entry.path)
    lab = world.load(LAB)["Lab"](world, template=world.args[0])
    lab.house.extension("demo", MODULE)

    async def story():
        told = await lab.action("demo", "state")
        return told, lab.kernel.spawn.pid

    return lab.serve(story, isolation={"module:demo": "process"})


def test_a_forked_worker_is_in_the_same_state_as_a_started_one(case):
    """Interpreter, environment, streams, signals and threads are equal; the spawn server is the parent of both."""
    found = [case.run(state, template) for template in (True, False)]
    for one, _ in found:
        temp = one.pop("temp")  # each host has a new folder for them
        assert one["environment"].pop(one["environment"].index(["TMPDIR", temp]))
    for told, server in found:
        assert told.pop("parent") == server
        assert told["leader"]
    assert found[0][0] == found[1][0]


SMALL = """
from democrai_sandbox import sdk

@sdk.action("pid")
def pid():
    import os
    return os.getpid()
"""


def memory(world):
    """Return the private megabytes of a worker after its first call."""
    lab = world.load(LAB)["Lab"](world)
    lab.house.extension("demo", SMALL)

    async def story():
        pid = await lab.action("demo", "pid")
        with open(f"/proc/{pid}/smaps_rollup") as file:
            sizes = [line.split() for line in file if line.startswith("Private_")]
        return sum(int(size) for _, size, _ in sizes) / 1024

    return lab.serve(story, isolation={"module:demo": "process"})


def test_a_worker_has_little_memory_of_its_own(case):
    """At most 8 MB before the imports of its module; the rest is shared with the template."""
    assert 1 < case.run(memory) <= 8


def contents(world):
    """Return facts about the template, and about two workers."""
    os.environ["HOST_SECRET"] = world.args[0]
    lab = (parts := world.load(LAB))["Lab"](world)
    for name in ("one", "two"):
        lab.house.extension(name, MODULE)
    held = [world.args[0]] * 1000
    secret = "".join(held)[: len(held[0])].encode()

    async def story():
        workers = [await lab.action(name, "about") for name in ("one", "two")]
        pid = lab.kernel.spawn.stats()["template"]
        folder = f"/proc/{pid}"
        descriptors = [os.readlink(f"{folder}/fd/{number}") for number in os.listdir(f"{folder}/fd")]
        with open(f"{folder}/environ") as file:
            environment = file.read().split("\0")
        with open(f"{folder}/maps") as file:
            mapped = {line.split()[5] for line in file if len(line.split()) > 5}
        worker = workers[0]["pid"]
        own = [os.readlink(f"/proc/{worker}/fd/{number}") for number in os.listdir(f"/proc/{worker}/fd")]
        return {
            "descriptors": sorted(one.partition(":")[0] for one in descriptors),
            "own": sorted({one.partition(":")[0] for one in own}),
            "environment": [one.partition("=")[0] for one in environment if one],
            "mapped": sorted(one for one in mapped if not one.startswith(("/usr/", "/lib/", "["))),
            "threads": len(os.listdir(f"{folder}/task")),
            "holds": parts["memory_holds"](pid, secret),
            "workers": workers,
        }

    return lab.serve(story, isolation={f"module:{name}": "process" for name in ("one", "two")})


def test_the_template_holds_nothing_of_the_host(case):
    """It has one thread, one socket, and neither the environment of the host nor a file of it; workers have less."""
    told = case.run(contents, SECRET)
    assert told["threads"] == 1
    assert told["descriptors"].count("socket") == 1
    assert set(told["descriptors"]) <= {"socket", "/dev/null", "pipe", "/dev/pts/0"} | {
        one for one in told["descriptors"] if one.startswith(("/dev/", "/tmp/"))
    }
    assert "socket" in told["own"]
    assert "HOST_SECRET" not in told["environment"]
    assert not told["holds"]
    assert not [one for one in told["mapped"] if ".db" in one or "state" in one]
    one, two = told["workers"]
    assert one["pid"] != two["pid"]
    assert one["random"] != two["random"]
    for worker in told["workers"]:
        assert dict(line.split(":\t") for line in worker["status"]) == {
            "NoNewPrivs": "1",
            "Seccomp": "2",
            "CapEff": worker["status"][0].split("\t")[1] if worker["status"][0].startswith("CapEff") else "",
        }


def outages(world):
    """Kill and stop the template, and the fork that waits for the next request, while workers start."""
    import asyncio
    import signal

    lab = (parts := world.load(LAB))["Lab"](world)
    names = [f"m{number}" for number in range(12)]
    for name in names:
        lab.house.extension(name, MODULE)
    spawn = lab.kernel.spawn

    async def all_answer():
        found = await asyncio.gather(*(lab.action(name, "about") for name in names))
        return len({one["pid"] for one in found})

    async def end_all():
        for module in lab.house.runtime.modules.all_loaded():
            module.worker.rest()

    def forks():
        found = []
        for pid in filter(str.isdecimal, os.listdir("/proc")):
            fields = parts["stat_of"](pid)
            if fields and fields["name"] == "dsb-template" and fields["parent"] == spawn.pid:
                found.append(int(pid))
        return [pid for pid in found if pid != spawn.stats()["template"]]

    def is_stopped(pid):
        fields = parts["stat_of"](pid)
        return bool(fields) and fields["state"] == "T"

    async def waiting_forks():
        while not (found := forks()):
            await asyncio.sleep(0.01)
        return found

    async def story():
        told = {"first": await all_answer()}
        template = spawn.stats()["template"]
        os.kill(template, signal.SIGKILL)
        told["kept"] = await all_answer()
        await end_all()
        killing = asyncio.create_task(asyncio.to_thread(_kill_for_a_while, spawn))
        told["killed"] = await all_answer()
        await killing
        await end_all()
        for number in (signal.SIGKILL, signal.SIGSTOP):
            for fork in await waiting_forks():
                os.kill(fork, number)
            told[f"fork {number.name}"] = await all_answer()
            await end_all()
        stopped = [fork for fork in forks() if is_stopped(fork)]
        while any(map(is_stopped, stopped)):
            await asyncio.sleep(0.05)
        os.kill(spawn.stats()["template"], signal.SIGSTOP)
        told["stopped"] = await all_answer()
        stopped = spawn.stats()["template"]
        while spawn.stats()["template"] in (0, template):
            await asyncio.sleep(0.05)
        await end_all()
        told["after"] = await all_answer()
        told["replaced"] = stopped != template
        server, template = spawn.pid, spawn.stats()["template"]
        os.kill(server, signal.SIGKILL)
        while not await asyncio.to_thread(spawn.answers, 1):
            await asyncio.sleep(0.01)
        while os.path.exists(f"/proc/{template}"):
            await asyncio.sleep(0.01)
        while type(await lab.action(names[0], "about")) is not dict:
            await asyncio.sleep(0.01)
        while not spawn.stats()["template"]:
            await asyncio.sleep(0.01)
        told["next server"] = spawn.stats()["template"] != template
        return told

    def _kill_for_a_while(spawn):
        import time

        for _ in range(5):
            if pid := spawn.stats()["template"]:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    return lab.serve(story, isolation={f"module:{name}": "process" for name in names})


def test_workers_start_while_the_template_is_killed_or_stopped(case):
    """Without the template a worker is started as a new interpreter; the server replaces the template."""
    assert case.run(outages) == {
        "first": 12,
        "kept": 12,
        "killed": 12,
        "fork SIGKILL": 12,
        "fork SIGSTOP": 12,
        "stopped": 12,
        "after": 12,
        "replaced": True,
        "next server": True,
    }


def preloaded(world):
    """Preload a module of the standard library, and one that fails."""
    lab = world.load(LAB)["Lab"](world, template=["colorsys", "not_there"])
    lab.house.extension("demo", MODULE)

    async def story():
        return await lab.action("demo", "about")

    return lab.serve(story, isolation={"module:demo": "process"})


def test_preloaded_packages_are_imported_in_every_worker(case):
    """One that cannot be imported stops nothing."""
    assert case.run(preloaded)["imported"] is True


def test_the_command_names_the_environment_and_the_packages():
    """The template uses the host's environment, which most workers have."""
    from democrai_sandbox.runtime.child_process import PREFIX
    from democrai_sandbox.runtime.worker.process import template_command

    assert template_command()[-2:] == ("template", PREFIX)
    assert template_command(["numpy"])[-3:] == ("template", PREFIX, "numpy")
    assert Path(template_command()[0]).is_absolute()


def test_restarts_of_the_template_are_counted():
    """The supervisor sees another process in its place."""
    from democrai_sandbox.kernel.application import Supervisor
    from democrai_sandbox.kernel.spawn import SpawnServer
    from democrai_sandbox.runtime.worker.process import template_command

    server = SpawnServer.start(template=template_command())
    supervisor = Supervisor(server, None)
    try:
        supervisor.look()
        os.kill(server.template_pid, signal.SIGKILL)
        for _ in range(1000):
            supervisor.look()
            if supervisor.parts()["template"].restarts:
                break
            time.sleep(0.01)
        found = supervisor.parts()
    finally:
        server.stop()
    assert (found["template"].restarts, found["template"].up, found["spawn_server"].restarts) == (1, True, 0)
