"""What `make run` shows."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import socket
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from democrai_sandbox.sdk import testing
from tests.console.serving import EXTENSIONS, PLAIN, SAME_ORIGIN, Web, until
from tests.services.commands import Forked, instead
from tests.services.golden import sentence

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
pytestmark = pytest.mark.once


class Told:
    """A process whose output is read while it runs."""

    def __init__(self, program, environ):
        heard, told = os.pipe()
        with open(os.devnull) as nothing, open(told, "w") as out:
            self.process = Forked([], environ=environ, streams=(nothing, out, out), folder=ROOT, before=program)
        self._heard = open(heard)
        self.lines = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        for line in self._heard:
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
        self._heard.close()
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
    environ |= {"PYTHONUNBUFFERED": "1"}
    told = Told(f"import sys\nsys.path.insert(0, {str(EXAMPLES)!r})\n{instead('demo', folder)}", environ)
    try:
        yield told
    finally:
        told.end(signal.SIGTERM)  # so that it ends its server too


@contextmanager
def administrator(told):
    """Sign in at the console that the demonstration named."""
    url = told.wait(r"The console is at +(\S+)")[1]
    name, password = told.wait(r"Sign in as +(\S+) +with the password +(\S+)").groups()
    with httpx.Client(base_url=url, timeout=60, **PLAIN, headers=SAME_ORIGIN) as client:
        assert client.post("/login", data={"name": name, "password": password}).status_code == 303
        yield client


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_the_demonstration_leads_through_its_story(tmp_path):
    """Stopped, approved in the console, gone on, shown, in the audit; every address that it prints is there.

    Started again, it begins anew: with its port taken it takes the next one and says so, and it takes a no as well.
    """
    with demo(tmp_path / "demo") as told, administrator(told) as client:
        request = told.wait(r"/requests/(\w+)")[1]
        assert "External URL is locked" in told.text  # wording: a text of the contract
        assert client.post(f"/api/v1/requests/{request}/approve-session", json={"reason": "fine"}).status_code == 200
        told.wait("Ctrl-C ends it")
        (decided,) = [line for line in told.lines if line.endswith("(fine)")]
        sentence("approved", decided)
        shown = json.loads(re.search(r"^ *\{.*?^ *\}", told.text, re.DOTALL | re.MULTILINE)[0])
        assert shown["forecast"].startswith("Oslo: ")
        for address in set(re.findall(rf"{client.base_url}(/?\S*)", told.text)):
            found = client.get(address or "/", follow_redirects=True)
            assert (found.status_code, found.url.path == "/login") == (200, False), address
        assert told.end() == 0
        assert told.lines[-1] == "Ended."
    with taken_port(), demo(tmp_path / "demo") as told, administrator(told) as client:
        assert str(client.base_url.port) != "8420"
        (taken,) = [line for line in told.lines if "8420" in line]
        sentence("port taken", taken, also=[(str(client.base_url.port), "8421")])
        request = told.wait(r"/requests/(\w+)")[1]
        assert client.post(f"/api/v1/requests/{request}/deny", json={}).status_code == 200
        told.wait("Ctrl-C ends it")
        sentence("denied", told.text.partition(request)[2].partition("\n4.")[0].strip())
        assert told.end(signal.SIGTERM) == 0


@contextmanager
def taken_port():
    """Take the usual port of the demonstration, unless another process has it."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 8420))
            taken.listen()
        except OSError:
            pass  # another process has it, which comes to the same
        yield


def test_the_demonstration_spares_a_folder_that_is_not_its_own(tmp_path):
    """A folder with something else in it is refused, and left as it is."""
    (tmp_path / "letter.txt").write_text("mine")
    with demo(tmp_path) as told:
        assert told.process.wait(60) == 1
        told.wait(re.escape(str(tmp_path)))
        sentence("not its own folder", told.text, folder=tmp_path)
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
