"""The tracer program: compiling it, and running a command under it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
PACKAGE = FOLDER.parents[1] / "src"
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


class Traced:
    """A program of this folder that ran contained and traced, with `base` as its only writable folder."""

    def __init__(self, python, program, work, **spec):
        self.base = tempfile.mkdtemp(prefix="run-", dir=work)
        self.report_path = f"{self.base}.report"
        record_path, log_path = Path(f"{self.base}.record"), Path(f"{self.base}.log")
        record = os.open(record_path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        spec = {"base": self.base, "record": record, **spec}
        try:
            with log_path.open("ab") as output:
                self.status = subprocess.run(
                    [
                        tracer(),
                        "--contain",
                        self.base,
                        self.report_path,
                        python,
                        "-P",
                        FOLDER / program,
                        json.dumps(spec),
                    ],
                    cwd="/",
                    env=environment(self.base),
                    pass_fds=(record,),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    check=False,
                ).returncode
        finally:
            os.close(record)
        self.log = log_path.read_text(errors="replace")
        if self.status == NO_CONTAINMENT:
            raise NoContainment(self.log)
        self.lines = [json.loads(line) for line in record_path.read_text().splitlines()]
        if not any(line[0] == "end" for line in self.lines):
            raise RuntimeError(f"{program} did not come to its end (exit {self.status}):\n{self.log[-3000:]}")


def environment(base):
    """Return the environment of an interpreter that runs tests: private HOME and TMPDIR, the package on the path."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "LANG") if name in os.environ}
    return {
        **kept,
        "HOME": f"{base}/home",
        "TMPDIR": f"{base}/tmp",
        "PYTHONPATH": str(PACKAGE),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
    }
