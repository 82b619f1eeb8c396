"""The commands of docs/deployment.md, so that what is tried is what stands there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from string import Template

from tests.console.serving import ROOT
from tests.services.commands import Forked

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
    environ = {name: value for name, value in os.environ.items() if not name.startswith("DEMOCRAI_")} | variables
    folder = folder or Path.cwd()
    if line.startswith("democrai-sandbox ") and "PYTHONPATH" not in variables:
        # The words that a shell makes of it, in a fork that has imported the command.
        words = [Template(word).substitute(variables) for word in shlex.split(line)[1:]]
        return _forked(words, environ, folder)
    line = re.sub(r"^democrai-sandbox ", f"{shlex.quote(sys.executable)} -m democrai_sandbox.cli ", line)
    done = subprocess.run(
        ["sh", "-c", line], env=environ, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, (line, done.stdout, done.stderr)
    return done.stdout


def _forked(words, environ, folder):
    with ExitStack() as stack:
        streams = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(3)]
        process = Forked(words, environ=environ, streams=streams, folder=folder)
        try:
            status = process.wait(120)
        finally:
            process.kill()
        for stream in streams:
            stream.seek(0)
        said = streams[1].read()
        assert status == 0, (words, said, streams[2].read())
        return said
