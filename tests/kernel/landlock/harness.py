"""Runs the body of a test in a process of its own: what Landlock restricts stays restricted until the process ends.

A body is a function of the test module that stands on its own: only its source goes to the child, which calls it with a
`World` (see world.py). What it returns comes back through JSON.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

PACKAGE = Path(importlib.util.find_spec("democrai_sandbox").origin).parents[1]
WORLD = Path(__file__).with_name("world.py")
NOBODY = 65534


class Ground:
    """A folder with a part inside and a part outside of what the child may reach."""

    def __init__(self, base: Path) -> None:
        self.base = base
        for name in ("inside", "inside/one", "inside/two", "read", "outside", "tmp"):
            (base / name).mkdir()
        (base / "read/file.txt").write_text("readable")
        (base / "inside/file.txt").write_text("inside")
        (base / "outside/secret.txt").write_text("SECRET")
        program = base / "outside/program"
        program.write_text("#!/bin/sh\nexit 7\n")
        program.chmod(0o755)

    def give_to(self, user: int) -> None:
        for path in (self.base, *self.base.rglob("*")):
            os.chown(path, user, user)

    def run(self, body, *args, abi=None, user=None, timeout=60.0):
        """Run the body in a child and return its answer; a forced ABI goes the way a host would force it."""
        if user is not None:
            self.give_to(user)
        order = {
            "source": textwrap.dedent(inspect.getsource(body)),
            "body": body.__name__,
            "args": args,
            "user": user,
        }
        environment = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": str(self.base),
            "TMPDIR": str(self.base / "tmp"),
            "PYTHONPATH": str(PACKAGE),
            "PYTHONDONTWRITEBYTECODE": "1",
            **({} if abi is None else {"DEMOCRAI_OS_SANDBOX_LANDLOCK_ABI": str(abi)}),
        }
        command = [sys.executable, str(WORLD), str(self.base)]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with subprocess.Popen(command, env=environment, cwd="/", text=True, start_new_session=True, **pipes) as child:
            try:
                output, errors = child.communicate(json.dumps(order), timeout)
            except BaseException:
                os.killpg(child.pid, signal.SIGKILL)  # and whatever the body started
                raise
        assert child.returncode == 0, f"the child ended with {child.returncode}:\n{output}\n{errors}"
        return json.loads(output.splitlines()[-1])
