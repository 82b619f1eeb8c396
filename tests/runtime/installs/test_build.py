"""Real installations: pip in the guard of the install phase, all or nothing."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.guard.harness import CHILD
from tests.runtime.installs.conftest import HOSTING, rule
from tests.runtime.installs.packages import source
from tests.services.golden import sentence


def twice(world):
    hosting = world.load(world.args[0])
    installer = hosting["installer_of"](world.base, asking=True)
    steps = []
    told = {"before": installer.status().state, "first": hosting["install"](installer, steps)}
    told["stages"] = list(dict.fromkeys(step.stage for step in steps))
    told["after"] = installer.status().state
    hosting["know_pip"]()  # pip was asked once
    told["second"] = hosting["install"](installer)
    told["again"] = hosting["install"](installer, again=True)
    told["left"] = hosting["left"](installer)
    told["last"] = installer.status().progress
    with open(f"{world.base}/engines/demo/tiny/backend/own_backend.py", "a") as file:
        file.write("raise RuntimeError('half way')\n")
    installer = hosting["installer_of"](world.base)
    told["broken"] = hosting["install"](installer)
    status = installer.status()
    told["status"] = [status.state, status.environment, status.problem, status.progress]
    told["left by the broken one"] = hosting["left"](installer)
    told["require"] = str(hosting["caught"](installer.require))
    return told


def test_an_environment_is_built_once_and_verified_and_outlives_one_that_fails(workshop):
    """A local package and a wheel are installed; the second time nothing is done; on demand it is rebuilt.

    An installation that fails midway reports pip's last lines, leaves nothing behind, and keeps the previous
    environment.
    """
    folder = workshop.extension("./tiny", "helper>=1")
    source(folder / "tiny", "tiny")
    workshop.wheel("helper", "1.5", requires=["base"])
    workshop.wheel("base", "2.0")
    told = workshop.host(twice)
    assert told["before"] == "missing"
    assert told["first"]["packages"] == ["base==2.0", "helper==1.5", "tiny==1.0"], told["first"]
    assert told["stages"] == ["prepare", "resolve", "build", "install", "verify", "done"]
    assert told["after"] == "ready"
    assert told["second"]["folder"] == told["first"]["folder"]
    assert told["again"]["folder"] != told["first"]["folder"]
    # The previous one is removed, and so are the temporary files and the start files of the build.
    assert told["left"] == [Path(told["again"]["folder"]).name]
    assert told["last"][0] == "done"
    site = next(Path(told["again"]["folder"]).glob("lib/python*/site-packages"))
    assert not list(site.glob("democrai*"))
    assert not list(folder.rglob("*.egg-info"))
    assert (site / "tiny.py").is_file()
    assert told["broken"]["error"] == "InstallFailed"
    assert "half way" in told["broken"]["text"]
    state, environment, problem, progress = told["status"]
    assert (state, environment) == ("outdated", told["again"]["folder"])
    assert "half way" in problem
    assert progress[0] == "failed"
    assert told["left by the broken one"] == told["left"]
    assert "democrai-sandbox extensions install engine:demo" in told["require"]


PROBES = """
import json, os, socket, subprocess, sys, urllib.request

def verdict(action):
    try:
        return str(action())
    except BaseException as error:
        return type(error).__name__

SECRET, DATA, OPEN, SHUT = {places!r}

def child(*options, **more):
    code = "import sys; sys.stdout.write(open(%r).read())" % SECRET
    done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, **more)
    return done.stdout or done.stderr.strip().splitlines()[-1].partition(":")[0]

def fetch(url):
    with urllib.request.urlopen(url, timeout=3) as answer:
        return answer.status

if not os.path.exists("verdicts"):
    open("verdicts", "w").close()
    found = {{
        "secret": verdict(lambda: open(SECRET).read()),
        "data of others": verdict(lambda: os.listdir(DATA)),
        "declared": verdict(lambda: fetch(OPEN)),
        "not declared": verdict(lambda: fetch(SHUT)),
        "socket": verdict(lambda: socket.create_connection(("127.0.0.1", int(SHUT.rpartition(":")[2])), 1)),
        "program": verdict(lambda: os.system("true")),
        "child": verdict(child),
        "isolated child": verdict(lambda: child("-I")),
        "child without environment": verdict(lambda: child(env={{}})),
        "own variables": verdict(lambda: os.environ.update(DEMOCRAI_ACCESS="[]")),
        "start file": verdict(lambda: type(sys.modules.get("democrai_start")).__name__),
        "ctypes": verdict(lambda: __import__("ctypes")),
        "way to the host": verdict(lambda: os.environ.get("DEMOCRAI_INSTALL_CONTROL")),
        "home": verdict(lambda: os.path.expanduser("~")),
        "host's variables": verdict(lambda: os.environ.get("HOST_TOKEN")),
    }}
    with open("tiny.py", "a") as file:
        file.write("FOUND = %r" % found)
"""


def once(world):
    hosting = world.load(world.args[0])
    installer = hosting["installer_of"](world.base, **(world.args[1] if len(world.args) > 1 else {}))
    told = hosting["install"](installer)
    return {**told, "left": hosting["left"](installer), "state": installer.status().state}


def test_what_pip_starts_is_stopped_at_the_same_places(workshop, web):
    """A build backend, and its Python children, rebuild the guard of the install phase from the environment."""
    (workshop.base / "data" / "modules" / "other").mkdir(parents=True)
    places = (str(workshop.secret), str(workshop.base / "data" / "modules"), web.url, web.other_url)
    folder = workshop.extension(
        "./tiny", access=[rule("receive", web.url)], runtime={"access": [rule("receive", web.other_url)]}
    )
    source(folder / "tiny", "tiny", before=PROBES.format(places=places))
    told = workshop.host(once, HOST_TOKEN="secret")
    site = next(Path(told["folder"]).glob("lib/python*/site-packages"))
    found = ast.literal_eval((site / "tiny.py").read_text().partition("FOUND = ")[2])
    assert found == {
        "secret": "FilesystemDenied",
        "data of others": "FilesystemDenied",
        "declared": "200",
        # Declarations of the runtime phase do not apply during an installation.
        "not declared": "NetworkDenied",
        "socket": "NetworkDenied",
        "program": "0",
        "child": "democrai_sandbox.errors.FilesystemDenied",
        "isolated child": "democrai_sandbox.errors.FilesystemDenied",
        "child without environment": "democrai_sandbox.errors.FilesystemDenied",
        "own variables": "EnvironmentDenied",
        "start file": "module",
        "ctypes": "ModuleDenied",
        "way to the host": "None",
        "home": found["home"],
        "host's variables": "None",
    }
    assert found["home"].startswith(str(workshop.base / "data" / "installs"))


def test_packages_that_do_not_fit_together_are_not_used(workshop):
    """For any cause: the complete environment is checked, and removed if invalid."""
    stray = "Metadata-Version: 2.1\nName: other\nVersion: 1.0\nRequires-Dist: absent\n"
    workshop.wheel("helper", extra={"helper-1.0.data/purelib/other-1.0.dist-info/METADATA": stray})
    workshop.extension("helper")
    told = workshop.host(once)
    assert told["error"] == "InstallFailed"
    assert {"other", "1.0", "absent"} <= set(re.findall(r"[\w.]*\w", told["text"]))
    sentence("packages that do not fit", told["text"].splitlines()[0])
    assert told["left"] == []


LEAD_ELSEWHERE = """
import sysconfig
folder = sysconfig.get_path("purelib")
if not os.path.islink(folder):
    os.rename(folder, folder + ".mine")
    os.symlink(folder + ".mine", folder)
"""


def test_an_environment_that_leads_elsewhere_is_not_used(workshop):
    """Otherwise its target would be read and trusted as library code."""
    source(workshop.extension("./tiny") / "tiny", "tiny", before=LEAD_ELSEWHERE)
    told = workshop.host(once)
    assert told["error"] == "InstallFailed"
    sentence("an environment that leads elsewhere", told["text"].splitlines()[0])
    assert told["left"] == []


GATE = """
import time
while not os.path.exists({gate!r}):
    time.sleep(0.02)
"""


def gated(workshop):
    """Write an engine whose build waits until a file appears."""
    gate = workshop.base / "gate"
    folder = workshop.extension("./tiny", access=[rule("read", gate)])
    source(folder / "tiny", "tiny", before=GATE.format(gate=str(gate)))
    return gate


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_host_that_is_killed_leaves_nothing_that_is_used(workshop):
    """All build processes end with it; the next installation removes the leftovers, and finishes."""
    gate = gated(workshop)
    spec = {"file": __file__, "body": "once", "base": str(workshop.base), "args": [HOSTING], "guard": None}
    command = [sys.executable, "-P", str(CHILD), json.dumps(spec)]
    environment = workshop.environment(**workshop.offline())
    host = subprocess.Popen(command, env=environment, cwd=workshop.base, stdout=subprocess.DEVNULL)
    wait_for(lambda: building(workshop))
    host.send_signal(signal.SIGKILL)
    host.wait()
    wait_for(lambda: not building(workshop))
    leftovers = os.listdir(workshop.base / "data/installs/engines/demo/environments")
    assert len(leftovers) == 2
    assert not (workshop.base / "data/installs/engines/demo/current").exists()
    gate.touch()
    told = workshop.host(once)
    assert told["packages"] == ["tiny==1.0"]
    assert not set(told["left"]) & set(leftovers)


def building(workshop):
    """Return the processes that run in the build's source folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if os.readlink(entry).startswith(str(workshop.base / "data")) and "sources/tiny" in os.readlink(entry):
                found.append(entry)
        except OSError:
            continue
    return found


def cancel(world):
    import asyncio

    hosting = world.load(world.args[0])
    installer = hosting["installer_of"](world.base)

    async def work():
        begun = asyncio.Event()
        task = asyncio.create_task(installer.install(lambda step: step.stage == "build" and begun.set()))
        await begun.wait()
        both = hosting["caught"](installer.place.locked().__enter__)
        task.cancel()
        await asyncio.wait([task])
        return [type(both).__name__, task.cancelled()]

    return [*asyncio.run(work()), installer.status().state, hosting["left"](installer)]


def test_an_installation_can_be_cancelled(workshop):
    """Its processes end and its files are removed; meanwhile no other process can build in the same place."""
    gated(workshop)
    assert workshop.host(cancel) == ["InstallBusy", True, "missing", []]
    assert building(workshop) == []


def test_extractors_are_installed_by_the_same_code(workshop):
    """The kind is the only difference; without requirements pip is not needed."""
    workshop.extension(kind="extractor")
    told = workshop.host(
        once, {"kind": "extractor"}, network={"PIP_CONFIG_FILE": "/nonexistent/pip.conf", "PIP_PROXY": "no url"}
    )
    assert told["packages"] == []
    assert "/installs/extractors/demo/" in told["folder"]
