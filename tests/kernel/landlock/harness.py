"""Run the body of a test in a separate process, because Landlock restrictions are permanent.

A body is a self-contained function of the test module: only its source is sent to the child, which calls it with a
`World` (see world.py). Its result is returned as JSON.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import textwrap
from pathlib import Path

from tests.kernel import forked_programs

PACKAGE = Path(importlib.util.find_spec("democrai_sandbox").origin).parents[1]
WORLD = Path(__file__).with_name("world.py")
NOBODY = 65534


class Ground:
    """Folder with a part inside and a part outside the child's rules."""

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
        """Run the body in a child and return its answer; a forced ABI is passed like a host would pass it."""
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
        text, options = json.dumps(order), {"environ": environment, "session": True, "timeout": timeout}
        child = forked_programs.run(WORLD.read_text(), self.base, text=text, **options)
        assert child.returncode == 0, f"the child ended with {child.returncode}:\n{child.stdout}\n{child.stderr}"
        return json.loads(child.stdout.splitlines()[-1])
