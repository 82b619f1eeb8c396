"""The commands of docs/deployment.md, so that what is tried is what stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.console.serving import ROOT

PAGE = ROOT / "docs" / "deployment.md"
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(word):
    """Return the commands of the one block that has a word in it."""
    (found,) = [block for block in _BLOCK.findall(PAGE.read_text()) if word in block and "useradd" not in block]
    return found.splitlines()


def run(line, served, *, folder=None, **variables):
    """Run one of them for a node that is served: with its configuration, its folder, and in some folder."""
    line = line.replace("/etc/democrai-sandbox/config.yaml", str(served.file))
    line = line.replace("/var/lib/democrai-sandbox", str(served.folder / "state"))
    line = re.sub(r"^democrai-sandbox ", f"{sys.executable} -m democrai_sandbox.cli ", line)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DEMOCRAI_")}
    done = subprocess.run(
        ["sh", "-c", line],
        env=environ | variables,
        cwd=folder or Path.cwd(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, (line, done.stdout, done.stderr)
    return done.stdout
