"""A served process that runs out of resources or loses its database: it reports that and recovers."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from democrai_sandbox.kernel.landlock.rights import landlock_support
from tests.console.serving import CHEAPLY, PLAIN, serving, until


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A process with a low limit of open files."""
    few = f"{CHEAPLY}import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))"
    with serving(tmp_path_factory.mktemp("served"), before=few) as found:
        yield found


def readiness(served):
    """The status of the answer, or 0 without one."""
    try:
        return httpx.get(f"{served.url}/health/ready", **PLAIN, timeout=10).status_code
    except httpx.HTTPError:
        return 0


def test_too_many_connections(served):
    """More connections than descriptors neither stop the server nor fill the log."""
    before = served.log.stat().st_size
    address = urlsplit(served.url)
    many = [socket.socket() for _ in range(200)]
    for one in many:
        one.setblocking(False)
        one.connect_ex((address.hostname, address.port))

    def is_cut_off():
        return any(one.fileno() >= 0 and _is_closed(one) for one in many)

    until(is_cut_off, "closing some")
    for one in many:
        one.close()
    until(lambda: readiness(served) == 200, "serving")
    assert served.log.stat().st_size - before < 200_000


def _is_closed(connection):
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_a_database_that_is_moved_away(served):
    """Until it is back, nothing is decided, answers are 503, and the process is not ready."""
    state = served.folder / "state"
    with served.signed_in() as client, served.bearer(served.administrator()) as admin:
        request = served.stop_weather(admin, "/forecast/moved")
        moved = [file for file in state.glob("sandbox.db*") if not file.name.endswith(".lock")]
        for file in moved:
            file.rename(served.folder / file.name)
        until(lambda: readiness(served) == 503, "noticing it")
        assert client.get("/requests").status_code == 503
        answer = admin.post(f"/api/v1/requests/{request}/approve-session", json={})
        assert (answer.status_code, answer.json()["code"]) == (503, "sandbox_external_access_check_failed")
        assert not (state / "sandbox.db").exists()
        for file in moved:
            (served.folder / file.name).rename(file)
        until(lambda: readiness(served) == 200, "serving")
        assert admin.get(f"/api/v1/requests/{request}").json()["request"]["state"] == "pending"
        admin.post(f"/api/v1/requests/{request}/approve-session", json={}).raise_for_status()
        assert admin.get("/api/v1/audit/verify").json()["ok"] is True
    assert "Traceback" not in "\n".join(line for line in served.log.read_text().splitlines() if "accept()" not in line)


def spawn_servers(served):
    """The process ids of the spawn server and its standby."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.endswith(b"kernel/spawn/server.py") for word in words) and b"%d" % served.process.pid in words:
            found.append(int(entry.name))
    return found


def stands_still(pid):
    """Whether a process was stopped by a signal."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.skipif(landlock_support().abi < 1, reason="needs Landlock")
def test_a_spawn_server_that_stands_still_or_is_killed(tmp_path):
    """It is continued or replaced, and the process serves without a restart."""
    with serving(tmp_path, {"sandbox": {"os": {"seccomp": {"enabled": True}}}}, before=CHEAPLY) as served:
        checks = lambda: httpx.get(f"{served.url}/health/ready", **PLAIN, timeout=30).json()["checks"]
        pids = spawn_servers(served)
        assert len(pids) == 2
        assert checks()["spawn_server"] == "ok"
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        until(lambda: not any(map(stands_still, pids)) and readiness(served) == 200, "going on")
        os.kill(min(pids), signal.SIGKILL)  # either of them is replaced
        until(lambda: len(set(spawn_servers(served)) - {min(pids)}) == 2 and readiness(served) == 200, "a new one")


FLOODING = """
from democrai_sandbox import sdk
import ctypes, struct

KINDS = {
    "tiny": [b'["denied",["failed","","",""]]'] * 5000,
    "malformed": [b"," * 1100001 + b'\\\\"' * 50000],
}

@sdk.action("flood")
def flood(kind):
    libc, given, size = ctypes.CDLL(None), ctypes.c_int(), ctypes.c_uint(4)
    data = b"".join(struct.pack("!III", len(text), 0, 0) + text for text in KINDS[kind])
    is_socket = lambda number: libc.getsockopt(number, 1, 3, ctypes.byref(given), ctypes.byref(size)) == 0
    lines = [number for number in range(3, 64) if is_socket(number)]
    while True:
        for number in lines:
            libc.write(number, data, len(data))
"""


def test_native_code_in_a_worker_that_floods(tmp_path):
    """The caller gets one error per kind of flood, and the process stays healthy."""
    folder = tmp_path / "modules" / "flooding"
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text('{"name": "flooding", "allowed_imports": ["ctypes"]}')
    (folder / "module.py").write_text(FLOODING)
    own = {"modules_path": str(tmp_path / "modules"), "sandbox": {"isolation": {"module:flooding": "process"}}}
    with serving(tmp_path, own, extensions=False) as served, served.bearer(served.administrator()) as admin:
        path, found, over = "/api/v1/modules/flooding/actions/flood", [], threading.Event()

        def watch():
            while not over.wait(0.02):
                found.append(readiness(served))

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            told = [admin.post(path, json={"params": {"kind": kind}}, timeout=90) for kind in ("tiny", "malformed")]
        finally:
            over.set()
            watching.join()
    tiny, malformed = (answer.json()["detail"].partition(":")[0] for answer in told)
    assert tiny in {"worker_flooded", "worker_timeout"}  # a busy host reads slowly, until the call's own time is up
    assert malformed == "worker_failed"
    assert set(found) == {200}
