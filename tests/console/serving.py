"""A real `democrai-sandbox serve` on a free port, with the example extensions and a web server beside it.

def test_something(served):
    with served.signed_in() as client:            # httpx, as the first administrator, with the session's cookie
        assert client.get("/requests").status_code == 200
    uma = served.person("uma")                    # somebody who may not decide
    with served.bearer(uma, Scope.MODULES_RUN) as client:
        served.stop_weather(client)               # leaves a pending request, and returns its id
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import threading
import time
from pathlib import Path

import httpx
import yaml

from democrai_sandbox.host.accounts import Cost
from tests.console.sessions import enter
from tests.services.commands import COMMAND, Forked
from tests.services.databases import migrated_file

ROOT = Path(__file__).resolve().parents[2]
EXTENSIONS = ROOT / "examples" / "extensions"
READY = re.compile(r"^democrai-sandbox is ready at (http\S+)$")
FIRST = re.compile(r"^first login: (\S+), password: (\S+)$")
PASSWORD = "correct horse battery staple"
PATIENCE = 90
CHEAP = Cost(memory_kib=8, passes=1)
"""For passwords of people who are there for other reasons: comparing one is slow by design."""
CHEAPLY = f"""
from functools import partial
from democrai_sandbox.host.accounts import passwords
passwords.Cost = partial(passwords.Cost, {CHEAP.memory_kib}, {CHEAP.passes})
"""
"""Has a served process keep and compare passwords at that cost."""
SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}
PLAIN = {"trust_env": False, "verify": ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)}
"""For clients of servers without TLS: a usual one reads all certificates of the machine, which takes 40 ms each."""


class Served:
    """A serving process, its folder, and its clients."""

    def __init__(
        self,
        folder,
        config=None,
        *,
        extensions=True,
        environ=None,
        command=(),
        outside=None,
        fresh=False,
        before=CHEAPLY,
    ):
        """``config`` is merged over: a free port, SQLite and all folders in ``folder``.

        It is a fork of a process that has imported everything and runs ``before``, and finds a database that has its
        schema; unless it is to be a ``fresh`` one, or to be started by another command or with other variables of the
        interpreter.
        """
        self.folder = Path(folder)
        self.web = outside or Web()
        self.config = {
            "state_dir": str(self.folder / "state"),
            "server": {"port": 0},
            "sandbox": {"poll_seconds": 0.1},
        }
        if extensions:
            self.furnish()
        merge(self.config, config or {})
        self.file = self.folder / "config.yaml"
        self.file.write_text(yaml.safe_dump(self.config))
        self.file.chmod(0o600)
        self.environ = environ or {}
        self.command = command
        self.fresh = fresh or bool(command) or any(name.startswith("PYTHON") for name in self.environ)
        self.before = before
        if not self.fresh and "database" not in self.config:
            state = Path(self.config["state_dir"])
            state.mkdir(mode=0o700, exist_ok=True)
            if not (state / "sandbox.db").exists():
                shutil.copy(migrated_file(), state / "sandbox.db")
        self.url = self.admin = self.password = ""
        self._accounts = None
        self.process = None
        self.start()

    def furnish(self):
        """Copy the example extensions, with addresses of this machine in their manifests."""
        places = {"/srv/democrai": str(self.folder), "https://api.example.com": self.web.url}
        places["https://images.example.com"] = self.web.url
        for kind in ("modules", "engines", "extractors"):
            shutil.copytree(EXTENSIONS / kind, self.folder / kind, ignore=shutil.ignore_patterns("__pycache__"))
            self.config[f"{kind}_path"] = str(self.folder / kind)
        for manifest in self.folder.glob("*/*/manifest.json"):
            text = manifest.read_text()
            for named, real in places.items():
                text = text.replace(named, real)
            manifest.write_text(text)
        (self.folder / "sales").mkdir()
        (self.folder / "sales" / "may.csv").write_text("3,4,5")
        broken = self.folder / "modules" / "broken"
        broken.mkdir()
        (broken / "manifest.json").write_text(json.dumps({"name": "broken", "acess": []}))

    # ---- the process

    def start(self):
        """Start it, and wait until it is ready."""
        scratch = self.folder / "scratch"
        scratch.mkdir(exist_ok=True)
        environ = {name: value for name, value in os.environ.items() if not name.startswith("DEMOCRAI_")}
        environ |= {"TMPDIR": str(scratch), "no_proxy": "127.0.0.1", "PYTHONUNBUFFERED": "1", **self.environ}
        self.log = self.folder / "log"
        arguments = ["serve", "--config", str(self.file)]
        with self.log.open("ab") as log, open(os.devnull) as nothing:
            if self.fresh:
                command = [*self.command, *COMMAND, *arguments]
                self.process = subprocess.Popen(
                    command, stdin=nothing, stdout=subprocess.PIPE, stderr=log, text=True, env=environ
                )
            else:
                self.process = Forked(
                    arguments, environ=environ, streams=(nothing, subprocess.PIPE, log), before=self.before
                )
        self._hear()

    def _hear(self):
        # A thread reads for good: a process whose output nobody reads stands still one day.
        self.said = []
        ready = threading.Event()

        def read():
            for line in self.process.stdout:
                self.said.append(line.rstrip("\n"))
                if match := FIRST.match(self.said[-1]):
                    self.admin, self.password = match.groups()
                if match := READY.match(self.said[-1]):
                    self.url = match[1]
                    ready.set()
            ready.set()

        threading.Thread(target=read, daemon=True).start()
        if not ready.wait(PATIENCE) or self.process.poll() is not None or not self.url:
            self.stop(signal.SIGKILL)
            raise RuntimeError(f"it did not start: {self.said}\n{self.log.read_text()}")

    def stop(self, number=signal.SIGTERM):
        """Stop the process; return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        status = self.process.wait(PATIENCE)
        self.process.stdout.close()
        if self._accounts is not None:
            self._accounts[0].close()
            self._accounts = None
        return status

    # ---- people

    @property
    def accounts(self):
        """The accounts of the served database, for creating users and tokens without a page."""
        from democrai_sandbox.access.store import open_store
        from democrai_sandbox.host.accounts.accounts import Accounts
        from democrai_sandbox.host.config import load

        if self._accounts is None:
            settings = load(self.file, environ={}).settings
            store = open_store(settings.database)
            self._accounts = (store, Accounts(store.database, settings, cost=CHEAP))
        return self._accounts[1]

    def person(self, name, *, role="", **more):
        """Create or return a user with PASSWORD; role="super" may decide."""
        for found in self.accounts.people():
            if found.name == name:
                return found
        return self.accounts.create_person(name, PASSWORD, role=role, actor="tests", **more)

    def administrator(self):
        """The first administrator."""
        return next(found for found in self.accounts.people() if found.name == self.admin)

    def token(self, person, *scopes):
        """Create a token with these or all scopes; return the secret."""
        from democrai_sandbox.host.scopes import Scope

        return self.accounts.create_token(person.id, "tests", scopes or tuple(Scope), None)[1]

    # ---- ways in

    def client(self, **more):
        """A client without a session, which sends browser headers."""
        return httpx.Client(base_url=self.url, timeout=60, **PLAIN, headers=SAME_ORIGIN, **more)

    def signed_in(self, name="", password="", **more):
        """A client with a session, by default of the first administrator; by the form if a password is given."""
        if not password:
            cookies, _ = enter(self.accounts, name or self.admin)
            return self.client(cookies=cookies, **more)
        form = {"name": name, "password": password}
        with self.client() as door:
            answer = door.post("/login", data=form)
            if answer.status_code != 303:
                raise RuntimeError(f"nobody was signed in: {answer.status_code} {answer.text[:2000]}")
            return self.client(cookies=door.cookies, **more)

    def bearer(self, person, *scopes):
        """An API client with a token."""
        headers = {"Authorization": f"Bearer {self.token(person, *scopes)}"}
        return httpx.Client(base_url=self.url, timeout=60, **PLAIN, headers=headers)

    def stop_weather(self, client, path="/forecast/today"):
        """Let the example module weather be denied; return the id of the pending request."""
        url = f"{self.web.url}{path}"
        answer = client.post("/api/v1/modules/weather/actions/fetch", json={"params": {"url": url}})
        assert answer.status_code == 403, (answer.status_code, answer.text)
        return answer.json()["pending_request_id"]


class Web:
    """A web server on loopback that echoes the HTTP request."""

    def __init__(self):
        self.asked = asked = []

        class Answers(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                self.rfile.read(int(self.headers.get("Content-Length", "0")))
                asked.append(self.path)
                body = f"{self.command} {self.path}".encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def stop(self):
        self._server.shutdown()
        self._server.server_close()


def merge(config, more):
    """Merge a configuration over another."""
    for name, value in more.items():
        if isinstance(value, dict) and isinstance(config.get(name), dict):
            merge(config[name], value)
        else:
            config[name] = value


def until(happened, what="it", seconds=PATIENCE):
    """Repeat until a condition is true; return its value."""
    end, pause = time.monotonic() + seconds, 0.02
    while time.monotonic() < end:
        if found := happened():
            return found
        time.sleep(pause)
        pause = min(pause * 1.3, 0.3)  # what takes long is not made longer by being asked again and again
    raise AssertionError(f"{what} did not happen within {seconds} s")


@contextlib.contextmanager
def serving(folder, config=None, **more):
    """Serve during the block."""
    served = Served(folder, config, **more)
    try:
        yield served
    finally:
        served.stop()
        served.web.stop()
