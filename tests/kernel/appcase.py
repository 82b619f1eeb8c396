"""Applications for tests: a separate process that creates a ``Kernel``, runs the body of a test, and reports facts.

    told = application(tmp_path, '''
        kernel = make({"landlock": {"enabled": True}})
        kernel.prepare()
        tell(states=states(kernel.confine()))
    ''')
    assert told["states"]["landlock"] == "active"

``told`` has all reported facts, later ones over earlier ones, and ``returncode``, ``stderr``. Names for the body:
``make``, ``states``, ``tell``, ``raised`` (the error of a call as ``[type, text]``), ``kind_of`` (its type alone, or
"nothing"), ``failure`` (its parts, as a dictionary), ``HERE`` (a folder with ``data`` and ``state``). Applications with
a helper need a ``short_folder``, because the path of its socket has a length limit.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from tests.kernel import forked_programs
from tests.services import places

SECONDS = 100.0
SOURCE = Path(__file__).resolve().parents[2] / "src"
EVERYTHING = {"enabled": True, "seccomp": {"enabled": True}, "landlock": {"enabled": True}}

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to change to another user or mount something")

_PRELUDE = r"""
import json, os, signal, socket, subprocess, sys, threading, time
from pathlib import Path
HERE = sys.argv[1]
if sys.argv[2:]:
    uid = int(sys.argv[2])
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
from democrai_sandbox.kernel import os_settings
from democrai_sandbox.kernel.application import ApplicationPlaces, Kernel
from democrai_sandbox.kernel.egress import AllowlistBuilder
from democrai_sandbox.kernel.egress.allowlist import SourceEntry

class Wanted:
    "Source with the targets of a test."
    name = "test"
    def __init__(self, *targets): self.targets = list(targets)
    def endpoints(self): return [SourceEntry(target, "test") for target in self.targets]

def make(section, *targets, **places):
    builder = AllowlistBuilder([Wanted(*targets)]) if targets else None
    return Kernel(os_settings(section), ApplicationPlaces(f"{HERE}/data", f"{HERE}/state", **places), endpoints=builder)
def tell(**facts): print(json.dumps(facts, default=str), flush=True)
def states(status): return {control.name: control.state.value for control in status.controls}
def raised(call, *arguments, **keywords):
    try:
        call(*arguments, **keywords)
    except BaseException as error:
        return [type(error).__name__, str(error)]
    return ["nothing", ""]
def kind_of(call, *arguments, **keywords): return raised(call, *arguments, **keywords)[0]
def failure(call, *arguments, **keywords):
    try:
        call(*arguments, **keywords)
    except BaseException as error:
        parts = {name: getattr(error, name, "") for name in ("code", "what", "fix")}
        return {"type": type(error).__name__, **parts}
    return {"type": "nothing"}
"""


def command(tmp_path, body, *, user=None, before=""):
    """Return the command line of an application and create its folders. ``before`` runs before any import."""
    for name in ("data", "state"):
        folder = Path(tmp_path) / name
        folder.mkdir(mode=0o700, exist_ok=True)
        if user is not None:
            os.chown(folder, user, user)
    if user is not None:
        _open_the_way(Path(tmp_path))
    code = f"{before}\n{_PRELUDE}{textwrap.dedent(body)}"
    interpreter = sys.executable if user is None else interpreter_for_all()
    return [interpreter, "-B", "-c", code, str(tmp_path), *([] if user is None else [str(user)])]


@contextmanager
def short_folder():
    """Give a folder with a short path."""
    with tempfile.TemporaryDirectory(prefix="dk", dir=places.SHORT, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def interpreter_for_all():
    """Return an interpreter of this version for every user, or None: ours may be in a private home folder."""
    own = Path(sys.executable).resolve()
    places = [own, Path("/usr/bin") / f"python{sys.version_info[0]}.{sys.version_info[1]}"]
    for place in places:
        if place.is_file() and all(parent.stat().st_mode & 0o001 for parent in (place, *place.parents)):
            return str(place)
    return None


needs_other_user = pytest.mark.skipif(
    os.geteuid() != 0 or interpreter_for_all() is None,
    reason="needs root, and an interpreter of this version that another user can execute",
)
NOBODY = 65534


def application(tmp_path, body, *, within=(), user=None, before="", environment=None, space=None):
    """Run an application until it ends; ``within`` is a command that starts it, ``space`` a namespace of a lab."""
    argv = [*within, *command(tmp_path, body, user=user, before=before)]
    if not (within or before) and user is None:
        environ = {**os.environ, "PYTHONPATH": str(SOURCE), **(environment or {})}
        with nullcontext() if space is None else space.entered():
            return told_by(forked_programs.run(*argv[-2:], environ=environ, timeout=SECONDS))
    options = {
        "capture_output": True,
        "text": True,
        "timeout": SECONDS,
        "env": {**os.environ, "PYTHONPATH": str(SOURCE), **(environment or {})},
        "cwd": "/",
        "check": False,
    }
    ended = subprocess.run(argv, **options) if space is None else space.run(argv, **options)
    return told_by(ended)


class Talking:
    """Application that continues on each line of its input; its facts are read one by one."""

    def __init__(self, folder, body, *, space, environment=None):
        *_, code, here = command(folder, body)
        environ = {**os.environ, "PYTHONPATH": str(SOURCE), **(environment or {})}
        self.process = space.start(code, here, environ=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self.process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait(SECONDS)
        self.process.stdin.close()
        self.process.stdout.close()

    def hear(self):
        line = self.process.stdout.readline()
        assert line, f"the application has ended: {self.process.wait(SECONDS)}"
        return json.loads(line)

    def ask(self, word=""):
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self.hear()

    def end(self):
        """Close its input, and return its exit status."""
        self.process.stdin.close()
        return self.process.wait(SECONDS)


def lacking(refusal):
    """Return the controls that a refusal names, each with its state."""
    names = "landlock|seccomp|spawn_server|egress|helper"
    return dict(re.findall(rf"\b({names}) \w+ (active|partial|off|unsupported)\b", refusal["what"]))


def told_by(ended):
    """Return the facts that an application reported."""
    facts = {"returncode": ended.returncode, "stderr": ended.stderr}
    for line in ended.stdout.splitlines():
        if line.startswith("{"):
            facts |= json.loads(line)
    assert "Traceback" not in ended.stderr, ended.stderr
    return facts


def _open_the_way(folder):
    """Open a private folder of pytest for other users."""
    for parent in (folder, *folder.parents):
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o111)
