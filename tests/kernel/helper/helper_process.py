"""Application, its folder and a helper for it, all removed at the end in any case.

with Stage("nobody") as stage:
    helper = stage.helper()
    assert stage.ask("ping")["ok"]
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import textwrap
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from democrai_sandbox.kernel.helper.protocol import helper_command
from tests.kernel import forked_programs
from tests.services import places

HERE = Path(__file__).parent
SECONDS = 30.0
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="takes on other users' ids, which needs root")


def until(condition, *, what="the condition", seconds=SECONDS):
    """Wait for a condition and return its value."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"{what} did not come about within {seconds} s"
        time.sleep(0.02)
    return found


class Application:
    def __init__(self, user):
        known = pwd.getpwnam(user)
        code, pipes = (HERE / "application.py").read_text(), {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = forked_programs.start(code, known.pw_uid, known.pw_gid, session=True, **pipes)
        assert json.loads(self._process.stdout.readline()) == "ready"
        self.pid = self._process.pid

    def run(self, code):
        """Run code in it; return its ``result``."""
        self._process.stdin.write(json.dumps(textwrap.dedent(code)) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def kill(self):
        """Kill it with all its forks."""
        if self._process.returncode is None:  # not reaped yet, so the process id is still its own
            with suppress(ProcessLookupError):  # reaped by the process that forked it
                os.killpg(self.pid, signal.SIGKILL)
        self._process.wait(SECONDS)
        self._process.stdin.close()
        self._process.stdout.close()


class Helper:
    """Started helper, with all lines of its standard error."""

    def __init__(self, process, socket):
        self.process = process
        self._socket = str(socket)
        self.pid = self.process.pid
        self.lines = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    def ready(self):
        """Wait for the line with the socket at which it serves."""
        until(lambda: self.said(self._socket) or self.process.poll() is not None, what="a helper that serves")
        assert self.process.poll() is None, self.lines
        return self

    def said(self, text):
        return any(text in line for line in list(self.lines))

    def ended(self):
        """Wait for its end and return the exit status."""
        status = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        return status

    def refusal(self):
        """Return the last line of a helper that could not start."""
        assert self.ended() != 0
        return json.loads(self.lines[-1])

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.ended()
        self.process.stderr.close()


class Stage:
    def __init__(self, user="root"):
        self.user = user
        self._helpers = []
        self._others = []

    def __enter__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="democrai-helper-", dir=places.SHORT))
        known = pwd.getpwnam(self.user)
        self.uid, self.gid = known.pw_uid, known.pw_gid
        self.home = self.folder / "home"
        self.home.mkdir(mode=0o700)
        os.chown(self.home, self.uid, self.gid)
        self.folder.chmod(0o755)
        self.socket = self.home / "helper.sock"
        self.policy = self.home / "policy.json"
        self.record = self.folder / "record"
        self.application = self.another()
        return self

    def __exit__(self, *_):
        for application in self._others:
            application.kill()
        for helper in self._helpers:
            helper.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def another(self, user=None):
        """Start another application, which is unrelated to the first."""
        application = Application(user or self.user)
        self._others.append(application)
        return application

    def words(self, **changes):
        given = {
            "socket": self.socket,
            "policy-file": self.policy,
            "refresh-seconds": 0,
            "parent-pid": self.application.pid,
            **{name.replace("_", "-"): value for name, value in changes.items()},
        }
        return [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]

    def helper(self, *more, real=False, environment=None, ready=True, front=(), **changes):
        """Start a helper: the one with the fake enforcer, or the real command."""
        if real:
            process = subprocess.Popen(
                [*front, *helper_command(), *self.words(**changes), *more],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                env=environment or {},
                start_new_session=True,
            )
        else:
            process = self.fake_helper(*more, environment=environment, **changes)
        helper = Helper(process, changes.get("socket", self.socket))
        self._helpers.append(helper)
        return helper.ready() if ready else helper

    def fake_helper(self, *more, environment=None, stderr=subprocess.PIPE, **changes):
        """Start the process with the fake enforcer."""
        code, words = (HERE / "fake_helper.py").read_text(), [self.record, *self.words(**changes), *more]
        environ = {"PATH": os.environ["PATH"], **(environment or {})}
        streams = {"stdin": subprocess.DEVNULL, "stderr": stderr}
        return forked_programs.start(code, *words, environ=environ, session=True, **streams)

    def write_policy(self, *endpoints, text=None, path=None):
        """Write the policy like the application: a new file, renamed over the old one."""
        path = path or self.policy
        given = [{"host": host, "port": port, "protocol": "tcp", "source": "test"} for host, port in endpoints]
        fresh = path.with_name(f"{path.name}.new")
        fresh.write_bytes(text if text is not None else json.dumps({"version": 1, "endpoints": given}).encode())
        fresh.chmod(0o600)
        os.chown(fresh, self.uid, self.gid)
        fresh.rename(path)

    def ask(self, action, application=None, **fields):
        return (application or self.application).run(f"result = ask({str(self.socket)!r}, {action!r}, **{fields!r})")

    def raw(self, data):
        return self.application.run(f"result = ask_raw({str(self.socket)!r}, {data!r})")

    def let_go(self):
        """Let the fake enforcer continue a held request."""
        self.record.with_name(f"{self.record.name}.go").touch()

    def calls(self, name=None):
        lines = self.record.read_text().splitlines() if self.record.exists() else []
        found = [json.loads(line) for line in lines]
        return [call for call in found if name in (None, call["call"])]
