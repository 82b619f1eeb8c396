"""``democrai-sandbox serve`` from outside: service manager, environment, log and signals."""

from __future__ import annotations

import signal
import socket
import threading
from types import SimpleNamespace
from urllib.parse import urlsplit

import httpx
import pytest

from tests.console.serving import CHEAPLY, serving, until

SLOW = """
import os, time
from democrai_sandbox import sdk

@sdk.action("slow")
def slow():
    folder = sdk.data_dir()
    folder.joinpath("begun").write_text("")
    while not folder.joinpath("go").exists():
        time.sleep(0.02)
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
PATIENTLY = f"{CHEAPLY}from democrai_sandbox.console import server\nserver.PATIENCE = 3600"
"""Waits an hour for running requests when it stops, so that an end is never the end of that patience."""


def slow_module(folder):
    """A folder with a slow module."""
    place = folder / "more" / "slow"
    place.mkdir(parents=True)
    (place / "manifest.json").write_text('{"name": "slow"}')
    (place / "module.py").write_text(SLOW)
    return {"modules_path": str(folder / "more")}


def asking(served, answers):
    """Start a thread that calls the slow action; return it when the call runs."""

    def ask():
        try:
            with served.bearer(served.administrator()) as client:
                answers.append(client.post("/api/v1/modules/slow/actions/slow", json={"params": {}}))
        except httpx.HTTPError as error:
            answers.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    until((data_of(served) / "begun").exists, "the call")
    return thread


def data_of(served):
    return served.folder / "state" / "data" / "modules" / "slow"


def is_refused(served):
    """Whether new connections are refused."""
    address = urlsplit(served.url)
    with socket.socket() as door:
        return door.connect_ex((address.hostname, address.port)) != 0


@pytest.fixture(scope="module")
def life(tmp_path_factory):
    """Events of a served process until SIGTERM, during a call and an open live stream."""
    folder = tmp_path_factory.mktemp("life")
    found = SimpleNamespace(told=[], answers=[])
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(folder / "notify"))
        manager.settimeout(60)
        environ = {"DEMOCRAI_CONFIG__CONSOLE__IDLE_MINUTES": "7", "NOTIFY_SOCKET": str(folder / "notify")}
        with serving(folder, slow_module(folder), extensions=False, environ=environ, before=PATIENTLY) as served:
            found.told.append(manager.recv(100))
            with served.bearer(served.administrator()) as client:
                answer = client.post("/api/v1/modules/slow/actions/environment", json={"params": {}})
                found.environment = answer.json()["result"]
                logged = client.post("/api/v1/modules/slow/actions/log", json={"params": {"text": "all is well"}})
                logged.raise_for_status()
                found.page = client.get("/api/v1/extensions/module/slow").text
            thread = asking(served, found.answers)
            with served.signed_in() as client:
                with client.stream("GET", "/live", headers={"Accept": "text/event-stream"}) as stream:
                    found.stream = stream.status_code
                    served.process.send_signal(signal.SIGTERM)
                    until(lambda: is_refused(served), "closing the door")
                    found.answered_early = bool(found.answers)
                    (data_of(served) / "go").touch()
                    found.status = served.process.wait(60)
            thread.join(60)
            found.told.append(manager.recv(100))
            found.log = served.log.read_text()
    return found


def test_a_request_that_runs_is_answered_before_the_end(life):
    """After SIGTERM new connections are refused, running calls are answered, and the status is 0."""
    assert not life.answered_early
    assert [answer.json().get("result") for answer in life.answers] == ["done"]
    assert life.status == 0


def test_a_live_stream_does_not_hold_up_the_end(life):
    """Open event streams are closed when the server stops."""
    assert (life.stream, life.status) == (200, 0)


def test_what_is_kept_from_modules(life):
    """Settings are removed from the environment; log records of modules are in their output."""
    assert life.environment == []
    assert "all is well" in life.page
    assert "all is well" not in life.log


def test_the_service_manager_is_told(life):
    """The service manager gets READY and STOPPING."""
    assert life.told == [b"READY=1", b"STOPPING=1"]


def test_a_second_signal_hurries(tmp_path):
    """An endless call does not delay the end after a second signal."""
    with serving(tmp_path, slow_module(tmp_path), extensions=False, before=PATIENTLY) as served:
        thread = asking(served, [])

        def ends():
            served.process.send_signal(signal.SIGTERM)
            return served.process.poll() is not None

        until(ends, "the end")
        thread.join(60)


def test_a_process_that_was_killed_leaves_nothing_in_the_way(tmp_path):
    """After SIGKILL the next start uses the same state, and reports lost tasks."""
    with serving(tmp_path, slow_module(tmp_path), extensions=False) as served:
        served.person("uma")
        with served.bearer(served.administrator()) as client:
            task = client.post("/api/v1/modules/slow/tasks/long", json={"params": {}}).json()["id"]
            until((data_of(served) / "begun").exists, "the task")
        served.stop(signal.SIGKILL)
        served.start()
        assert {person.name for person in served.accounts.people()} == {"admin", "uma"}
        with served.bearer(served.administrator()) as client:
            assert client.get(f"/api/v1/tasks/{task}").json()["state"] == "lost"
