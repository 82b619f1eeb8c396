"""What `make run` shows, and the example of an application with the sandbox in it."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from democrai_sandbox.sdk import testing
from tests.console.serving import EXTENSIONS, SAME_ORIGIN, Web, until
from tests.services.ports import port

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
pytestmark = pytest.mark.once


class Told:
    """A process whose output is read while it runs."""

    def __init__(self, command, **options):
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, **options
        )
        self.lines = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def text(self):
        return "\n".join(self.lines)

    def wait(self, pattern):
        """Wait until it has said something, and return the match."""

        def said():
            assert self.process.poll() is None or re.search(pattern, self.text), self.text
            return re.search(pattern, self.text)

        return until(said, pattern)

    def end(self, number=signal.SIGINT):
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(60)
        self._thread.join(10)
        self.process.stdout.close()
        return status


@pytest.fixture
def alone():
    """One demonstration at a time on the whole machine: each looks for a free port and takes it a moment later."""
    with Path(tempfile.gettempdir(), f"democrai-demonstration-{os.getuid()}.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        yield


@contextmanager
def demo(folder):
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DEMOCRAI_")}
    environ |= {"PYTHONPATH": str(EXAMPLES), "PYTHONUNBUFFERED": "1"}
    told = Told([sys.executable, "-m", "demo", str(folder)], env=environ)
    try:
        yield told
    finally:
        told.end(signal.SIGTERM)  # so that it ends its server too


@contextmanager
def administrator(told):
    """Sign in at the console that the demonstration named."""
    url = told.wait(r"The console is at +(\S+)")[1]
    name, password = told.wait(r"Sign in as +(\S+) +with the password +(\S+)").groups()
    with httpx.Client(base_url=url, timeout=60, trust_env=False, headers=SAME_ORIGIN) as client:
        assert client.post("/login", data={"name": name, "password": password}).status_code == 303
        yield client


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_the_demonstration_leads_through_its_story(tmp_path):
    """Stopped, approved in the console, gone on, shown, in the audit; every address that it prints is there."""
    with demo(tmp_path / "demo") as told, administrator(told) as client:
        request = told.wait(r"/requests/(\w+)")[1]
        assert "External URL is locked" in told.text
        assert client.post(f"/api/v1/requests/{request}/approve-session", json={"reason": "fine"}).status_code == 200
        told.wait("Ctrl-C ends it")
        assert "admin has decided: for this session (fine)" in told.text
        assert '"forecast": "Oslo: sunny, 21 degrees, light wind from the west"' in told.text
        for address in set(re.findall(rf"{client.base_url}(/?\S*)", told.text)):
            found = client.get(address or "/", follow_redirects=True)
            assert (found.status_code, found.url.path == "/login") == (200, False), address
        assert told.end() == 0
        assert told.lines[-1] == "Ended."


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_the_demonstration_takes_a_no_and_another_port(tmp_path):
    """With its port taken it takes the next one and says so; denied, it says what that means; it starts anew."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 8420))
            taken.listen()
        except OSError:
            pass  # somebody has it: that is what this is about
        for _ in range(2):
            with demo(tmp_path / "demo") as told, administrator(told) as client:
                assert "Port 8420 is taken" in told.text
                request = told.wait(r"/requests/(\w+)")[1]
                assert client.post(f"/api/v1/requests/{request}/deny", json={}).status_code == 200
                told.wait("Ctrl-C ends it")
                assert "So the module stays stopped" in told.text
                assert told.end(signal.SIGTERM) == 0


def test_the_demonstration_spares_a_folder_that_is_not_its_own(tmp_path):
    """A folder with something else in it is refused, and left as it is."""
    (tmp_path / "letter.txt").write_text("mine")
    with demo(tmp_path) as told:
        assert told.process.wait(60) == 1
        told.wait("is not empty, and not of the demonstration")
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_weather_asks_for_what_it_was_told_to_fetch():
    """The example module of the story declares nothing, and asks for the page alone."""
    web = Web()
    try:
        page = f"{web.url}/forecast/oslo"
        approved = {"resource_type": "network", "operation": "receive", "target": page}
        with testing.module(EXTENSIONS / "modules" / "weather", approve=[approved]) as weather:
            assert weather.action("fetch", url=page)["forecast"] == "GET /forecast/oslo"
            assert weather.render()["forecast"] == "GET /forecast/oslo"
            weather.assert_accesses([("network", "receive", page)])
    finally:
        web.stop()


@contextmanager
def embedded(folder):
    """Serve examples/embedding.py as its author would, and give a way in for each of its people."""
    shutil.copytree(EXTENSIONS / "modules" / "weather", folder / "modules" / "weather")
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump({"state_dir": str(folder / "state"), "modules_path": str(folder / "modules")}))
    config.chmod(0o600)
    with port() as number:
        command = [sys.executable, "-m", "uvicorn", "embedding:app", "--app-dir", str(EXAMPLES), "--port", str(number)]
        told = Told(command, env=os.environ | {"APP_CONFIG": str(config), "no_proxy": "127.0.0.1"})
        try:
            told.wait("Application startup complete")
            yield (
                told,
                lambda user: httpx.Client(
                    base_url=f"http://127.0.0.1:{number}",
                    timeout=60,
                    trust_env=False,
                    headers={"X-User": user, **SAME_ORIGIN},
                ),
            )
        finally:
            told.end()


def test_an_application_with_its_own_people(tmp_path):
    """Thirty lines: a module works for the application's user, its administrator decides in the mounted console."""
    lines = [line for line in (EXAMPLES / "embedding.py").read_text().splitlines() if line]
    assert len(lines) <= 30
    assert (EXAMPLES / "embedding.py").read_text() in (ROOT / "docs" / "embedding.md").read_text()
    web = Web()
    with embedded(tmp_path) as (told, client), client("uma") as uma, client("ada") as ada:
        page = f"{web.url}/forecast/oslo"
        stopped = uma.post("/forecast", params={"url": page})
        assert stopped.status_code == 403
        assert "waiting for an administrator" in stopped.json()["hint"]
        waiting = ada.get("/sandbox/api/v1/requests").json()["items"]
        assert [found["origin"]["user_id"] for found in waiting] == ["uma"]
        request = waiting[0]["id"]
        shown = ada.get(f"/sandbox/requests/{request}")
        assert shown.status_code == 200
        links = re.findall(r'(?:href|src|action)="(/[^"]*)"', shown.text)
        assert links
        assert [link for link in links if not link.startswith("/sandbox/")] == []
        assert uma.post(f"/sandbox/api/v1/requests/{request}/approve-session", json={}).status_code == 403
        assert ada.post(f"/sandbox/api/v1/requests/{request}/approve-session", json={}).status_code == 200
        until(lambda: uma.post("/forecast", params={"url": page}).status_code == 200)
        with client("nobody") as nobody:
            assert nobody.post("/forecast", params={"url": page}).status_code == 401
        assert told.end() == 0
    web.stop()
