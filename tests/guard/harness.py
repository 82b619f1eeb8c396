"""Run the body of a guard test in a new process.

Patches are process-wide and sealing is final, so the guard is never activated in pytest's process. A body is an
ordinary function of the test module; the child compiles that module without its tests and calls the body with a `World`
(see child.py). The return value comes back as JSON.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

# Location of the package under test, found without importing it.
PACKAGE = Path(importlib.util.find_spec("democrai_sandbox").origin).parents[1]
CHILD = Path(__file__).with_name("child.py")


class ChildError(AssertionError):
    """The child did not finish; the text is its output."""


class Case:
    """Private world of one test: a root, an outside with a secret, a separate home and temp directory."""

    child = CHILD

    def __init__(self, base: Path) -> None:
        self.base = base
        for name in ("root", "outside", "home", "tmp"):
            (base / name).mkdir(exist_ok=True)
        self.root = base / "root"
        self.outside = base / "outside"
        self.secret = base / "outside" / "secret.txt"
        self.secret.write_text("SECRET")

    def environment(self, **extra: str) -> dict[str, str]:
        """Return the child's environment: private HOME and TMPDIR, the package on the path, no DEMOCRAI_*."""
        kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "LANG") if name in os.environ}
        return {
            **kept,
            "HOME": str(self.base / "home"),
            "TMPDIR": str(self.base / "tmp"),
            "PYTHONPATH": str(PACKAGE),
            "PYTHONDONTWRITEBYTECODE": "1",
            **extra,
        }

    def run(
        self, body: Any, *args: Any, guard: dict[str, Any] | None = None, timeout: float = 120, **extra: str
    ) -> Any:
        """Run the body in a child, unguarded unless `guard` has arguments for a guard around it."""
        spec = {
            "file": inspect.getsourcefile(body),
            "body": body.__name__,
            "base": str(self.base),
            "args": args,
            "guard": guard,
        }
        status, out, err = self.play(spec, self.environment(**extra), timeout)
        if status != 0:
            raise ChildError(f"exit {status}\n{out[-2000:]}\n{err[-6000:]}")
        return json.loads(out.rstrip("\n").rpartition("\n")[2])

    def play(self, spec: dict[str, Any], environment: dict[str, str], timeout: float) -> tuple[int, str, str]:
        """Run the body in a new process; return its exit status and output."""
        command = [sys.executable, "-P", "-W", "ignore::DeprecationWarning", str(self.child), json.dumps(spec)]
        done = subprocess.run(command, cwd=self.base, env=environment, capture_output=True, text=True, timeout=timeout)
        return done.returncode, done.stdout, done.stderr

    def guarded(self, body: Any, *args: Any, roots: Any = ("root",), timeout: float = 120, **guard: Any) -> Any:
        """Run the body in a child, inside one guard whose allowed paths are the named places of this world."""
        paths = [str(self.base / root) for root in roots]
        return self.run(body, *args, guard={"subject": "demo", "allowed_paths": paths, **guard}, timeout=timeout)


def run_guarded(body: Any, base: Path, *args: Any, roots: Any = ("root",), **guard: Any) -> Any:
    """Do the same for a test that needs only one call."""
    return Case(base).guarded(body, *args, roots=roots, **guard)
