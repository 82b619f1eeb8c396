"""Application under the egress control, in a separate process that executes expressions of a test.

``Application(space, ...)`` starts it in a network namespace of ``netlab``; ``app(text)`` evaluates an expression there,
or runs statements, and returns the value. It has ``control``, ``sources`` (a list of wanted targets), ``permitted``
(hosts that patterns permit), ``tcp(host, port)``, ``udp(host, port)``, ``see(host, port, *addresses)`` (the report of
the guard before a connection) and ``kept`` (open connections).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from tests.services import places

SOURCES = str(Path(__file__).parents[3] / "src")
SECONDS = 40


class Application:
    """Application that is killed at the end, with all its processes."""

    def __init__(self, space, *, uid=0, settings=None, prelude=""):
        # Not below the folders of pytest, which other users cannot enter.
        self.folder = Path(tempfile.mkdtemp(prefix="egress-", dir=places.SHORT))
        if uid:
            os.chown(self.folder, uid, uid)
        options = {"folder": str(self.folder), "uid": uid, "settings": settings or {}, "prelude": prelude}
        self.log = open(self.folder.with_suffix(".log"), "w+b")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.log}
        self.process = space.start(_SCRIPT, SOURCES, json.dumps(options), **pipes)
        self.pid = self.process.pid
        assert self("1 + 1") == 2

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        for stream in (self.process.stdin, self.process.stdout, self.log):
            with suppress(OSError):
                stream.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.with_suffix(".log").unlink(missing_ok=True)

    def __call__(self, text):
        """Execute code there; raise its errors here as ``Failed``."""
        self.process.stdin.write(json.dumps(text) + "\n")
        line = self.process.stdout.readline()
        assert line, f"the application has ended: {self.process.wait(10)}\n{self.said()}"
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(answer, self.said())
        return answer["value"]

    def said(self):
        """Return the standard error of the application and its helper."""
        return self.folder.with_suffix(".log").read_text("utf-8", "replace")

    def kill(self):
        """Kill it, like the kernel when memory runs out."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        self.process.wait(SECONDS)

    @property
    def left(self):
        """Files in its folder."""
        return sorted(path.name for path in self.folder.iterdir())


class Failed(Exception):
    """Exception in the application."""

    def __init__(self, answer, said):
        super().__init__(answer["error"], said)
        self.reason, self.fix = answer["reason"], answer["fix"]


_SCRIPT = r"""
import json, os, socket, sys, threading, time
from types import SimpleNamespace
sys.path.insert(0, sys.argv[1])
options = json.loads(sys.argv[2])
from democrai_sandbox.kernel import FlowLog, OsSettings
from democrai_sandbox.kernel.egress import AllowlistBuilder, EgressControl, Endpoint, SourceEntry
import encodings.idna, encodings.ascii

if options["uid"]:
    os.setgroups([]); os.setgid(options["uid"]); os.setuid(options["uid"])

sources, permitted, kept = [], set(), []

class Given:
    name = "given"
    def endpoints(self):
        for target in list(sources):
            if target == "broken":
                raise RuntimeError("the registry is away")
            yield SourceEntry(target, "module:given")

control = EgressControl(
    AllowlistBuilder([Given()]),
    settings=OsSettings(enabled=True, **options["settings"]),
    data_dir=options["folder"], state_dir=options["folder"], flow=FlowLog(enabled=True),
)
control.observed.still_permitted = lambda kind, subject, host, port: host in permitted

def outcome(act):
    try:
        act()
    except OSError as error:
        return type(error).__name__
    return "ok"

def tcp(host, port, seconds=5):
    def act():
        with socket.create_connection((host, port), timeout=seconds) as link:
            link.sendall(b"12345678")
            if link.recv(8) != b"12345678":
                raise ConnectionResetError
    return outcome(act)

def udp(host, port, seconds=5):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    def act():
        with socket.socket(family, socket.SOCK_DGRAM) as link:
            link.settimeout(seconds)
            link.sendto(b"12345678", (host, port))
            link.recvfrom(8)
    return outcome(act)

def keep(host, port):
    kept.append(socket.create_connection((host, port), timeout=5))

def send(number=0):
    def act():
        kept[number].sendall(b"12345678")
        if kept[number].recv(8) != b"12345678":
            raise ConnectionResetError
    return outcome(act)

def see(host, port, *addresses):
    started = time.perf_counter()
    control.observe(SimpleNamespace(subject="m", subject_kind="module", host=host, addresses=addresses, port=port))
    return time.perf_counter() - started

def until(condition, seconds=20):
    started = time.perf_counter()
    while not condition():
        if time.perf_counter() - started > seconds:
            raise TimeoutError("it did not come")
        time.sleep(0.002)
    return time.perf_counter() - started

words = globals()
exec(options["prelude"], words)
for line in sys.stdin:
    text = json.loads(line)
    try:
        try:
            code = compile(text, "order", "eval")
        except SyntaxError:
            exec(compile(text, "order", "exec"), words)
            answer = {"value": None}
        else:
            answer = {"value": eval(code, words)}
        line = json.dumps(answer)
    except BaseException as error:
        told = {name: getattr(error, name, "") for name in ("reason", "fix")}
        line = json.dumps({"error": f"{type(error).__name__}: {error}", **told})
    print(line, flush=True)
"""
