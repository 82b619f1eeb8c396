"""Virtual environments for tests: made anywhere, with packages that the test writes into them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "src"


class Environment:
    """A virtual environment in which the package under test can be imported."""

    def __init__(self, folder):
        self.folder = Path(folder)
        venv.EnvBuilder(symlinks=True, with_pip=False).create(self.folder)
        version = "python{}.{}".format(*sys.version_info)
        self.packages = self.folder / "lib" / version / "site-packages"
        (self.packages / "sources.pth").write_text(f"{SOURCES}\n")

    def package(self, name, code=""):
        """Write a package; return its folder."""
        made = self.packages / name
        made.mkdir()
        (made / "__init__.py").write_text(code)
        return made

    def command(self, *arguments, cwd=None, **environ):
        """Run ``democrai-sandbox`` in it, with the packages that the tests have."""
        (self.packages / "tests.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        return subprocess.run(
            [self.folder / "bin" / "python", "-P", "-B", "-m", "democrai_sandbox.cli", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=cwd,
            env=_clean() | environ,
        )

    def answers(self, program, *arguments, **environ):
        """Run a program in it, and return what it prints as JSON on its last line."""
        done = subprocess.run(
            [self.folder / "bin" / "python", "-P", "-B", "-c", program, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=120,
            env=_clean() | environ,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


def _clean():
    return {name: value for name, value in os.environ.items() if not name.startswith(("DEMOCRAI_", "PYTHON"))}
