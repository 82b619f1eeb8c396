"""The tracer program: compiling it, and running a command under it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCES = [FOLDER / name for name in ("tracer.c", "contain.c", "resolve.c", "tracer.h", "calls.h")]
FLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-format-truncation"]
NO_CONTAINMENT = 77
BUILD = FOLDER.parents[1] / "build" / "oracle"


class NoContainment(RuntimeError):
    """This machine gives no namespaces, and without them nothing hostile is called."""


def tracer():
    """Return the compiled tracer; compile it if its sources changed."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES)).hexdigest()[:16]
    program = BUILD / f"tracer-{digest}"
    if not program.exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=BUILD) as folder:
            made = Path(folder) / "tracer"
            names = [str(path) for path in SOURCES if path.suffix == ".c"]
            subprocess.run([os.environ.get("CC", "cc"), *FLAGS, "-o", made, *names], check=True)
            made.replace(program)
    return program


def run_traced(command, base, report, *, environment, pass_fds=(), timeout=None, log=None):
    """Run a command contained and traced, with `base` as its only writable folder; return its exit status."""
    with open(log or os.devnull, "ab") as output:
        done = subprocess.run(
            [tracer(), "--contain", base, report, *map(str, command)],
            cwd="/",
            env=environment,
            pass_fds=pass_fds,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            timeout=timeout,
            check=False,
        )
    if done.returncode == NO_CONTAINMENT:
        raise NoContainment(Path(log).read_text() if log else "no namespaces")
    return done.returncode


def environment_for(base, source):
    """Return the environment of a traced interpreter: private HOME and TMPDIR, the package under test on the path."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "LANG") if name in os.environ}
    return {
        **kept,
        "HOME": f"{base}/home",
        "TMPDIR": f"{base}/tmp",
        "PYTHONPATH": str(source),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
    }
