"""``democrai-sandbox serve`` as its surroundings see it: the service manager, the environment, the log, signals."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time

import httpx

from tests.console.serving import serving, until
from tests.services.pace import Paced

SLOW = """
import os, time
from democrai_sandbox import sdk

@sdk.action("slow")
def slow(seconds):
    sdk.data_dir().joinpath("begun").write_text("")
    time.sleep(seconds)
    return "done"

@sdk.action("log")
def log(text):
    import logging

    logging.getLogger("democrai_sandbox.console").error(text)

@sdk.task("long")
def long():
    sdk.data_dir().joinpath("begun").write_text("")
    time.sleep(600)

@sdk.action("environment")
def environment():
    return sorted(name for name in os.environ if name.startswith("DEMOCRAI_CONFIG"))
"""


def slow_module(folder):
    """A folder with a module that takes its time."""
    place = folder / "more" / "slow"
    place.mkdir(parents=True)
    (place / "manifest.json").write_text('{"name": "slow"}')
    (place / "module.py").write_text(SLOW)
    return {"modules_path": str(folder / "more")}


def test_a_request_that_runs_is_answered_before_the_end(tmp_path):
    """After SIGTERM nobody new gets in, what runs gets its answer, and the exit status is 0."""
    with serving(tmp_path, slow_module(tmp_path), extensions=False, fresh=True) as served:
        answers = []

        def ask():
            with served.bearer(served.administrator()) as client:
                answers.append(client.post("/api/v1/modules/slow/actions/slow", json={"params": {"seconds": 3}}))

        thread = threading.Thread(target=ask)
        thread.start()
        until((tmp_path / "state" / "data" / "modules" / "slow" / "begun").exists, "the call")
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(60) == 0
        thread.join(60)
        assert [answer.json().get("result") for answer in answers] == ["done"]


def test_a_second_signal_hurries(tmp_path):
    """A call that would take a minute does not hold up somebody who means it."""
    with serving(tmp_path, slow_module(tmp_path), extensions=False, fresh=True) as served:

        def ask():
            try:
                with served.bearer(served.administrator()) as client:
                    client.post("/api/v1/modules/slow/actions/slow", json={"params": {"seconds": 25}})
            except httpx.HTTPError:
                pass

        thread = threading.Thread(target=ask)
        thread.start()
        until((tmp_path / "state" / "data" / "modules" / "slow" / "begun").exists, "the call")
        with Paced() as ending:
            for _ in range(3):
                served.process.send_signal(signal.SIGTERM)
                time.sleep(0.5)
            served.process.wait(60)
        assert ending.seconds < 10
        thread.join(60)


def test_what_is_kept_from_modules(tmp_path):
    """Settings from the environment count and are not left there; what modules log is with what they print."""
    environ = {"DEMOCRAI_CONFIG__CONSOLE__IDLE_MINUTES": "7"}
    with serving(tmp_path, slow_module(tmp_path), extensions=False, environ=environ) as served:
        with served.bearer(served.administrator()) as client:
            answer = client.post("/api/v1/modules/slow/actions/environment", json={"params": {}})
            assert answer.json()["result"] == []
            client.post("/api/v1/modules/slow/actions/log", json={"params": {"text": "all is well"}}).raise_for_status()
            assert "all is well" in client.get("/api/v1/extensions/module/slow").text
        assert "all is well" not in served.log.read_text()


def test_the_service_manager_is_told(tmp_path):
    """READY when it serves, STOPPING when it ends."""
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(60)
        with serving(tmp_path, extensions=False, environ={"NOTIFY_SOCKET": path}) as served:
            assert manager.recv(100) == b"READY=1"
            served.stop()
        assert manager.recv(100) == b"STOPPING=1"


def test_a_process_that_was_killed_leaves_nothing_in_the_way(tmp_path):
    """After SIGKILL the next one starts on the same state, knows the same people, and tells which tasks are lost."""
    with serving(tmp_path, slow_module(tmp_path), extensions=False, fresh=True) as served:
        served.person("uma")
        with served.bearer(served.administrator()) as client:
            task = client.post("/api/v1/modules/slow/tasks/long", json={"params": {}}).json()["id"]
            until((tmp_path / "state" / "data" / "modules" / "slow" / "begun").exists, "the task")
        served.stop(signal.SIGKILL)
        served.start()
        assert {person.name for person in served.accounts.people()} == {"admin", "uma"}
        with served.bearer(served.administrator()) as client:
            assert client.get(f"/api/v1/tasks/{task}").json()["state"] == "lost"


def test_a_live_stream_does_not_hold_up_the_end(tmp_path):
    """A page that listens for changes is let go when the server stops."""
    with serving(tmp_path, extensions=False, fresh=True) as served, served.signed_in() as client:
        path = "/live"
        with client.stream("GET", path, headers={"Accept": "text/event-stream"}) as stream:
            assert stream.status_code == 200, path
            with Paced() as ending:
                os.kill(served.process.pid, signal.SIGTERM)
                assert served.process.wait(60) == 0
            assert ending.seconds < 9
            until(lambda: served.process.poll() is not None)
