"""A node whose spawn server, helper or keeper is killed or stopped, or whose disk is full: real ones, as root."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from democrai_sandbox.cli.output import Exit
from tests.cluster.machines import Node
from tests.console.serving import CHEAPLY, PATIENCE, PLAIN, serving, until
from tests.console.test_outage import values
from tests.kernel.netlab import needs_netlab, shared_lab

NET = """
import asyncio
from democrai_sandbox import sdk

@sdk.action("open")
async def open_connection(host, port):
    _, writer = await asyncio.open_connection(host, port)
    writer.close()

@sdk.action("child")
async def child():
    return (await sdk.tasks.run_subprocess(["/bin/echo", "x"])).stdout.decode()
"""
MANIFEST = {
    "name": "net",
    "access": [
        {"resource_type": "network", "operation": "connect", "target": "10.77.0.0/24"},
        {"resource_type": "system_dependency", "operation": "execute", "target": "/bin/echo"},
    ],
}
EVERYTHING = {"enabled": True, "landlock": {"enabled": True}, "seccomp": {"enabled": True}}
LATE = 1.5
"""Seconds in which a loop that is not blocked answers, on a busy machine; blocked ones took two and more."""


@pytest.fixture
def lab():
    """A network of its own."""
    with shared_lab() as found:
        yield found


@contextmanager
def node_in(lab, folder, **more):
    """A node with all of the kernel layer, and a module that runs in its process."""
    module = folder / "modules" / "net"
    module.mkdir(parents=True)
    (module / "manifest.json").write_text(json.dumps(MANIFEST))
    (module / "module.py").write_text(NET)
    config = {
        "modules_path": str(module.parent),
        "sandbox": {"os": EVERYTHING, "isolation": {"module:net": "in_process"}},
    }
    database = f"sqlite:///{folder}/state/sandbox.db"
    node = Node(folder, config, lab.inside, database, extensions=False, before=CHEAPLY, **more)
    try:
        yield node
    finally:
        for name in SCRIPTS:
            signalled(node, name, signal.SIGCONT)
        node.stop()
        node.web.stop()


SCRIPTS = {"spawn_server": b"kernel/spawn/server.py", "keeper": b"egress/keeper.py", "helper": b"helper/__main__.py"}


def processes(node, name):
    """The numbers of the processes of a part of this node."""
    found, own = [], b"%d" % node.process.pid
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        script = next((word for word in words if word.endswith(b".py")), b"")
        if script.endswith(SCRIPTS[name]) and own in words:
            found.append(int(entry.name))
    return sorted(found)


def signalled(node, name, number):
    """Send a signal to all processes of a part."""
    for pid in processes(node, name):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def check(node, name):
    """The status of /health/ready, and the state of one check."""
    found = node.readiness() or {"status": 0}
    return found["status"], found.get(name)


class Pulse:
    """Asks all the time whether a node lives, and keeps how long the slowest answer took."""

    def __init__(self, node):
        self.slowest = 0.0
        self._node = node
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _run(self):
        with self._node.client() as client:
            while not self._over.wait(0.05):
                began = time.monotonic()
                client.get("/health/live")
                self.slowest = max(self.slowest, time.monotonic() - began)


def logged(node, part):
    """The messages of the supervisor about a part."""
    lines = [json.loads(line) for line in node.log.read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if line["logger"].endswith("supervisor") and part in line["message"]]


def metrics(node):
    with node.bearer(node.administrator()) as client:
        return values(client.get("/metrics"))


@needs_netlab
def test_a_stopped_helper(tmp_path, lab):
    """The node is not ready, the log says so, and calls fail soon instead of blocking the event loop."""
    port = lab.world.serve("tcp", lab.world.v4).port
    lab.world.serve("tcp", lab.world.more_v4[0], port)
    with node_in(lab, tmp_path) as node, node.bearer(node.administrator()) as client:
        ask = lambda host: (
            client.post("/api/v1/modules/net/actions/open", json={"params": {"host": host, "port": port}}).status_code
        )
        assert (check(node, "helper"), check(node, "keeper")) == ((200, "ok"), (200, "ok"))
        assert ask(lab.world.v4) == 200
        signalled(node, "keeper", signal.SIGSTOP)  # it would have the helper go on
        signalled(node, "helper", signal.SIGSTOP)
        with Pulse(node) as pulse:
            assert ask(lab.world.more_v4[0]) == 503  # before anything has noticed it
            until(lambda: check(node, "helper") == (503, "failed"), "noticing it")
            until(lambda: logged(node, "helper"), "the log")
            for address in (*lab.world.more_v4, *lab.world.more_v4):
                assert ask(address) == 503
        assert pulse.slowest < LATE
        assert metrics(node)['democrai_process_up{process="helper"}'] == 0
        signalled(node, "helper", signal.SIGCONT)
        signalled(node, "keeper", signal.SIGCONT)
        until(lambda: check(node, "helper") == (200, "ok"), "its return")
        until(lambda: ask(lab.world.more_v4[0]) == 200, "connections")


@needs_netlab
def test_a_stopped_helper_goes_on(tmp_path, lab):
    """Its keeper sees that it stands still, and has it go on."""
    with node_in(lab, tmp_path) as node:
        helper = min(processes(node, "helper"))
        os.kill(helper, signal.SIGSTOP)
        until(lambda: Path(f"/proc/{helper}/stat").read_text().rpartition(")")[2].split()[0] != "T", "going on")
        until(lambda: check(node, "helper") == (200, "ok"), "its answer")


@needs_netlab
def test_a_killed_helper(tmp_path, lab):
    """It is started again, and that is counted and logged."""
    with node_in(lab, tmp_path) as node:
        until(lambda: 'democrai_process_up{process="helper"}' in metrics(node), "the first look")
        signalled(node, "helper", signal.SIGKILL)
        until(lambda: metrics(node)['democrai_process_restarts_total{process="helper"}'] == 1, "another one")
        until(lambda: check(node, "helper") == (200, "ok"), "its answer")
        assert logged(node, "helper")


@needs_netlab
def test_stopped_spawn_servers(tmp_path, lab):
    """Programs are refused within seconds, the event loop goes on, and the process ends in time."""
    with node_in(lab, tmp_path) as node, node.bearer(node.administrator()) as client:
        ask = lambda: client.post("/api/v1/modules/net/actions/child", json={"params": {}})
        assert ask().json()["result"] == "x\n"
        signalled(node, "spawn_server", signal.SIGSTOP)
        with Pulse(node) as pulse:
            began = time.monotonic()
            assert ask().status_code == 503
            assert time.monotonic() - began < 15
            assert check(node, "spawn_server") == (503, "failed")
        assert pulse.slowest < LATE
        began = time.monotonic()
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(PATIENCE) == 0
        assert time.monotonic() - began < 30


@needs_netlab
@pytest.mark.parametrize("lost", [("spawn_server",), ("keeper", "helper")])
def test_what_cannot_be_started_again(tmp_path, lab, lost):
    """With nothing left that could start it the node ends with 3, on which the service manager starts it anew."""
    with node_in(lab, tmp_path) as node:
        until(lambda: len(processes(node, lost[0])) == 2, "a standby")
        for name in lost:
            signalled(node, name, signal.SIGKILL)
        assert node.process.wait(PATIENCE) == Exit.UNREACHABLE
        assert any(line["level"] == "critical" for line in logged(node, ""))


@needs_netlab
def test_a_killed_keeper(tmp_path, lab):
    """Its standby takes its place, which is counted and logged, and starts a helper that is killed after it."""
    restarts = "democrai_process_restarts_total"
    with node_in(lab, tmp_path) as node:
        until(lambda: 'democrai_process_up{process="keeper"}' in metrics(node), "the first look")
        keeper, standby = until(lambda: len(found := processes(node, "keeper")) == 2 and found, "a standby")
        os.kill(keeper, signal.SIGKILL)
        until(lambda: metrics(node)[f'{restarts}{{process="keeper"}}'] == 1, "another one")
        assert check(node, "keeper") == (200, "ok")
        assert any(str(standby) in line["message"] for line in logged(node, "keeper"))
        signalled(node, "helper", signal.SIGKILL)
        until(lambda: metrics(node)[f'{restarts}{{process="helper"}}'] == 1, "another helper")
        until(lambda: check(node, "helper") == (200, "ok"), "its answer")


@needs_netlab
def test_a_killed_keeper_and_its_standby(tmp_path, lab):
    """The helper goes on, so requests are served; that nothing would start it again is told."""
    with node_in(lab, tmp_path) as node:
        until(lambda: len(processes(node, "keeper")) == 2, "a standby")
        signalled(node, "keeper", signal.SIGKILL)
        until(lambda: check(node, "keeper") == (200, "degraded"), "noticing it")
        until(lambda: logged(node, "keeper"), "the log")


@needs_netlab
def test_every_line_of_the_log_is_json(tmp_path, lab):
    """Those of the helper and the keeper too, and the flow where that is asked for."""
    with node_in(lab, tmp_path, environ={"DEMOCRAI_DEBUG_OS_SANDBOX_FLOW": "1"}) as node:
        signalled(node, "helper", signal.SIGKILL)
        until(lambda: node.log.read_text().count("democrai-os-helper[") > 1, "another one")
    lines = [json.loads(line) for line in node.log.read_text().splitlines()]
    assert {"democrai_sandbox.kernel.helper", "democrai_sandbox.kernel.flow"} <= {line["logger"] for line in lines}


@pytest.fixture
def small_disk(tmp_path):
    """A file system of a few megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", folder]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_full_disk(tmp_path, small_disk):
    """The node is not ready until there is room again; status and metrics are told all the same."""
    with serving(tmp_path, {"state_dir": str(small_disk / "state")}, extensions=False, fresh=True) as served:
        ready = lambda: httpx.get(f"{served.url}/health/ready", **PLAIN, timeout=30)
        token = served.token(served.administrator())
        assert ready().json()["checks"]["disk"] == "ok"
        with (small_disk / "filling").open("wb", 0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))
        answer = ready()
        assert (answer.status_code, answer.json()["checks"]["disk"]) == (503, "failed")
        headers = {"Authorization": f"Bearer {token}"}
        for path in ("/metrics", "/api/v1/status"):
            assert httpx.get(f"{served.url}{path}", **PLAIN, timeout=30, headers=headers).status_code == 200
        (small_disk / "filling").unlink()
        assert ready().status_code == 200
